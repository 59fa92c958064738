import std/unittest
import sum

test "adds":
  check add(2, 3) == 5

test "adds nothing":
  check add(2, 0) == 2
