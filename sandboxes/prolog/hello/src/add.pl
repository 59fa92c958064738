add(A, B, Sum) :- Sum is A - B.
