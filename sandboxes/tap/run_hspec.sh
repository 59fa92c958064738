# Recipe of Haskell: interpret a program that runs the specification in $TEST. A module is searched in the test's folder,
# in src/, and here.
name=$(basename "$TEST" .hs)
printf 'module Main (main) where\n\nimport qualified %s\nimport qualified Tap\n\nmain :: IO ()\nmain = Tap.run %s.spec\n' "$name" "$name" \
  > "$BUILD/Main.hs"
runghc -i"$RUNNER:$(dirname "$TEST"):tests:src" "$BUILD/Main.hs"
