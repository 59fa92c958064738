# Recipe of Pascal: build a program that runs the tests which the unit $SWE_RL_TEST registers, and run it.
name=$(basename "$SWE_RL_TEST" .pas)
printf 'program runner;\nuses %s, taprunner;\nbegin\n  RunTap;\nend.\n' "$name" > "$SWE_RL_BUILD/runner.pas"
if ! fpc -v0 -vew -gl -Fu"$SWE_RL_RUNNER" -Fu"$(dirname "$SWE_RL_TEST")" -Fusrc -FU"$SWE_RL_BUILD" -o"$SWE_RL_BUILD/program" "$SWE_RL_BUILD/runner.pas" > "$SWE_RL_BUILD/log" 2>&1
then
  echo "ERROR $SWE_RL_TEST doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program"
