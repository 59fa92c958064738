-module(sum_tests).
-include_lib("eunit/include/eunit.hrl").

adds_test() ->
    ?assertEqual(5, sum:add(2, 3)).

adds_nothing_test() ->
    ?assertEqual(2, sum:add(2, 0)).
