#!/bin/sh
# Run all tests of the cargo package in the current directory, unit and integration tests, without doc tests.
#     run_tests.sh [REPORT NONCE_FILE]
# Results come from the test binaries' own log files by way of run_binary.sh, not from what is printed.
# With a report: JSON lines {"id": "<binary>::<test>", "status"} closed by {"end": n, "nonce": ...}, NONCE_FILE is read and
# removed before anything is built; without: a line for each failure and a summary. The end mark is written only if cargo itself came to its end.
# Exit code: 0 all passed, 1 something failed or broke.
here=$(dirname "$0")
if [ -n "${1:-}" ]; then IFS= read -r nonce < "$2" && rm -f "$2" || exit 1; fi
SWE_RL_RECORDS=$(mktemp) || exit 1
export SWE_RL_RECORDS
output=$(mktemp) || exit 1
trap 'rm -f "$SWE_RL_RECORDS" "$output"' EXIT
# The environment wins over a runner that a configuration file in the repository names.
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=sh $here/run_binary.sh"
cargo test --offline --no-fail-fast --quiet --tests > "$output" 2>&1
code=$?
count=$(wc -l < "$SWE_RL_RECORDS")
broken=$(grep -cE '"status": "(failed|error)"' "$SWE_RL_RECORDS")
if [ -n "${1:-}" ]; then
  cat "$SWE_RL_RECORDS" > "$1"
  if [ "$count" -gt 0 ]; then printf '{"end": %d, "nonce": "%s"}\n' "$count" "$nonce" >> "$1"; fi
elif [ "$count" -eq 0 ] || { [ "$code" -ne 0 ] && [ "$broken" -eq 0 ]; }; then
  grep -v '^$' "$output" | head -n 60
elif [ "$broken" -gt 0 ]; then
  # libtest prints, for each failure, a header, the panic and the captured output.
  sed -n '/^---- /,/^failures:$/p' "$output" | grep -vE '^(failures:|note: run with|)$|RUST_BACKTRACE' | head -n 60
  sed -n 's/.*"id": "\([^"]*\)", "status": "error".*/ERROR \1: its process ended early/p' "$SWE_RL_RECORDS"
  echo "$broken failed, $((count - broken)) passed"
else
  echo "ok $count passed"
fi
[ "$code" -eq 0 ] && [ "$count" -gt 0 ] && [ "$broken" -eq 0 ]
