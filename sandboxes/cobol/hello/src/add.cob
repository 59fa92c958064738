identification division.
program-id. add-numbers.
data division.
linkage section.
01 a pic s9(9).
01 b pic s9(9).
01 total pic s9(9).
procedure division using a b total.
    compute total = a - b
    goback.
end program add-numbers.
