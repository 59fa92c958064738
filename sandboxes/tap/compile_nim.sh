# Recipe of Nim: build a program that runs the tests of $TEST and then writes the TAP, and run it.
name=$(basename "$TEST" .nim)
printf 'import tap\nimport %s\nfinish()\n' "$name" > "$BUILD/main.nim"
if ! nim compile --hints:off --warnings:off --skipParentCfg --nimcache:"$BUILD/cache" --path:"$RUNNER" --path:src \
    --path:"$(dirname "$TEST")" --out:"$BUILD/program" "$BUILD/main.nim" > "$BUILD/log" 2>&1; then
  echo "ERROR $TEST doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
"$BUILD/program"
