# Recipe of D: build a program that runs the unittest blocks of the module $SWE_RL_TEST, with all that it imports, and run it.
name=$(basename "$SWE_RL_TEST" .d)
printf 'static import %s;\nimport tap;\n\nint main()\n{\n    return runTests!(%s)();\n}\n' "$name" "$name" > "$SWE_RL_BUILD/main.d"
if ! ldc2 -g -unittest -checkaction=context -allinst -i -Isrc -I"$(dirname "$SWE_RL_TEST")" -I"$SWE_RL_RUNNER" -od="$SWE_RL_BUILD" -of="$SWE_RL_BUILD/program" \
    "$SWE_RL_BUILD/main.d" > "$SWE_RL_BUILD/log" 2>&1; then
  echo "ERROR $SWE_RL_TEST doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program"
