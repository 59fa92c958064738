# Recipe of Fortran: link $TEST, a program that prints TAP, with all of src/ except main, and run it.
# The standard leaves it to the compiler to find out which module another needs: whatever compiles is compiled, again and
# again, until nothing is left or nothing more works. Objects stay in $BUILD from one test file to the next.
flags="-g -O1 -fcheck=all -J $BUILD -I $BUILD"
if [ ! -e "$BUILD/waiting" ]; then
  find src -name '*.f90' ! -name main.f90 | LC_ALL=C sort > "$BUILD/waiting"
fi
while [ -s "$BUILD/waiting" ]; do
  : > "$BUILD/still"
  : > "$BUILD/log"
  while IFS= read -r source; do
    gfortran $flags -c "$source" -o "$BUILD/$(echo "$source" | tr / _).o" >> "$BUILD/log" 2>&1 || echo "$source" >> "$BUILD/still"
  done < "$BUILD/waiting"
  if cmp -s "$BUILD/waiting" "$BUILD/still"; then
    echo "ERROR these don't compile: $(tr '\n' ' ' < "$BUILD/still")"
    head -n 30 "$BUILD/log"
    exit 1
  fi
  mv "$BUILD/still" "$BUILD/waiting"
done
if ! gfortran $flags "$TEST" $(find "$BUILD" -name '*.o') -o "$BUILD/program" > "$BUILD/log" 2>&1; then
  echo "ERROR $TEST doesn't compile:"
  head -n 30 "$BUILD/log"
  exit 1
fi
"$BUILD/program" >&3
