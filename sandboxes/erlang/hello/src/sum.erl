-module(sum).
-export([add/2]).

add(A, B) ->
    A - B.
