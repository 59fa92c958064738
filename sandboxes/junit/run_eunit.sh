# Recipe of Erlang: compile src/*.erl and tests/*_tests.erl, run the latter with EUnit, which writes a file a module.
if ! erlc +debug_info -o "$SWE_RL_BUILD" $(find src tests -name '*.erl' | LC_ALL=C sort) > "$SWE_RL_BUILD/log" 2>&1; then
  echo "ERROR the sources don't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
modules=$(find tests -name '*_tests.erl' -exec basename {} .erl \; | LC_ALL=C sort | paste -sd, -)
erl -noshell -noinput -boot no_dot_erlang -pa "$SWE_RL_BUILD" -eval "
  case eunit:test([$modules], [{report, {eunit_surefire, [{dir, os:getenv(\"SWE_RL_XML\")}]}}]) of
    ok -> halt(0);
    _ -> halt(1)
  end."
