% Recipe of Prolog: run one file of plunit tests, write each test's outcome as TAP to $TAP_FILE; plunit tells failures.
%     swipl -q plunit.pl TEST_FILE
% Each test is run by itself, in the order of the file. A process that ends early, by halt too, leaves no TAP.
:- use_module(library(plunit)).
:- initialization(main, main).

main([File]) :-
    getenv('TAP_FILE', TapFile),
    unsetenv('TAP_FILE'),
    load_files(File, [if(true)]),
    findall(Line-test(Unit, Name, Options), current_test(Unit, Name, Line, _, Options), Found),
    keysort(Found, Ordered),
    pairs_values(Ordered, Tests),
    foldl(run, Tests, Outcomes, 0, Count),
    setup_call_cleanup(
        open(TapFile, write, Stream),
        ( forall(member(Outcome, Outcomes), write_outcome(Stream, Outcome)), format(Stream, "1..~d~n", [Count]) ),
        close(Stream)),
    aggregate_all(count, member(outcome(_, failed, _, _), Outcomes), Failed),
    (   Failed =:= 0
    ->  true
    ;   Code is 100 + min(99, Failed),
        halt(Code)
    ).

run(test(Unit, Name, Options), outcome(Number, Status, Unit, Name), Before, Number) :-
    Number is Before + 1,
    (   member(blocked(_), Options)
    ->  Status = skipped
    ;   catch(run_tests(Unit:Name), _, fail)
    ->  Status = passed
    ;   format("FAIL ~w:~w~n", [Unit, Name]),
        Status = failed
    ).

write_outcome(Stream, outcome(Number, passed, Unit, Name)) :- format(Stream, "ok ~d - ~w:~w~n", [Number, Unit, Name]).
write_outcome(Stream, outcome(Number, failed, Unit, Name)) :- format(Stream, "not ok ~d - ~w:~w~n", [Number, Unit, Name]).
write_outcome(Stream, outcome(Number, skipped, Unit, Name)) :- format(Stream, "ok ~d - ~w:~w # SKIP~n", [Number, Unit, Name]).
