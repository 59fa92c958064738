# Recipe of OCaml: build each tests/test_*.ml with dune, run it, and let OUnit write its results.
programs=$(find tests -name 'test_*.ml' | LC_ALL=C sort | sed 's/\.ml$/.exe/')
[ -n "$programs" ] || exit 1
if ! dune build --root . --build-dir "$SWE_RL_BUILD" --cache disabled --display quiet $programs > "$SWE_RL_BUILD.log" 2>&1; then
  echo "ERROR the sources don't build:"
  head -n 30 "$SWE_RL_BUILD.log"
  exit 1
fi
code=0
for program in $programs; do
  name=$(basename "$program" .exe)
  "$SWE_RL_BUILD/default/$program" -runner sequential -no-cache-filename -no-output-file \
    -output-junit-file "$SWE_RL_XML/$name.xml" 2>&1 || code=1
  [ -s "$SWE_RL_XML/$name.xml" ] || { echo "ERROR $program ended early"; code=1; }
done
exit $code
