# Run a package's test binary for go, in the package's folder, while its test files are away: this shell alone holds what they
# say, and puts it back. Other packages may be building still, from files of their own.
count=0
for file in *_test.go; do
  text=$(cat "$file" 2> /dev/null && echo .)
  printf '%s' "${text%.}" | cmp -s - "$file" || continue # a variable can't hold all that a file can
  count=$((count + 1))
  eval "text_$count=\$text file_$count=\$file"
  rm -f "$file"
done
"$@"
code=$?
while [ "$count" -gt 0 ]; do
  eval "text=\$text_$count file=\$file_$count"
  # What somebody else put there stays, to be found.
  [ -e "$file" ] || [ -L "$file" ] || printf '%s' "${text%.}" > "$file"
  count=$((count - 1))
done
exit "$code"
