#!/bin/sh
# Run all tests of the cargo package in the current directory, unit and integration tests, without doc tests.
#     run_tests.sh [REPORT NONCE_FILE]
# Results come from the test binaries' own log files by way of run_binary.sh, not from what is printed.
# With a report: JSON lines {"id": "<binary>::<test>", "status"} closed by {"end": n, "seal": …}, made of the nonce,
# whose file is removed before anything is built, and of all lines before it. Without: a line for each failure and a summary.
# Exit code: 0 all passed, 1 something failed or broke.
here=$(dirname "$0")
if [ -n "${1:-}" ]; then IFS= read -r nonce < "$2" && rm -f "$2" || exit 1; fi
output=$(mktemp) || exit 1
trap 'rm -f "$output" "$output.files"' EXIT
if [ -n "${1:-}" ]; then
  find "$PWD/tests" -name '*.rs' -type f > "$output.files" 2> /dev/null
  export SWE_RL_HIDDEN="$output.files"
fi
# The environment wins over a runner that a configuration file in the repository names.
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=sh $here/run_binary.sh"
# By a pipe and in a variable, which nothing that a test left running can write to.
records=$(cargo test --offline --no-fail-fast --quiet --tests 5>&1 > "$output" 2>&1)
code=$?
count=$(printf '%s' "$records" | grep -c '')
broken=$(printf '%s\n' "$records" | grep -cE '"status": "(failed|error)"')
if [ -n "${1:-}" ]; then
  if [ "$count" -gt 0 ]; then
    seal=$(printf '%s\n%s\n' "$nonce" "$records" | sha256sum | cut -d ' ' -f 1)
    printf '%s\n{"end": %d, "seal": "%s"}\n' "$records" "$count" "$seal" > "$1"
  fi
elif [ "$count" -eq 0 ] || { [ "$code" -ne 0 ] && [ "$broken" -eq 0 ]; }; then
  grep -v '^$' "$output" | head -n 60
elif [ "$broken" -gt 0 ]; then
  # libtest prints, for each failure, a header, the panic and the captured output.
  sed -n '/^---- /,/^failures:$/p' "$output" | grep -vE '^(failures:|note: run with|)$|RUST_BACKTRACE' | head -n 60
  printf '%s\n' "$records" | sed -n 's/.*"id": "\([^"]*\)", "status": "error".*/ERROR \1: its process ended early/p'
  echo "$broken failed, $((count - broken)) passed"
else
  echo "ok $count passed"
fi
[ "$code" -eq 0 ] && [ "$count" -gt 0 ] && [ "$broken" -eq 0 ]
