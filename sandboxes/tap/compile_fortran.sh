# Recipe of Fortran: link $SWE_RL_TEST, a program that prints TAP, with all of src/ except main, and run it.
# The standard leaves it to the compiler to find out which module another needs: whatever compiles is compiled, again and
# again, until nothing is left or nothing more works. Objects stay in $SWE_RL_BUILD from one test file to the next.
flags="-g -O1 -fcheck=all -J $SWE_RL_BUILD -I $SWE_RL_BUILD"
if [ ! -e "$SWE_RL_BUILD/waiting" ]; then
  find src -name '*.f90' ! -name main.f90 | LC_ALL=C sort > "$SWE_RL_BUILD/waiting"
fi
while [ -s "$SWE_RL_BUILD/waiting" ]; do
  : > "$SWE_RL_BUILD/still"
  : > "$SWE_RL_BUILD/log"
  while IFS= read -r source; do
    gfortran $flags -c "$source" -o "$SWE_RL_BUILD/$(echo "$source" | tr / _).o" >> "$SWE_RL_BUILD/log" 2>&1 || echo "$source" >> "$SWE_RL_BUILD/still"
  done < "$SWE_RL_BUILD/waiting"
  if cmp -s "$SWE_RL_BUILD/waiting" "$SWE_RL_BUILD/still"; then
    echo "ERROR these don't compile: $(tr '\n' ' ' < "$SWE_RL_BUILD/still")"
    head -n 30 "$SWE_RL_BUILD/log"
    exit 1
  fi
  mv "$SWE_RL_BUILD/still" "$SWE_RL_BUILD/waiting"
done
if ! gfortran $flags "$SWE_RL_TEST" $(find "$SWE_RL_BUILD" -name '*.o') -o "$SWE_RL_BUILD/program" > "$SWE_RL_BUILD/log" 2>&1; then
  echo "ERROR $SWE_RL_TEST doesn't compile:"
  head -n 30 "$SWE_RL_BUILD/log"
  exit 1
fi
sh "$SWE_RL_RUNNER/without_tests.sh" "$SWE_RL_BUILD/program" >&3
