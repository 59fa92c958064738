"""What a container's shell is told, and how its answers are parted from a command's output."""

import subprocess

import pytest

from swe_rl.sandbox.capture import Tail
from swe_rl.sandbox.docker_stream import split_frames
from swe_rl.sandbox.shell_script import PRELUDE, TrailedStream, Trailer, command_line, is_too_long

WORD = "0123456789abcdef" * 2


def feed(chunks: list[bytes]) -> tuple[bytes, Trailer | None]:
    stream = TrailedStream(WORD)
    data = b"".join(stream.feed(chunk) for chunk in chunks)
    return data if stream.trailer else data + stream.rest(), stream.trailer


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_the_trailer_is_found_however_the_stream_is_cut(size: int) -> None:
    text = b"out\nput without end" + WORD.encode() + b" 3 1 2 5 6\n"
    data, trailer = feed([text[at : at + size] for at in range(0, len(text), size)])
    assert (data, trailer) == (b"out\nput without end", Trailer(3, 1, 2, 5, 6))


def test_the_word_in_the_output_hides_no_trailer() -> None:
    noise = b"X=" + WORD.encode() + b"\0" + WORD.encode() + b" 1 2\n" + WORD.encode()
    data, trailer = feed([noise + b"end" + WORD.encode() + b" 0 0 0 1 1\n"])
    assert (data, trailer) == (noise + b"end", Trailer(0, 0, 0, 1, 1))


def test_output_is_passed_on_at_once() -> None:
    stream = TrailedStream(WORD)
    assert stream.feed(b"one\n") == b"one\n"
    assert stream.feed(b"two" + WORD[:5].encode()) == b"two"
    assert stream.feed(b"!") == WORD[:5].encode() + b"!"


def test_output_that_is_no_trailer_is_output() -> None:
    for text in (b"plain\n", WORD.encode() + b" no numbers\n", WORD.encode()[:20], b"\xff" * 500):
        assert feed([text]) == (text, None)


def run(line: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["/bin/sh"], input=(PRELUDE + line).encode(), capture_output=True, timeout=30, check=False)


def test_a_command_keeps_its_words_and_its_status() -> None:
    words = ["printf", "%s|", "a b", "$HOME", "'", "new\nline", "*", ""]
    ended = run(command_line(words, "/", {"A": "x y"}, WORD, has_stdin=False))
    data, trailer = feed([ended.stdout])
    assert data == b"a b|$HOME|'|new\nline|*||"
    assert trailer is not None
    assert trailer.status == 0
    assert feed([ended.stderr])[1] == trailer


def test_commands_follow_one_another_with_nothing_left_between() -> None:
    lines = [command_line(["sh", "-c", f"cat; echo $A; exit {n}"], "/", {"A": str(n)}, WORD, False) for n in (3, 4)]
    first, _, second = run("".join(lines)).stdout.partition(b"\n" + WORD.encode())
    assert first == b"3"
    assert second.split(b"\n")[1:2] == [b"4"]


def test_a_missing_directory_and_a_missing_program_are_the_commands_failures() -> None:
    for words, cwd, status in ((["true"], "/no where", 126), (["no-such-program"], "/", 127)):
        ended = run(command_line(words, cwd, {}, WORD, has_stdin=False))
        _, trailer = feed([ended.stderr])
        assert trailer is not None
        assert trailer.status == status


@pytest.mark.parametrize(("words", "env"), [([], {}), (["a\0"], {}), (["a"], {"B": "\0"}), (["a"], {"B; id": "x"})])
def test_what_is_no_command_line_is_refused(words: list[str], env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no words|isn't a name"):
        command_line(words, "/", env, WORD, has_stdin=False)


def test_a_command_line_beyond_the_kernels_limits_is_known_before() -> None:
    assert is_too_long(["x" * 131_072])
    assert is_too_long(["x" * 100_000] * 11)
    assert not is_too_long(["x" * 131_071])


def test_frames_are_taken_apart_and_a_beginning_is_kept() -> None:
    data = b"\1\0\0\0\0\0\0\3out\2\0\0\0\0\0\0\3err\1\0\0\0\0\0\0\5hal"
    assert split_frames(data) == ([("stdout", b"out"), ("stderr", b"err")], b"\1\0\0\0\0\0\0\5hal")


def test_a_tail_says_where_what_it_holds_begins() -> None:
    tail = Tail(10)
    for _ in range(100):
        tail.feed(b"0123456789")
    data, begin = tail.read(0, 1000)
    assert begin + len(data) == 1000
    assert 980 <= begin <= 990
    assert tail.read(995, 3) == (b"567", 995)
    assert tail.read(5000, 3) == (b"", 1000)
