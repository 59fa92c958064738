source src/add.sh

@test "adds" {
  [ "$(add 2 3)" -eq 5 ]
}

@test "adds nothing" {
  [ "$(add 2 0)" -eq 2 ]
}
