# Recipe of Ada: build $TEST, a program that prints TAP, with the units in src/ that it needs, and run it.
# gnatmake leaves the binder's files where it's called.
if ! (root=$PWD && cd "$BUILD" && gnatmake -q -g -gnata -I"$root/src" -o program "$root/$TEST" > log 2>&1); then
  echo "ERROR $TEST doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
"$BUILD/program" >&3
