#!/bin/sh
# Run the PHPUnit tests below tests/ without any configuration of the repository.
#     run_tests.sh [REPORT NONCE_FILE]
# PHPUnit writes its JUnit report only when it comes to its end: a run without one failed, whatever its exit code says.
# With a report: that file, closed by a comment with the seal, made of the nonce, whose file is removed before any test, and
# of all lines before it. Without: a line for each failure and a summary. Exit code: 0 all passed.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
if [ -n "${1:-}" ]; then IFS= read -r nonce < "$2" && rm -f "$2" || exit 1; fi
# By a pipe into a variable, which nothing that a test left running can write to.
if [ -n "${1:-}" ]; then export SWE_RL_HIDDEN=1; fi
output=$(phpunit --no-configuration --bootstrap "$(dirname "$0")/away.php" --do-not-cache-result --colors=never --log-junit "$log" tests 2>&1)
code=$?
results=$(cat "$log")
if ! printf '%s\n' "$results" | grep -q '</testsuites>'; then
  echo "ERROR the test process ended early:"
  printf '%s\n' "$output" | head -n 30
  exit 1
fi
# "Tests: 4, Assertions: 3, Errors: 1, Failures: 2." against what the file holds now.
counted=$(printf '%s\n' "$output" | sed -n 's/^Tests: [0-9]*,//p' | grep -oE '(Errors|Failures): [0-9]+' | awk '{ sum += $2 } END { print sum + 0 }')
if [ "$counted" -ne "$(printf '%s\n' "$results" | grep -oE '<(error|failure) ' | wc -l)" ]; then
  echo "ERROR the results were changed: PHPUnit counted $counted failures"
  exit 1
fi
if [ -n "${1:-}" ]; then
  printf '%s\n<!-- seal %s -->\n' "$results" "$(printf '%s\n%s\n' "$nonce" "$results" | sha256sum | cut -d ' ' -f 1)" > "$1"
elif [ "$code" -eq 0 ]; then
  # "OK (3 tests, 5 assertions)"
  printf '%s\n' "$output" | sed -n 's/^OK (\([0-9]*\) test.*/ok \1 passed/p; s/^OK, but.*/&/p; s/^Tests: .*/&/p; s/^No tests executed!/&/p'
else
  # From the first numbered failure on: name, message, place.
  printf '%s\n' "$output" | sed -n '/^1) /,$p' | grep -vE '^(--|FAILURES!|ERRORS!|)$' | head -n 60
fi
[ "$code" -eq 0 ] && printf '%s\n' "$results" | grep -q '<testcase '
