## Writes the outcomes of std/unittest as TAP to $TAP_FILE and failures to stdout. The program that the recipe makes imports
## this module, then the test file, and calls `finish`: a process that ends early leaves no TAP.
import std/[os, strutils, unittest]

type Tap = ref object of OutputFormatter
  lines: seq[string]
  failed: int
  problem: string

let
  tap = Tap()
  path = getEnv("TAP_FILE")
delEnv("TAP_FILE")

method testStarted*(formatter: Tap, testName: string) =
  formatter.problem = ""

method failureOccurred*(formatter: Tap, checkpoints: seq[string], stackTrace: string) =
  formatter.problem = checkpoints.join(" ").splitWhitespace.join(" ")

method testEnded*(formatter: Tap, testResult: TestResult) =
  let
    suite = if testResult.suiteName == "": "" else: testResult.suiteName & " "
    name = suite & testResult.testName
    status = if testResult.status == TestStatus.FAILED: "not ok" else: "ok"
    skip = if testResult.status == TestStatus.SKIPPED: " # SKIP" else: ""
  formatter.lines.add(status & " " & $(formatter.lines.len + 1) & " - " & name & skip)
  if testResult.status == TestStatus.FAILED:
    formatter.failed.inc
    echo "FAIL ", name, ": ", formatter.problem

proc finish*() =
  writeFile(path, tap.lines.join("\n") & "\n1.." & $tap.lines.len & "\n")
  quit(if tap.failed == 0: 0 else: 100 + min(99, tap.failed))

addOutputFormatter(tap)
