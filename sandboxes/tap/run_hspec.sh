# Recipe of Haskell: interpret a program that runs the specification in $SWE_RL_TEST. A module is searched in the test's folder,
# in src/, and here.
name=$(basename "$SWE_RL_TEST" .hs)
printf 'module Main (main) where\n\nimport qualified %s\nimport qualified Tap\n\nmain :: IO ()\nmain = Tap.run %s.spec\n' "$name" "$name" \
  > "$SWE_RL_BUILD/Main.hs"
runghc -i"$SWE_RL_RUNNER:$(dirname "$SWE_RL_TEST"):tests:src" "$SWE_RL_BUILD/Main.hs"
