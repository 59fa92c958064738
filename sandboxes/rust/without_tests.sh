# Run a program while no test file lies in the repository: of those there is only what was built into it, or read before.
#     without_tests.sh PROGRAM [ARGUMENT ...]
# $SWE_RL_HIDDEN names a file with their names, one a line; this shell alone holds what they say, and puts it back. Without that
# variable, which an agent's own run of the tests lacks, the program just runs.
if [ -z "${SWE_RL_HIDDEN:-}" ]; then exec "$@"; fi
count=0
while IFS= read -r file; do
  text=$(cat "$file" && echo .)
  printf '%s' "${text%.}" | cmp -s - "$file" || continue # a variable can't hold all that a file can
  count=$((count + 1))
  eval "text_$count=\$text file_$count=\$file"
  rm -f "$file"
done < "$SWE_RL_HIDDEN"
unset SWE_RL_HIDDEN text
"$@"
code=$?
while [ "$count" -gt 0 ]; do
  eval "text=\$text_$count file=\$file_$count"
  # What somebody else put there stays, to be found.
  [ -e "$file" ] || [ -L "$file" ] || printf '%s' "${text%.}" > "$file"
  count=$((count - 1))
done
exit "$code"
