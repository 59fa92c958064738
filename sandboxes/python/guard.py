"""What keeps the code under test from its judges, as far as the interpreter can; run_tests.py loads this file.

    watch(owned)            frames and code of the tests aren't for code that doesn't say by name what it takes
    guarded(source, path)   the code of a test file, whose assertions know an object that equals everything

Names that a file spells are for the rules that read a patch; what is spelled nowhere is found out here, while it runs.
"""

import _ast
import posix
import sys
from _random import Random
from _thread import get_ident

STDLIB = (getattr(sys, "_stdlib_dir", None) or sys.base_prefix + "/lib/python3") + "/"
FROZEN = "<frozen "
# They describe the stack for logs and messages, or look at functions that they are given.
DESCRIBERS = ("traceback.", "logging/", "warnings.", "inspect.", "unittest/", "asyncio/", "types.", "typing.", "functools.")
FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
CODE = {"f_code", "f_locals", "__code__", "gi_code", "cr_code", "ag_code"}
CALLS = {
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._getframe", "sys._current_frames", "sys.settrace",
    "sys.setprofile",
}
MADE_UP = {"compile": 1, "code.__new__": 1}  # where these say the name of the file that they are of
NATIVE = {"ctypes", "_ctypes"}
ONLY_AST = 0x400
PLAIN = {int, float, complex, bool, str, bytes, type(None)}
HOLDERS = (list, tuple, set, frozenset)
NUM_PROBES = 12
MAX_HELD = 2000


def watch(owned):
    """`owned`: names of the files whose frames and code are the judges'."""
    here = sys._getframe
    busy = set()
    owned = frozenset(owned)

    def is_library(code):
        return code.co_filename.startswith((STDLIB, FROZEN))

    def asker(frame):
        """The first frame that isn't the import system's."""
        while frame.f_back and frame.f_code.co_filename.startswith((FROZEN, STDLIB + "importlib/")):
            frame = frame.f_back
        return frame

    def spells(code, word):
        return word in code.co_names or any(type(text) is str and word in text for text in code.co_consts)

    def is_owned(target):
        code = getattr(target, "f_code", None) or getattr(target, "__code__", None) or getattr(target, "gi_code", None)
        return code is not None and code.co_filename in owned

    def is_refused(event, arguments, frame):
        code = frame.f_code
        if code.co_filename in owned:
            return False
        if event == "import":
            code = asker(frame).f_code
            return not is_library(code) and code.co_filename not in owned and not spells(code, "ctypes")
        if event in MADE_UP:
            name = arguments[MADE_UP[event]]
            is_ours = type(name) is str and (name.startswith((STDLIB, FROZEN)) or is_of_tests(name))
            return is_ours and not is_library(asker(frame).f_code) and not is_what_lies_there(event, arguments[0], name)
        if event in CALLS:
            word = event.rpartition(".")[2]
            if code.co_filename == STDLIB + "inspect.py" and frame.f_back:  # for whom?
                code, word = frame.f_back.f_code, code.co_name
            return not is_library(code) and code.co_filename not in owned and not spells(code, word)
        target, name = arguments[:2]
        if is_library(code):
            is_describer = code.co_filename[len(STDLIB) :].startswith(DESCRIBERS) and "getmembers" not in code.co_name
            return name in CODE and not is_describer and is_owned(target)
        return not spells(code, name) and (name in FRAMES or is_owned(target))

    def is_watched(event, arguments):
        if event == "object.__getattr__":
            return arguments[1] in CODE or arguments[1] in FRAMES
        return event in CALLS or event in MADE_UP or (event == "import" and arguments[0] in NATIVE)

    def hook(event, arguments):
        if not is_watched(event, arguments):
            return
        me = get_ident()
        if me in busy:  # by what this function itself asks for
            return
        busy.add(me)
        try:
            is_bad = is_refused(event, arguments, here(1))
        finally:
            busy.discard(me)
        if is_bad:
            raise AttributeError(f"{event} {arguments[1] if event.startswith('object') else ''}: not for code under test")

    sys.addaudithook(hook)


def is_of_tests(name):
    """A file of the folder that grading restores."""
    return name.startswith(("tests/", "./tests/", posix.getcwd() + "/tests/"))


def is_what_lies_there(event, source, name):
    """What an import compiles: not made up."""
    if event != "compile" or type(source) is not bytes:
        return False
    try:
        with open(name, "rb") as file:
            return file.read() == source
    except OSError:
        return False


def guarded(source, path, name):
    """(code, the function that its module has to hold under `name`). Raises SyntaxError and its kin."""
    tree = compile(source, path, "exec", ONLY_AST, dont_inherit=True)
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, _ast.Assert):
            node.test = _with_probe(node.test, name)
            continue
        for field in node._fields:
            value = getattr(node, field, None)
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, (_ast.stmt, _ast.excepthandler)) or type(one).__name__ == "match_case":
                    stack.append(one)
    return compile(tree, path, "exec", dont_inherit=True), _comparison(has_any=b"ANY" in source)


def _with_probe(test, name):
    """`a == b` becomes a call that compares, and sees whether it means anything."""
    if isinstance(test, _ast.BoolOp):
        test.values = [_with_probe(value, name) for value in test.values]
    if not isinstance(test, _ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], _ast.Eq):
        return test
    place = {key: getattr(test, key) for key in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    function = _ast.Name(id=name, ctx=_ast.Load(), **place)
    return _ast.Call(func=function, args=[test.left, test.comparators[0]], keywords=[], **place)


def _comparison(has_any):
    """`has_any`: the test file speaks of unittest.mock's ANY."""

    def is_same(left, right):
        same = left == right
        if _is_plain(left) and _is_plain(right):
            return same
        for one, other in ((left, right), (right, left)):
            if same and not _is_of_tests_own_kind(one, has_any) and _equals_all(one, other):
                raise AssertionError("compares equal to everything")
        return same

    return is_same


def _leaves(value):
    """What a value of the language's own types holds, down to what isn't a list or the like; the first so many."""
    stack, count = [value], 0
    while stack and count < MAX_HELD:
        one = stack.pop()
        count += 1
        if type(one) is dict:
            stack += [*one.keys(), *one.values()]
        elif type(one) in HOLDERS:
            stack += one
        else:
            yield one


def _is_plain(value):
    """Of the language's own types, down to what it holds."""
    return all(type(one) in PLAIN for one in _leaves(value))


def _is_of_tests_own_kind(value, has_any):
    """Does something in it compare as the tests themselves say?"""
    for one in _leaves(value):
        code = getattr(getattr(type(one), "__eq__", None), "__code__", None)
        name = getattr(code, "co_filename", "")
        if is_of_tests(name) or (has_any and name == STDLIB + "unittest/mock.py" and type(one).__name__ == "_ANY"):
            return True
    return False


def _equals_all(one, other):
    if _is_plain(one):
        return False
    groups = [[object()], *_probes(other)]
    return any(all(_holds_equal(one, probe) for probe in group) for group in groups if group)


def _holds_equal(one, other):
    try:
        return bool(one == other)
    except Exception:  # it refuses to be compared with such a thing
        return False


def _probes(value):
    """Groups of values that differ from this one, of its type: who equals all of a group equals anything."""
    random = Random()
    if type(value) is bool:
        yield [not value]
    elif type(value) in (int, float):
        reach = max(20, abs(value)) if abs(value) < 1e300 else 20  # not for the infinite
        steps = [1 + int(random.random() * reach) for _ in range(NUM_PROBES)]
        yield [value + (step if i % 2 else -step) for i, step in enumerate(steps)]
        yield [value + step * 1000003 for step in steps]
    elif type(value) in (str, bytes):
        words = [f"{random.random()}{value}" for _ in range(NUM_PROBES)]
        yield words if type(value) is str else [word.encode() for word in words]
    elif type(value) in (list, tuple) and len(value) < MAX_HELD:
        for place, held in enumerate(value[:20]):
            for probes in _probes(held):
                yield [type(value)([*value[:place], probe, *value[place + 1 :]]) for probe in probes]
    elif type(value) is dict:
        for key, held in list(value.items())[:20]:
            for probes in _probes(held):
                yield [value | {key: probe} for probe in probes]
    elif value is None:
        yield [0, "", [], False]
