# Recipe of C and C++: link $TEST with all of src/ except main, and run it. The repository's own Makefile isn't asked.
#     compile_c.sh c|cpp
# Objects are built once, by the first test file, and stay in $BUILD. The program writes its TAP to $TAP_FILE itself, as
# tap.h has it, which lies here and may lie in the repository.
case $1 in
  c) suffix=c compile="cc -std=c11" ;;
  cpp) suffix=cpp compile="c++ -std=c++17" ;;
  *) echo "compile_c: language is '$1', expected c or cpp" >&2; exit 2 ;;
esac
flags="-g -O1 -Wall -Iinclude -Isrc -Itests -I$RUNNER -D_POSIX_C_SOURCE=200809L"

fail() {
  echo "ERROR $1 doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
}

if [ ! -e "$BUILD/sources" ]; then
  find src -name "*.$suffix" ! -name "main.$suffix" | LC_ALL=C sort > "$BUILD/sources"
fi
objects=
while IFS= read -r source; do
  object=$BUILD/$(echo "$source" | tr / _).o
  [ -e "$object" ] || $compile $flags -c "$source" -o "$object" > "$BUILD/log" 2>&1 || fail "$source"
  objects="$objects $object"
done < "$BUILD/sources"
$compile $flags "$TEST" $objects -o "$BUILD/program" -lm > "$BUILD/log" 2>&1 || fail "$TEST"
"$BUILD/program"
