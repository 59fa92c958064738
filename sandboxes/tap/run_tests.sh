#!/bin/sh
# Run each test file of a repository by a recipe and gather what they say in the Test Anything Protocol.
#     run_tests.sh DIRECTORY NAME RECIPE [REPORT NONCE_FILE [TEST_FILE ...]]
# NAME is a pattern for find, which isn't asked where files are given. RECIPE is run by sh once a file, in the repository:
# $SWE_RL_TEST is the file, $SWE_RL_BUILD a directory that stays from file to file, $SWE_RL_RUNNER this folder, $SWE_RL_HIDDEN a
# list of all test files where they are to be away while they run. Its TAP goes to descriptor 3; a program that can't write there writes it to $TAP_FILE, at its end, and leaves with 100 plus the number of failed tests (99 at most),
# so that no process which outlives a test can change what the file says of it. A file passes if its recipe ends with 0 and
# its plan counts its tests, none of them "not ok". With a report: one subtest a file, closed by a plan and a comment with
# the seal, made of the nonce, whose file is removed before anything of the repository runs, and of all lines before it.
# Without: failures and a summary. Exit code: 0 all passed, 1 something failed or broke.
directory=$1 name=$2 recipe=$3 report=${4:-}
nonce=
if [ -n "$report" ]; then IFS= read -r nonce < "$5" && rm -f "$5" || exit 1; fi
SWE_RL_RUNNER=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# What an agent or a tool left in these has no say in how a recipe finds its tools or its modules.
unset BASH_ENV ENV CDPATH
SWE_RL_BUILD=$scratch/build
mkdir "$SWE_RL_BUILD"
export SWE_RL_BUILD SWE_RL_RUNNER
said=$scratch/said
# In variables, which nothing that a test left running can write to.
all="TAP version 14
"
: > "$said"
num_files=0 num_broken=0

# "whole" if the plan counts the lines of the outermost level, "clean" if none of those is a failure, and their number.
judge() {
  printf '%s\n' "$1" | awk '
    /^(not )?ok([^[:alnum:]_]|$)/ { count++; if (/^not/ != /# *[Tt][Oo][Dd][Oo]/ && !/# *[Ss][Kk][Ii][Pp]/) bad++ }
    /^1\.\.[0-9]+/ { plan = substr($0, 4) + 0 }
    END { print (count > 0 && plan == count ? "whole" : "broken"), (bad ? "failed" : "clean"), bad + 0 }
  '
}

# A TAP file's text, if it holds as many failures as its process has counted.
counted() {
  num_bad=$(judge "$1")
  num_bad=${num_bad##* }
  if [ "$num_bad" -gt 99 ]; then num_bad=99; fi
  if [ "$code" -eq "$((num_bad > 0 ? 100 + num_bad : 0))" ]; then
    printf '%s' "$1"
  else
    echo "Bail out! its process ended with code $code, which doesn't stand for $num_bad failures"
  fi
}

if [ $# -gt 5 ]; then
  shift 5
  printf '%s\n' "$@" > "$scratch/files"
else
  find "$directory" -name "$name" -type f 2> "$scratch/missing" | LC_ALL=C sort > "$scratch/files"
fi
if [ -n "$report" ]; then export SWE_RL_HIDDEN="$scratch/files"; fi
while IFS= read -r SWE_RL_TEST; do
  export SWE_RL_TEST
  num_files=$((num_files + 1))
  TAP_FILE=$scratch/$num_files.tap
  export TAP_FILE
  : > "$TAP_FILE"
  tap=$(sh -c "$recipe" 3>&1 > "$scratch/log" 2>&1 < /dev/null)
  code=$?
  if [ -s "$TAP_FILE" ]; then tap=$(counted "$(cat "$TAP_FILE")"); fi
  judged=$(judge "$tap")
  verdict="not ok"
  case "$code $judged" in
    "0 whole clean "*) verdict=ok ;;
    *" failed "*) ;;
    *) echo "ERROR $SWE_RL_TEST ended early" >> "$said" ;;
  esac
  if [ "$verdict" != ok ]; then
    num_broken=$((num_broken + 1))
    # A failure that the test program tells in its own words isn't told twice.
    grep -q '^FAIL ' "$scratch/log" || printf '%s\n' "$tap" | sed -n '/^not ok/,/^ok/{/^ok/d;/^1\.\./d;s/^not ok [0-9]* *-* */FAIL /;p;}' >> "$said"
    cat "$scratch/log" >> "$said"
  fi
  all="$all# Subtest: $SWE_RL_TEST
$(printf '%s\n' "$tap" | sed 's/^/    /')
$verdict $num_files - $SWE_RL_TEST
"
done < "$scratch/files"
all="${all}1..$num_files
"

num_passed=$(printf '%s' "$all" | grep -c '^    ok')
if [ -n "$report" ]; then
  printf '%s# seal %s\n' "$all" "$({ printf '%s\n' "$nonce"; printf '%s' "$all"; } | sha256sum | cut -d ' ' -f 1)" > "$report"
elif [ "$num_broken" -gt 0 ]; then
  head -n 60 "$said"
  echo "$(printf '%s' "$all" | grep -c '^    not ok') failed, $num_passed passed"
elif [ "$num_files" -gt 0 ]; then
  echo "ok $num_passed passed"
else
  echo "run_tests: no $directory/**/$name below the current directory" >&2
fi
[ "$num_files" -gt 0 ] && [ "$num_broken" -eq 0 ]
