# Recipe of Pascal: build a program that runs the tests which the unit $TEST registers, and run it.
name=$(basename "$TEST" .pas)
printf 'program runner;\nuses %s, taprunner;\nbegin\n  RunTap;\nend.\n' "$name" > "$BUILD/runner.pas"
if ! fpc -v0 -vew -gl -Fu"$RUNNER" -Fu"$(dirname "$TEST")" -Fusrc -FU"$BUILD" -o"$BUILD/program" "$BUILD/runner.pas" > "$BUILD/log" 2>&1
then
  echo "ERROR $TEST doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
"$BUILD/program"
