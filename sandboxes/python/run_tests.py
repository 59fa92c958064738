"""Run `test_*` functions of a repository and report each; started as `python3 -I -B -S run_tests.py`.

    run_tests.py [--report FILE NONCE_FILE] [TEST_FILE ...]         (default: every tests/**/test_*.py below here)

The tests run in a forked child, so that code which leaves the process early can't look like success: the parent alone
writes the report. Behind each file's tests the child runs one that must fail, and reports it with a word of that file
and the number of tests so far; the run is complete only if all these came as they should, so results that the child's
other code wrote into the pipe, or turned to passes, spoil the report. With a report the test files are away while tests
run; guard.py keeps their frames, and tells what equals everything. With --report: JSON lines
{"id", "status", "message"} closed by {"end": n, "seal": …}; NONCE_FILE is read and removed before any test. Without:
one line for each failure and a summary. Exit code: 0 all passed, 1 something failed or broke, 2 nothing to run or bad
usage. No module that is written in Python is imported: a start costs about as much as the bare interpreter. It isn't a sandbox: code
that walks up the stack finds this code.
"""

import builtins
import posix
import sys

try:
    from _sha2 import sha256
except ImportError:  # before Python 3.12
    from _sha256 import sha256

__builtins__ = dict(builtins.__dict__)  # what a test puts in the place of a built-in function isn't for this code
KEY_BYTES = 16
MESSAGE_LIMIT = 600
ESCAPES = {i: f"\\u{i:04x}" for i in range(32)} | {34: '\\"', 92: "\\\\", 127: "\\u007f"}


def find_test_files(folder):
    found = []
    try:
        entries = sorted(posix.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return found
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            found += find_test_files(entry.path)
        elif entry.name.startswith("test_") and entry.name.endswith(".py"):
            found.append(entry.path)
    return found


def describe(error, test_file, source):
    """One line: the exception, and the line of the repository that raised it."""
    place = None
    trace = error.__traceback__
    while trace is not None:
        name = relative(trace.tb_frame.f_code.co_filename)
        if not name.startswith(("/", "<")):
            place = (name, trace.tb_lineno)
        trace = trace.tb_next
    text = str(error)
    if isinstance(error, AssertionError) and text:
        return text
    if isinstance(error, AssertionError) and place and place[0] == test_file:
        return source.decode("utf-8", "replace").splitlines()[place[1] - 1].strip()
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{text} ({place[0]}:{place[1]})" if place else text


def outcome(error, test_file, source):
    if error is None:
        return "passed", ""
    if type(error).__name__ in ("SkipTest", "Skipped"):
        return "skipped", str(error)
    try:
        message = describe(error, test_file, source)
    except Exception:
        message = type(error).__name__
    return "failed" if isinstance(error, AssertionError) else "error", message


def attempt(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a test are failures, not our end
        return error
    return None


def read_guard():
    folder = __file__.rpartition("/")[0]
    guard = type(sys)("guard")
    with open(f"{folder}/guard.py", encoding="utf-8") as file:
        exec(compile(file.read(), file.name, "exec", dont_inherit=True), guard.__dict__)
    return guard


def load(path, guarded):
    """(source, code, what its module holds besides, error)"""
    source, word = b"", f"same {posix.urandom(KEY_BYTES).hex()}"
    try:
        with open(path, "rb") as file:
            source = file.read()
        code, same = guarded(source, path, word)
        return source, code, {word: same}, None
    except Exception as error:
        return source, None, {}, error


def module_name(path):
    return path[:-3].replace("/", ".")


def run_file(path, source, code, held, error, emit):
    module = type(sys)(module_name(path))
    module.__file__ = path
    module.__builtins__ = builtins
    module.__dict__.update(held)
    sys.modules[module.__name__] = module
    if error is None:
        error = attempt(exec, code, module.__dict__)
    if error is not None:
        emit(path, *outcome(error, path, source))
        return
    for name, function in list(module.__dict__.items()):
        if name.startswith("test_") and type(function) is type(load):
            emit(f"{path}::{name}", *outcome(attempt(function), path, source))


def run_child(loaded, keys, pipe, watch, write=posix.write, leave=posix._exit, flush=(sys.stdout.flush, sys.stderr.flush)):
    """Never returns. Records go through the pipe at once, so that the parent knows what ran before a crash."""
    count = 0

    def emit(test_id, status, message):
        nonlocal count
        count += 1
        fields = (field.translate(ESCAPES) for field in (status, test_id, message[:MESSAGE_LIMIT]))
        data = ("\t".join(fields) + "\n").encode("utf-8", "replace")
        while data:
            data = data[write(pipe, data) :]

    def must_fail(key):
        raise AssertionError(f"{key} {count}")

    RepositoryFinder.hidden = {module_name(path): (path, code, held) for path, _, code, held, error in loaded if not error}
    watch([__file__, *(path for path, *_ in loaded)])
    sys.modules["__main__"] = type(sys)("__main__")
    for (path, source, code, held, error), key in zip(loaded, keys, strict=True):
        run_file(path, source, code, held, error, emit)
        emit("", *outcome(attempt(must_fail, key), path, source))
        count -= 1
    for call in flush:
        attempt(call)
    leave(0)


def read_records(pipe, keys):
    """Up to the last file's closing record or the end of the pipe: (records, fields JSON-escaped; is it complete)."""
    data, records, num_closed = b"", [], 0
    while True:
        chunk = posix.read(pipe, 65536)
        data += chunk  # bounded by what the tests write, and they have a memory limit of their own
        *lines, data = data.split(b"\n")
        for line in lines:
            record = line.decode("utf-8", "replace").split("\t")
            if len(record) == 3 and record[1]:
                records.append(record)
                continue
            if record != ["failed", "", f"{keys[num_closed]} {len(records)}"]:
                return records, False
            num_closed += 1
            if num_closed == len(keys):
                return records, True
        if not chunk:
            return records, False


class RepositoryFinder:
    """Finds the repository's modules before the standard library is searched, and never under one of its names."""

    search = sys.meta_path[-1].find_spec
    spec = type(sys.__spec__)
    hidden = {}  # test files, which import each other

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.hidden:
            return cls.spec(name, cls, origin=cls.hidden[name][0])
        if path is None and name not in sys.stdlib_module_names:
            return cls.search(name, ["", "src"])
        return None

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        module.__file__, code, held = cls.hidden[module.__name__]
        module.__dict__.update(held)
        exec(code, module.__dict__)


def relative(path):
    here = posix.getcwd() + "/"
    path = path[len(here) :] if path.startswith(here) else path
    return path[2:] if path.startswith("./") else path


def take_nonce(path):
    with open(path, encoding="ascii") as file:
        nonce = file.read().strip()
    posix.unlink(path)
    return nonce


def hide(loaded):
    """Takes the test files away as long as code runs that could read them."""
    for path, source, *_ in loaded:
        if source:
            posix.unlink(path)


def put_back(loaded):
    for path, source, *_ in loaded:
        if source:
            attempt(write_new, path, source)  # what somebody else put there stays, to be found


def write_new(path, data):
    with open(path, "xb") as file:
        file.write(data)


def write_report(path, nonce, records, complete):
    lines = [f'{{"id": "{test_id}", "status": "{status}", "message": "{text}"}}\n' for status, test_id, text in records]
    if complete:
        seal = sha256("".join([nonce, "\n", *lines]).encode()).hexdigest()
        lines.append(f'{{"end": {len(records)}, "seal": "{seal}"}}\n')
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def print_summary(records, complete, wait_status):
    counts = {}
    for status, test_id, text in records:
        counts[status] = counts.get(status, 0) + 1
        if status in ("failed", "error"):
            label = "FAIL" if status == "failed" else "ERROR"
            text = text.replace("\\u000a", "\n  ").replace("\\u0009", "\t").replace('\\"', '"').replace("\\\\", "\\")
            print(f"{label} {test_id.rpartition('::')[2]}: {text}")
    if not complete:
        ended = f"signal {posix.WTERMSIG(wait_status)}" if posix.WIFSIGNALED(wait_status) else "an early exit"
        print(f"ERROR the test process ended by {ended} after {len(records)} tests")
    order = ("failed", "error", "passed", "skipped")
    summary = ", ".join(f"{counts[status]} {status}" for status in order if counts.get(status))
    is_good = complete and not (counts.get("failed") or counts.get("error"))
    print(("ok " if is_good else "") + summary)


def main(arguments):
    report, nonce = None, ""
    if arguments[:1] == ["--report"]:
        if len(arguments) < 3:
            sys.stderr.write("run_tests: --report needs a file name and a nonce's file\n")
            return 2
        report, nonce, arguments = arguments[1], take_nonce(arguments[2]), arguments[3:]
    files = [relative(path) for path in arguments] or find_test_files("tests")
    if not files:
        sys.stderr.write("run_tests: no tests/**/test_*.py below the current directory\n")
        return 2
    guard = read_guard()
    loaded = [(path, *load(path, guard.guarded)) for path in files]
    sys.meta_path.insert(0, RepositoryFinder)
    keys = [posix.urandom(KEY_BYTES).hex() for _ in files]
    reading, writing = posix.pipe()
    sys.stdout.flush()
    if report is not None:
        hide(loaded)
    child = posix.fork()
    if child == 0:
        posix.close(reading)
        del sys.argv[1:]
        run_child(loaded, keys, writing, guard.watch)
    posix.close(writing)
    records, complete = read_records(reading, keys)
    posix.close(reading)
    _, wait_status = posix.waitpid(child, 0)
    complete = complete and wait_status == 0
    if report is not None:
        put_back(loaded)
    if report is not None:
        write_report(report, nonce, records, complete)
    else:
        print_summary(records, complete, wait_status)
    statuses = [record[0] for record in records]
    return 0 if complete and statuses and not {"failed", "error"} & set(statuses) else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    sys.exit(main(sys.argv[1:]))
