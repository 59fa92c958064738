#!/bin/sh
# Run one libtest binary for cargo and append a JSON line for each of its tests to $SWE_RL_RECORDS.
# A test that the binary lists and doesn't log (its process left early, or the harness was replaced) is an error.
binary=$1
shift
name=$(basename "$binary")
log=$(mktemp) && listed=$(mktemp) || exit 1
"$binary" --list --format terse 2>/dev/null | sed -n 's/: test$//p' > "$listed"
if [ ! -s "$listed" ]; then
  # No tests, or no libtest: cargo's own run decides.
  "$binary" "$@"
  exit
fi
"$binary" "$@" --logfile "$log"
code=$?
# A log line is "ok NAME", "failed NAME", "ignored NAME" or "ignored: REASON NAME"; names are paths of identifiers.
awk -v binary="${name%-*}" '
  FILENAME == ARGV[1] { sub(/:$/, "", $1); logged[$NF] = $1; next }
  {
    status = "error"
    if (logged[$0] == "ok") status = "passed"
    if (logged[$0] == "failed") status = "failed"
    if (logged[$0] == "ignored") status = "skipped"
    if (status == "error") missing = 1
    printf "{\"id\": \"%s::%s\", \"status\": \"%s\"}\n", binary, $0, status
  }
  END { exit missing }
' "$log" "$listed" >> "$SWE_RL_RECORDS"
missing=$?
rm -f "$log" "$listed"
[ "$code" -ne 0 ] && exit "$code"
exit $missing
