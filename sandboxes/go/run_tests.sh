#!/bin/sh
# Run all Go tests of the module in the current directory.
#     run_tests.sh [REPORT NONCE_FILE]
# With a report: `go test -json` events go there, closed by an event of our own with the seal, made of the nonce, whose
# file is removed before anything is built, and of all lines before it. Without: go's own short text. -count=1 forbids a cached result; vet is left to the
# agent. The exit code is that of `go test`.
# The image's cache of the standard library, if there is one, by links: a cache must be writable.
if [ -d /usr/local/go-cache ] && [ -n "${GOCACHE:-}" ] && [ ! -e "$GOCACHE" ]; then
  cp -rs /usr/local/go-cache "$GOCACHE" 2>/dev/null || rm -rf "$GOCACHE"
fi
if [ -n "${1:-}" ]; then
  IFS= read -r nonce < "$2" && rm -f "$2" || exit 1
  # In a variable, which nothing that a test left running can write to.
  events=$(go test -json -exec "sh $(dirname "$0")/run_binary.sh" -count=1 -vet=off ./...)
  code=$?
  seal=$(printf '%s\n%s\n' "$nonce" "$events" | sha256sum | cut -d ' ' -f 1)
  printf '%s\n{"Action":"end","Seal":"%s"}\n' "$events" "$seal" > "$1"
  exit $code
fi
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
go test -count=1 -vet=off ./... > "$output" 2>&1
code=$?
grep -v '\[no test files\]$' "$output" | head -n 60
exit $code
