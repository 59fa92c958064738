"""A report's seal: it holds for that report and that nonce alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.grade.seal import seal

LINES = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), min_size=1, max_size=5)
NONCES = st.text("0123456789abcdef", min_size=1, max_size=32)


def text_of(lines: list[bytes], last: bytes = b"end") -> bytes:
    return b"".join(line + b"\n" for line in [*lines, last])


@settings(deadline=None)
@given(LINES, LINES, NONCES, NONCES)
def test_another_line_or_another_nonce_makes_another_seal(
    lines: list[bytes], others: list[bytes], nonce: str, other: str
) -> None:
    assert (seal(nonce, text_of(lines)) == seal(nonce, text_of(others))) == (lines == others)
    assert (seal(nonce, text_of(lines)) == seal(other, text_of(lines))) == (nonce == other)


@settings(deadline=None)
@given(LINES, NONCES)
def test_the_last_line_isn_t_sealed_since_it_holds_the_seal(lines: list[bytes], nonce: str) -> None:
    assert seal(nonce, text_of(lines)) == seal(nonce, text_of(lines, b"another")) == seal(nonce, text_of(lines)[:-1])
