# Recipe of Nim: build a program that runs the tests of $SWE_RL_TEST and then writes the TAP, and run it.
name=$(basename "$SWE_RL_TEST" .nim)
printf 'import tap\nimport %s\nfinish()\n' "$name" > "$SWE_RL_BUILD/main.nim"
if ! nim compile --hints:off --warnings:off --skipParentCfg --nimcache:"$SWE_RL_BUILD/cache" --path:"$SWE_RL_RUNNER" --path:src \
    --path:"$(dirname "$SWE_RL_TEST")" --out:"$SWE_RL_BUILD/program" "$SWE_RL_BUILD/main.nim" > "$SWE_RL_BUILD/log" 2>&1; then
  echo "ERROR $SWE_RL_TEST doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program"
