"""The head and the tail of a stream."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.sandbox.capture import Capture


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_what_fits_is_kept_as_it_is(size: int) -> None:
    capture = Capture(1000)
    for _ in range(size):
        capture.feed(b"x")
    assert capture.data() == b"x" * size
    assert capture.truncated_bytes == 0


def test_what_does_not_fit_keeps_both_ends_and_names_the_middle() -> None:
    capture = Capture(1000)
    capture.feed(b"a" * 600)
    capture.feed(b"b" * 5000)
    capture.feed(b"c" * 600)
    assert len(capture.data()) <= 1000
    assert capture.data() == b"a" * 468 + b"\n[... 5264 bytes left out ...]\n" + b"c" * 468
    assert capture.truncated_bytes == 6200 - 2 * 468


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(min_value=1, max_value=600))
def test_kept_and_left_out_bytes_add_up_and_are_the_ends(chunks: list[bytes], limit: int) -> None:
    capture, whole = Capture(limit), b"".join(chunks)
    for chunk in chunks:
        capture.feed(chunk)
    data = capture.data()
    assert len(data) <= limit
    if len(whole) <= limit:
        assert (data, capture.truncated_bytes) == (whole, 0)
        return
    kept = len(whole) - capture.truncated_bytes
    head = kept // 2
    assert data.startswith(whole[:head])
    assert data.endswith(whole[len(whole) - (kept - head) :])
    assert 0 < kept <= limit
