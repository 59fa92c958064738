# Recipe of D: build a program that runs the unittest blocks of the module $TEST, with all that it imports, and run it.
name=$(basename "$TEST" .d)
printf 'static import %s;\nimport tap;\n\nint main()\n{\n    return runTests!(%s)();\n}\n' "$name" "$name" > "$BUILD/main.d"
if ! ldc2 -g -unittest -checkaction=context -allinst -i -Isrc -I"$(dirname "$TEST")" -I"$RUNNER" -od="$BUILD" -of="$BUILD/program" \
    "$BUILD/main.d" > "$BUILD/log" 2>&1; then
  echo "ERROR $TEST doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
"$BUILD/program"
