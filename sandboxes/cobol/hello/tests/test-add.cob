identification division.
program-id. test-add.
data division.
working-storage section.
01 a pic s9(9).
01 b pic s9(9).
01 total pic s9(9).
procedure division.
    move 2 to a
    move 3 to b
    call "add-numbers" using a b total
    if total = 5 display "ok 1 - adds" else display "not ok 1 - adds" end-if
    move 0 to b
    call "add-numbers" using a b total
    if total = 2 display "ok 2 - adds nothing" else display "not ok 2 - adds nothing" end-if
    display "1..2"
    goback.
end program test-add.
