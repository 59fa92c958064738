#!/bin/sh
# Run each test file of a repository by a recipe and gather what they say in the Test Anything Protocol.
#     run_tests.sh DIRECTORY NAME RECIPE [REPORT NONCE_FILE [TEST_FILE ...]]
# NAME is a pattern for find, which isn't asked where files are given. RECIPE is run by sh once a file, in the repository: $TEST is the file, $TAP_FILE where its
# TAP goes, $BUILD a directory that stays from file to file, $RUNNER this folder. A file passes if its recipe ends with 0
# and its plan counts its tests, none of them "not ok". With a report: one subtest a file, closed by a plan and a comment
# with the nonce, whose file is removed before anything of the repository runs. Without: failures and a summary.
# Exit code: 0 all passed, 1 something failed or broke.
directory=$1 name=$2 recipe=$3 report=${4:-}
nonce=
if [ -n "$report" ]; then IFS= read -r nonce < "$5" && rm -f "$5" || exit 1; fi
RUNNER=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# What an agent or a tool left in these has no say in how a recipe finds its tools or its modules.
unset BASH_ENV ENV CDPATH
BUILD=$scratch/build
mkdir "$BUILD"
export BUILD RUNNER
all=$scratch/all.tap said=$scratch/said
echo "TAP version 14" > "$all"
: > "$said"
num_files=0 num_broken=0

# "whole" if the plan counts the lines of the outermost level, and "clean" if none of those is a failure.
judge() {
  awk '
    /^(not )?ok([^[:alnum:]_]|$)/ { count++; if (/^not/ != /# *[Tt][Oo][Dd][Oo]/ && !/# *[Ss][Kk][Ii][Pp]/) bad = 1 }
    /^1\.\.[0-9]+/ { plan = substr($0, 4) + 0 }
    END { print (count > 0 && plan == count ? "whole" : "broken"), (bad ? "failed" : "clean") }
  ' "$1"
}

if [ $# -gt 5 ]; then
  shift 5
  printf '%s\n' "$@" > "$scratch/files"
else
  find "$directory" -name "$name" -type f 2> "$scratch/missing" | LC_ALL=C sort > "$scratch/files"
fi
while IFS= read -r TEST; do
  export TEST
  num_files=$((num_files + 1))
  TAP_FILE=$scratch/$num_files.tap
  export TAP_FILE
  : > "$TAP_FILE"
  sh -c "$recipe" > "$scratch/log" 2>&1 < /dev/null
  code=$?
  verdict="not ok"
  case "$code $(judge "$TAP_FILE")" in
    "0 whole clean") verdict=ok ;;
    *failed) ;;
    *) echo "ERROR $TEST ended early" >> "$said" ;;
  esac
  if [ "$verdict" != ok ]; then
    num_broken=$((num_broken + 1))
    # A failure that the test program tells in its own words isn't told twice.
    grep -q '^FAIL ' "$scratch/log" || sed -n '/^not ok/,/^ok/{/^ok/d;/^1\.\./d;s/^not ok [0-9]* *-* */FAIL /;p;}' "$TAP_FILE" >> "$said"
    cat "$scratch/log" >> "$said"
  fi
  { echo "# Subtest: $TEST"; sed 's/^/    /' "$TAP_FILE"; echo "$verdict $num_files - $TEST"; } >> "$all"
done < "$scratch/files"
printf '1..%d\n# nonce %s\n' "$num_files" "$nonce" >> "$all"

num_passed=$(grep -c '^    ok' "$all")
if [ -n "$report" ]; then
  cat "$all" > "$report"
elif [ "$num_broken" -gt 0 ]; then
  head -n 60 "$said"
  echo "$(grep -c '^    not ok' "$all") failed, $num_passed passed"
elif [ "$num_files" -gt 0 ]; then
  echo "ok $num_passed passed"
else
  echo "run_tests: no $directory/**/$name below the current directory" >&2
fi
[ "$num_files" -gt 0 ] && [ "$num_broken" -eq 0 ]
