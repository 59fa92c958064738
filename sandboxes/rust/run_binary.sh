#!/bin/sh
# Run one libtest binary for cargo and write a JSON line for each of its tests to descriptor 5, which the binary doesn't get.
# Its log comes by a pipe: what was written there can't be rewritten by a process that the binary leaves behind.
# A test that the binary lists and doesn't log (its process left early, or the harness was replaced), or logs in two ways,
# is an error.
binary=$1
shift
name=$(basename "$binary")
listed=$(mktemp) || exit 1
alone() { sh "$(dirname "$0")/without_tests.sh" "$binary" "$@"; } # its initialisers run whatever it's asked
alone --list --format terse 2>/dev/null 5>&- | sed -n 's/: test$//p' > "$listed"
if [ ! -s "$listed" ]; then
  rm -f "$listed"
  # No tests, or no libtest: cargo's own run decides.
  alone "$@" 5>&-
  exit
fi
exec 4>&1
# A log line is "ok NAME", "failed NAME", "ignored NAME" or "ignored: REASON NAME"; names are paths of identifiers.
# Ours behind them ends the reading, whoever still holds the pipe.
{ alone "$@" --logfile /dev/fd/3 3>&1 >&4 4>&- 5>&-; echo "end $?"; } | awk -v binary="${name%-*}" '
  FILENAME == ARGV[1] { names[++count] = $0; next }
  $1 == "end" && NF == 2 { code = $2; exit }
  {
    sub(/:$/, "", $1)
    if (!($NF in logged)) logged[$NF] = $1
    else if (logged[$NF] != $1) logged[$NF] = "contradicted"
  }
  END {
    for (number = 1; number <= count; number++) {
      status = "error"
      if (logged[names[number]] == "ok") status = "passed"
      if (logged[names[number]] == "failed") status = "failed"
      if (logged[names[number]] == "ignored") status = "skipped"
      if (status == "error") missing = 1
      printf "{\"id\": \"%s::%s\", \"status\": \"%s\"}\n", binary, names[number], status
    }
    exit code != 0 ? code : missing + 0
  }
' "$listed" - >&5
code=$?
rm -f "$listed"
exit "$code"
