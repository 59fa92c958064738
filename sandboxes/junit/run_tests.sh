#!/bin/sh
# Run the tests of a repository by a recipe whose framework writes JUnit XML, and gather its files in one report.
#     run_tests.sh RECIPE [REPORT NONCE_FILE]
# RECIPE is run by sh in the repository and puts its *.xml into $SWE_RL_XML; $SWE_RL_BUILD is a directory for what it builds, $SWE_RL_RUNNER
# this folder. A run passes if the recipe ends with 0 and reports a test. There is no report if the files hold other failures
# than the framework counts in its last words: something that a test left running rewrote them. With a report: all files within one element,
# closed by a comment with the seal, made of the nonce, whose file is removed before anything of the repository runs, and of
# all lines before it. Without: what the recipe says, and a summary. Exit code: 0 all passed, 1 something failed or broke.
recipe=$1 report=${2:-}
nonce=
if [ -n "$report" ]; then IFS= read -r nonce < "$3" && rm -f "$3" || exit 1; fi
SWE_RL_RUNNER=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
unset BASH_ENV ENV CDPATH
SWE_RL_BUILD=$scratch/build SWE_RL_XML=$scratch/xml
mkdir "$SWE_RL_BUILD" "$SWE_RL_XML"
export SWE_RL_BUILD SWE_RL_RUNNER SWE_RL_XML
# By a pipe into a variable, which nothing that a test left running can write to; so are the files.
said=$(sh -c "$recipe" 2>&1 < /dev/null)
code=$?
{
  echo '<testsuites>'
  # Each file's own declaration can't stand within the document.
  find "$SWE_RL_XML" -name '*.xml' -type f | LC_ALL=C sort | while IFS= read -r file; do sed 's/<?xml[^>]*?>//' "$file" && echo; done
  echo '</testsuites>'
} > "$scratch/all.xml"
all=$(cat "$scratch/all.xml")
num_tests=$(printf '%s\n' "$all" | grep -o '<testcase[ >]' | wc -l)
[ "$code" -eq 0 ] && [ "$num_tests" -eq 0 ] && code=1
# The last words of EUnit, OUnit and Crystal.
counted=$(printf '%s\n' "$said" | sed -nE '
  s/^ +Failed: ([0-9]+)\. .*/\1/p
  s/^FAILED: Cases: .* Errors: +([0-9]+) +Failures: +([0-9]+) .*/\1 \2/p
  s/^[0-9]+ examples, ([0-9]+) failures, ([0-9]+) errors, .*/\1 \2/p
' | awk '{ sum += $1 + $2 } END { print sum + 0 }')
num_bad=$(printf '%s\n' "$all" | grep -oE '<(failure|error)[ >]' | wc -l)
if [ "$num_tests" -eq 0 ]; then
  echo "ERROR no test was reported:"
  printf '%s\n' "$said" | head -n 60
elif [ "$counted" -ne "$num_bad" ]; then
  echo "ERROR $counted tests failed, but there are results of $num_bad"
  code=1
elif [ -n "$report" ]; then
  printf '%s\n<!-- seal %s -->\n' "$all" "$(printf '%s\n%s\n' "$nonce" "$all" | sha256sum | cut -d ' ' -f 1)" > "$report"
elif [ "$code" -eq 0 ]; then
  echo "ok $num_tests passed"
else
  printf '%s\n' "$said" | head -n 60
fi
[ "$code" -eq 0 ]
