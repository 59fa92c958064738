# Recipe of Erlang: compile src/*.erl and tests/*_tests.erl, run the latter with EUnit, which writes a file a module.
if ! erlc +debug_info -o "$BUILD" $(find src tests -name '*.erl' | LC_ALL=C sort) > "$BUILD/log" 2>&1; then
  echo "ERROR the sources don't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
modules=$(find tests -name '*_tests.erl' -exec basename {} .erl \; | LC_ALL=C sort | paste -sd, -)
erl -noshell -noinput -boot no_dot_erlang -pa "$BUILD" -eval "
  case eunit:test([$modules], [{report, {eunit_surefire, [{dir, os:getenv(\"XML_DIR\")}]}}]) of
    ok -> halt(0);
    _ -> halt(1)
  end."
