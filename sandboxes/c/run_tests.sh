#!/bin/sh
# Build and run each tests/test_*.c or tests/test_*.cpp, linked with all of src/ except main.
#     run_tests.sh LANGUAGE [REPORT NONCE_FILE]
# The repository's own Makefile isn't asked: what is compiled and run is decided here. A test program writes TAP to the
# file that $TAP_FILE names (tests/tap.h does) and a line for each failure to its standard output.
# With a report: one TAP subtest a program, closed by a plan and a comment with the nonce, whose file is
# removed before anything is built. Exit code: 0 all passed.
language=$1
report=${2:-}
case $language in
  c) suffix=c compile="cc -std=c11" ;;
  cpp) suffix=cpp compile="c++ -std=c++17" ;;
  *) echo "run_tests: language is '$language', expected c or cpp" >&2; exit 2 ;;
esac
nonce=
if [ -n "$report" ]; then IFS= read -r nonce < "$3" && rm -f "$3" || exit 1; fi
build=$(mktemp -d) || exit 1
trap 'rm -rf "$build"' EXIT
tap=$build/all.tap
echo "TAP version 14" > "$tap"
flags="-g -O1 -Wall -Iinclude -Isrc -Itests -D_POSIX_C_SOURCE=200809L"
count=0 broken=0 passed=0

# Objects are built once and linked into every test program.
objects=
for source in $(find src -name "*.$suffix" ! -name "main.$suffix" | LC_ALL=C sort); do
  object=$build/$(echo "$source" | tr / _).o
  if $compile $flags -c "$source" -o "$object" > "$build/log" 2>&1; then
    objects="$objects $object"
  else
    echo "ERROR $source doesn't compile:"
    head -n 30 "$build/log"
    exit 1
  fi
done

for test in $(find tests -name "test_*.$suffix" | LC_ALL=C sort); do
  count=$((count + 1))
  verdict="not ok"
  : > "$build/one.tap"
  if ! $compile $flags "$test" $objects -o "$build/one" -lm > "$build/log" 2>&1; then
    echo "ERROR $test doesn't compile:"
    head -n 30 "$build/log"
  elif TAP_FILE=$build/one.tap "$build/one" && grep -q '^1\.\.[1-9]' "$build/one.tap"; then
    verdict="ok"
  elif ! grep -q '^not ok' "$build/one.tap"; then
    echo "ERROR $test ended early"
  fi
  [ "$verdict" = ok ] || broken=$((broken + 1))
  passed=$((passed + $(grep -c '^ok' "$build/one.tap")))
  { echo "# Subtest: $test"; sed 's/^/    /' "$build/one.tap"; echo "$verdict $count - $test"; } >> "$tap"
done
printf '1..%d\n# nonce %s\n' "$count" "$nonce" >> "$tap"

if [ -n "$report" ]; then
  cat "$tap" > "$report"
elif [ "$broken" -gt 0 ]; then
  echo "$(grep -c '^    not ok' "$tap") failed, $passed passed"
elif [ "$count" -gt 0 ]; then
  echo "ok $passed passed"
else
  echo "run_tests: no tests/test_*.$suffix below the current directory" >&2
fi
[ "$count" -gt 0 ] && [ "$broken" -eq 0 ]
