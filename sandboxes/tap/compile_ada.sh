# Recipe of Ada: build $SWE_RL_TEST, a program that prints TAP, with the units in src/ that it needs, and run it.
# gnatmake leaves the binder's files where it's called.
if ! (root=$PWD && cd "$SWE_RL_BUILD" && gnatmake -q -g -gnata -I"$root/src" -o program "$root/$SWE_RL_TEST" > log 2>&1); then
  echo "ERROR $SWE_RL_TEST doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program" >&3
