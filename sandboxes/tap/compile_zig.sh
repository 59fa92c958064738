# Recipe of Zig: build the tests of $SWE_RL_TEST, which imports each src/NAME.zig as the module NAME, and run them.
# A module of src/ may import the others by their names, too.
names=$(find src -maxdepth 1 -name '*.zig' ! -name main.zig ! -name build.zig | LC_ALL=C sort)
dependencies= modules=
for source in $names; do dependencies="$dependencies --dep $(basename "$source" .zig)"; done
for source in $names; do modules="$modules $dependencies -M$(basename "$source" .zig)=$source"; done
zig test --test-runner "$SWE_RL_RUNNER/zig_test.zig" --global-cache-dir "${ZIG_GLOBAL_CACHE_DIR:-$SWE_RL_BUILD/global}" \
  --cache-dir "$SWE_RL_BUILD/cache" $dependencies -Mroot="$SWE_RL_TEST" $modules >&3
