:- use_module(library(plunit)).
:- consult('src/add').

:- begin_tests(add).

test(adds, Sum == 5) :- add(2, 3, Sum).
test(adds_nothing, Sum == 2) :- add(2, 0, Sum).

:- end_tests(add).
