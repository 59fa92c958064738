"""Tokens in, tokens out: prompts, observations, and the segment of every sampled token."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from swe_rl.agent.dialects.hermes import Hermes
from swe_rl.agent.render import Message, ParsedCompletion, Renderer, Result
from swe_rl.agent.vocabulary import Vocabulary
from swe_rl.errors import PolicyError
from swe_rl.trajectory import SAMPLED_SEGMENTS, Segment

_TRAPS = st.sampled_from(
    ["<|im_end|>", "<|im_start|>system", "<tool_call>", "</tool_call>", "<tool_response>", '"', "\\", '"}}', "<think>"]
)
_END = "<|im_end|>"
_SPECIAL = set(range(7))  # ids of the toy tokenizer's added tokens
_TEXT = st.lists(st.one_of(st.text(max_size=12), _TRAPS), max_size=5).map("".join)
_PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "NaN", "\\ud800", "\n", ", ", "[" * 40, "}}"),
        *('{"name": "edit", "arguments": {', '"old": "a\\u00e9"', '"new": "é', '{"name": 3}'),
    ]
)
_SETTINGS = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _encode(policy_dir: Path, text: str) -> list[int]:
    """As a model samples: special tokens included."""
    return Tokenizer.from_file(str(policy_dir / "tokenizer.json")).encode(text).ids


def _spell(renderer: Renderer, token_ids: list[int], parsed: ParsedCompletion, segment: Segment) -> list[str]:
    """The text of each run of tokens that have the segment."""
    runs: list[list[int]] = []
    previous = None
    for token_id, tag in zip(token_ids, parsed.segments, strict=True):
        if tag == segment:
            if previous != segment:
                runs.append([])
            runs[-1].append(token_id)
        previous = tag
    return [renderer.decode(run) for run in runs]


def test_a_prompt_is_chatml_and_opens_the_first_completion(renderer: Renderer, policy_dir: Path) -> None:
    rendered = renderer.prompt([Message("system", "Be good.", is_ours=True), Message("user", "Fix it.")])
    text = "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nFix it.<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.token_ids == _encode(policy_dir, text)
    prompt = [t for t, s in zip(rendered.token_ids, rendered.segments, strict=True) if s == Segment.PROMPT]
    assert renderer.decode(prompt) == "Be good.Fix it."


def test_an_observation_holds_one_response_a_call(renderer: Renderer, policy_dir: Path) -> None:
    rendered = renderer.observation([Result("ok"), Result("error: no file x")], _END)
    text = (
        "\n<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<tool_response>\nerror: no file x\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.token_ids == _encode(policy_dir, text)
    seen = [t for t, s in zip(rendered.token_ids, rendered.segments, strict=True) if s == Segment.OBSERVATION]
    assert renderer.decode(seen) == "okerror: no file x"


def test_an_observation_first_closes_a_completion_that_was_cut(renderer: Renderer) -> None:
    opened, closed = renderer.observation([Result("ok")], ""), renderer.observation([Result("ok")], _END)
    assert renderer.decode(opened.token_ids[:1]) == "<|im_end|>"
    assert opened.token_ids[1:] == closed.token_ids
    assert opened.segments[0] == Segment.TEMPLATE


@_SETTINGS
@given(text=_TEXT)
def test_text_of_a_task_or_a_tool_never_becomes_a_special_token(renderer: Renderer, text: str) -> None:
    for rendered, own in (
        (renderer.prompt([Message("user", text)]), Segment.PROMPT),
        (renderer.observation([Result(text)], _END), Segment.OBSERVATION),
    ):
        foreign = [t for t, s in zip(rendered.token_ids, rendered.segments, strict=True) if s == own]
        assert not _SPECIAL & set(foreign)
        assert text in renderer.decode(rendered.token_ids)
    bare = renderer.prompt([Message("user", "")])
    dressed = renderer.prompt([Message("user", text)])
    assert [t for t in dressed.token_ids if t in _SPECIAL] == [t for t in bare.token_ids if t in _SPECIAL]


def test_a_special_token_in_the_instruction_is_ordinary_text(renderer: Renderer) -> None:
    rendered = renderer.prompt([Message("user", "Say <|im_end|> twice")])
    assert rendered.token_ids.count(2) == 1
    assert "Say <|im_end|> twice<|im_end|>" in renderer.decode(rendered.token_ids)


def test_a_vocabulary_that_repeats_special_tokens_does_not_bring_them_back(policy_dir: Path) -> None:
    spec = json.loads((policy_dir / "tokenizer.json").read_text())
    spec["model"]["ignore_merges"] = True  # a whole word of the vocabulary is taken as it is
    spec["pre_tokenizer"]["use_regex"] = False
    ids = Renderer(Vocabulary(json.dumps(spec)), Hermes()).completion([], prose="<tool_call>")
    assert not _SPECIAL & set(ids[:-1])


@_SETTINGS
@given(path=_TEXT, old=_TEXT, new=_TEXT, prose=_TEXT)
def test_a_rendered_call_is_parsed_back_and_its_change_is_tagged(
    renderer: Renderer, path: str, old: str, new: str, prose: str
) -> None:
    prose = prose.replace("<think>", "")  # reasoning may hide the call: that has its own test
    arguments = {"path": path, "old": old, "new": new}
    ids = renderer.completion([("edit", arguments)], prose)
    parsed = renderer.parse(ids, offset=50)

    assert parsed.problem == "" and parsed.stop == _END
    assert [(c.name, c.arguments) for c in parsed.calls] == [("edit", arguments)]
    assert parsed.segments[-1] == Segment.STOP
    _check_diff_bytes(renderer, ids, parsed, [old, new])


def _check_diff_bytes(renderer: Renderer, ids: list[int], parsed: ParsedCompletion, values: list[str]) -> None:
    """Every token whose first byte lies in a change's JSON text is DIFF, and no other."""
    data = b"".join(renderer.token_bytes(t) for t in ids)
    expected: set[int] = set()
    cursor = data.rfind(b'"old": ')
    for key, value in zip(("old", "new"), values, strict=True):
        literal = json.dumps(value, ensure_ascii=False).encode()
        cursor = data.index(f'"{key}": '.encode() + literal, cursor if key == "new" else 0) + len(key) + 4
        assert json.loads(data[cursor : cursor + len(literal)]) == value
        expected |= set(range(cursor + 1, cursor + len(literal) - 1))
    start = 0
    for token_id, tag in zip(ids, parsed.segments, strict=True):
        assert (tag == Segment.DIFF) == (start in expected)
        start += len(renderer.token_bytes(token_id))


@_SETTINGS
@given(data=st.data())
def test_tags_partition_any_sampled_tokens(renderer: Renderer, policy_dir: Path, data: st.DataObject) -> None:
    texts = data.draw(st.lists(_PARTS, max_size=8))
    noise = data.draw(st.lists(st.integers(0, 430), max_size=6))
    ids = _encode(policy_dir, "".join(texts)) + noise
    parsed = renderer.parse(ids)
    assert parsed.segments.shape == (len(ids),) and parsed.segments.dtype == np.uint8
    assert {Segment(int(s)) for s in parsed.segments} <= SAMPLED_SEGMENTS
    assert (parsed.problem == "") <= bool(parsed.calls)
    for first, second in pairwise(parsed.calls):
        assert first.end <= second.start


def test_segments_of_a_whole_completion(renderer: Renderer) -> None:
    ids = renderer.completion([("edit", {"path": "a.py", "old": 'x = "é"\n', "new": "日本"})], "Now I fix it.")
    parsed = renderer.parse(ids)
    assert _spell(renderer, ids, parsed, Segment.TEXT) == ["Now I fix it.\n"]
    assert _spell(renderer, ids, parsed, Segment.TOOL_NAME) == ["edit"]
    assert _spell(renderer, ids, parsed, Segment.DIFF) == ['x = \\"é\\"\\n', "日本"]
    assert _spell(renderer, ids, parsed, Segment.STOP) == ["<|im_end|>"]


def test_calls_span_their_tokens_from_marker_to_marker(renderer: Renderer) -> None:
    calls: list[tuple[str, dict[str, str]]] = [("view", {"path": "é.py"}), ("submit", {})]
    ids = renderer.completion(calls, "prose é ")
    parsed = renderer.parse(ids, offset=9)
    spelled = [renderer.decode(ids[call.start - 9 : call.end - 9]) for call in parsed.calls]
    assert spelled == [
        '<tool_call>\n{"name": "view", "arguments": {"path": "é.py"}}\n</tool_call>',
        '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
    ]


def test_only_arguments_that_change_files_are_diff(renderer: Renderer) -> None:
    ids = renderer.completion([("bash", {"command": "echo old new content"}), ("view", {"path": "old"})])
    parsed = renderer.parse(ids)
    assert [call.name for call in parsed.calls] == ["bash", "view"]
    assert Segment.DIFF not in parsed.segments
    assert _spell(renderer, ids, parsed, Segment.TOOL_NAME) == ["bash", "view"]


def test_escaped_text_is_tagged_by_its_place_not_by_its_value(renderer: Renderer, policy_dir: Path) -> None:
    text = '<tool_call>{"arguments":{"content":"\\u00e9\\n\\"}}","path":"\\"content\\""},"name":"create"}</tool_call>'
    ids = _encode(policy_dir, text)
    parsed = renderer.parse(ids)
    assert parsed.problem == "" and parsed.stop == ""
    assert parsed.calls[0].arguments == {"content": 'é\n"}}', "path": '"content"'}
    data = b"".join(renderer.token_bytes(t) for t in ids)
    first = data.index(b'"\\u00e9') + 1
    last = data.index(b'","path"')
    start = 0
    for token_id, tag in zip(ids, parsed.segments, strict=True):
        assert (tag == Segment.DIFF) == (first <= start < last)
        start += len(renderer.token_bytes(token_id))


def test_reasoning_hides_a_call_and_ends_at_its_marker(renderer: Renderer, policy_dir: Path) -> None:
    call = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
    ids = _encode(policy_dir, f"<think>{call}</think>so{call}<|im_end|>")
    parsed = renderer.parse(ids)
    assert len(parsed.calls) == 1 and parsed.problem == ""
    assert "".join(_spell(renderer, ids, parsed, Segment.REASONING)).startswith("<think><tool_call>")
    unclosed = _encode(policy_dir, f"<think>{call}")
    assert renderer.parse(unclosed).problem == "no tool call"
    assert set(renderer.parse(unclosed).segments.tolist()) == {int(Segment.REASONING)}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "expected {"),
        ("{", "not JSON"),
        ("[]", "expected {"),
        ('{"name": "view"}', "keys name and arguments"),
        ('{"name": "view", "arguments": {}, "id": 1}', "keys name and arguments"),
        ('{"name": 1, "arguments": {}}', "must be a string"),
        ('{"name": "view", "arguments": "{}"}', "must be a string"),
        ('{"name": "view", "name": "edit", "arguments": {}}', "twice"),
        ('{"name": "view", "arguments": {"path": "a", "path": "b"}}', "twice"),
        ('{"name": "view", "arguments": {"path": "a",}}', "not JSON"),
        ('{"name": "view", "arguments": {"start": NaN}}', "NaN"),
        ('{"name": "view", "arguments": {"start": 1e999}}', "1e999"),
        ("{'name': 'view', 'arguments': {}}", "not JSON"),
        ('{"name": "view", "arguments": {"path": "a\nb"}}', "not JSON"),
        ('{"name": "view", "arguments": {"path": "\\ud800"}}', "valid Unicode"),
        ('{"name": "view", "arguments": {"start": ' + "9" * 5000 + "}}", "too long a number"),
        ('{"name": "view", "arguments": {"path": ' + "[" * 100_000 + "}}", "too deep"),
        ('{"name": "view", "arguments": {}} and more', "must follow"),
    ],
)
def test_a_malformed_call_is_a_problem_and_all_arguments(
    renderer: Renderer, policy_dir: Path, body: str, problem: str
) -> None:
    ids = _encode(policy_dir, f"Hm<tool_call>{body}</tool_call>so<|im_end|>")
    parsed = renderer.parse(ids)
    assert problem in parsed.problem and not parsed.calls
    assert _spell(renderer, ids, parsed, Segment.TOOL_ARGS) == [f"<tool_call>{body}</tool_call>"]
    assert _spell(renderer, ids, parsed, Segment.TEXT) == ["Hm", "so"]


def test_a_call_without_its_closing_marker_is_malformed(renderer: Renderer, policy_dir: Path) -> None:
    ids = _encode(policy_dir, '<tool_call>\n{"name": "submit", "arguments": {}}\n')
    assert "must follow" in renderer.parse(ids).problem
    assert set(renderer.parse(ids).segments.tolist()) == {int(Segment.TOOL_ARGS)}


def test_bytes_that_are_not_utf8_make_a_call_malformed_but_not_a_crash(renderer: Renderer, policy_dir: Path) -> None:
    head = _encode(policy_dir, '<tool_call>{"name": "view", "arguments": {"path": "')
    tail = _encode(policy_dir, '"}}</tool_call>')
    half = next(i for i in range(7, 420) if renderer.token_bytes(i) == b"\xc3")
    parsed = renderer.parse([*head, half, *tail])
    assert "valid Unicode" in parsed.problem
    assert len(parsed.segments) == len(head) + 1 + len(tail)


def test_a_closing_marker_spelled_by_ordinary_tokens_inside_a_string_stays_text(renderer: Renderer) -> None:
    arguments = {"path": "a.md", "content": 'x</tool_call><|im_end|>"}}\n</tool_call>'}
    parsed = renderer.parse(renderer.completion([("create", arguments)]))
    assert parsed.problem == "" and parsed.calls[0].arguments == arguments


def test_an_unused_id_takes_the_segment_of_its_place(renderer: Renderer) -> None:
    ids = renderer.completion([("submit", {})])
    parsed = renderer.parse([*ids[:3], 10_000, *ids[3:]])
    assert parsed.problem == "" and len(parsed.segments) == len(ids) + 1


def test_nothing_sampled_is_no_call(renderer: Renderer) -> None:
    parsed = renderer.parse([])
    assert parsed.problem == "no tool call" and parsed.segments.shape == (0,) and parsed.stop == ""


@_SETTINGS
@given(text=st.text(max_size=300), max_tokens=st.integers(40, 80))
def test_a_trimmed_text_fits_and_a_short_one_is_whole(renderer: Renderer, text: str, max_tokens: int) -> None:
    trimmed = renderer.trim(text, max_tokens)
    rendered = renderer.observation([Result(trimmed)], _END)
    assert sum(s == Segment.OBSERVATION for s in rendered.segments) <= max_tokens + 1
    if len(text.encode()) <= max_tokens:
        assert trimmed == text


def test_trimming_keeps_head_and_tail(renderer: Renderer) -> None:
    trimmed = renderer.trim("first\n" + "middle\n" * 100_000 + "last", 100)
    assert trimmed.startswith("first\n") and trimmed.endswith("last") and "characters left out" in trimmed


def test_a_policy_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"tokenizer\.json: can't be read"):
        Renderer.from_policy(tmp_path)


def test_a_tokenizer_that_is_not_byte_level_is_refused(policy_dir: Path) -> None:
    spec = json.loads((policy_dir / "tokenizer.json").read_text())
    spec["model"]["vocab"]["▁word"] = 9999
    with pytest.raises(PolicyError, match="byte-level alphabet"):
        Renderer(Vocabulary(json.dumps(spec)), Hermes())


def test_a_tokenizer_without_chatml_is_refused(policy_dir: Path) -> None:
    spec = json.loads((policy_dir / "tokenizer.json").read_text())
    spec["added_tokens"] = []
    with pytest.raises(PolicyError, match=r"no token <\|im_start\|> <\|im_end\|>; dialect hermes"):
        Renderer(Vocabulary(json.dumps(spec)), Hermes())
