#!/bin/sh
# Compile all of src/ and tests/ together with RunTests and run the tests; arguments go to RunTests.
# If the sources don't compile, the compiler's first lines are printed and there is no report. Exit code: 0 all passed.
unset JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS CLASSPATH
build=$(mktemp -d) || exit 1
trap 'rm -rf "$build"' EXIT
find src tests -name '*.java' | LC_ALL=C sort | sed 's/.*/"&"/' > "$build/sources"
flags="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData -Xmx512m"
# shellcheck disable=SC2086
if ! javac $(printf -- '-J%s ' $flags) -encoding UTF-8 -nowarn -proc:none -d "$build/classes" \
    "$(dirname "$0")/RunTests.java" "@$build/sources" > "$build/log" 2>&1; then
  echo "ERROR the sources don't compile:"
  head -n 30 "$build/log"
  exit 1
fi
java $flags -cp "$build/classes" RunTests "$@"
