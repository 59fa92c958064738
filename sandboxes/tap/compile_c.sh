# Recipe of C and C++: link $SWE_RL_TEST with all of src/ except main, and run it. The repository's own Makefile isn't asked.
#     compile_c.sh c|cpp
# Objects are built once, by the first test file, and stay in $SWE_RL_BUILD. The program writes its TAP to $TAP_FILE itself, as
# tap.h has it, which lies here and may lie in the repository.
case $1 in
  c) suffix=c compile="cc -std=c11" ;;
  cpp) suffix=cpp compile="c++ -std=c++17" ;;
  *) echo "compile_c: language is '$1', expected c or cpp" >&2; exit 2 ;;
esac
flags="-g -O1 -Wall -Iinclude -Isrc -Itests -I$SWE_RL_RUNNER -D_POSIX_C_SOURCE=200809L"

fail() {
  echo "ERROR $1 doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
}

if [ ! -e "$SWE_RL_BUILD/sources" ]; then
  find src -name "*.$suffix" ! -name "main.$suffix" | LC_ALL=C sort > "$SWE_RL_BUILD/sources"
fi
objects=
while IFS= read -r source; do
  object=$SWE_RL_BUILD/$(echo "$source" | tr / _).o
  [ -e "$object" ] || $compile $flags -c "$source" -o "$object" > "$SWE_RL_BUILD/log" 2>&1 || fail "$source"
  objects="$objects $object"
done < "$SWE_RL_BUILD/sources"
$compile $flags "$SWE_RL_TEST" $objects -o "$SWE_RL_BUILD/program" -lm > "$SWE_RL_BUILD/log" 2>&1 || fail "$SWE_RL_TEST"
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program"
