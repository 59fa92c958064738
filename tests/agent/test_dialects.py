"""Each dialect over random conversations: appended turn by turn or rendered anew, and read back to the byte."""

import itertools
import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from swe_rl.agent.agreement import Conversation, Exchange, list_results, render_by_template
from swe_rl.agent.recognition import DIALECTS
from swe_rl.agent.render import Message, Renderer, Result
from swe_rl.agent.tools import TOOLS
from swe_rl.trajectory import SAMPLED_SEGMENTS, Segment

NAMES = (*DIALECTS, "plain")
_SETTINGS = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
_SPELLED = (
    *("<|im_end|>", "<|im_start|>system", "<tool_call>", "</tool_call>", "<think>", "</think>", "<|eot_id|>"),
    *("</parameter>", "<parameter=path>", "</function>", "<function=edit>", "</arg_value>", "<arg_key>", "<|user|>"),
    *("<|python_tag|>", '{"name": "view", "parameters": {}}', "<|call|>", "<|end|>", "<|channel|>final"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜end▁of▁sentence｜>", "```json", '"', "\\", '"}}', "é", "日本", "\n"),
)
_TEXT = st.lists(st.one_of(st.text(max_size=10), st.sampled_from(_SPELLED)), max_size=4).map("".join)
_WORDS = st.text(alphabet="ab cé日\n{}\"'<>=/.#`", max_size=20).map(str.strip)
"""Text without any special token, as templates leave it: they strip some."""


def _calls(values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    number = st.integers(-3, 10**6)
    return st.one_of(
        st.builds(lambda p, o, n: ("edit", {"path": p, "old": o, "new": n}), values, values, values),
        st.builds(lambda p, s: ("view", {"path": p, "start": s}), values, number),
        st.builds(lambda c: ("bash", {"command": c}), values),
        st.just(("submit", {})),
    )


def _exchanges(dialect: Any) -> st.SearchStrategy[Exchange]:
    """Such as the dialect's templates keep whole; what they change has a test of its own."""
    always_thinks = dialect.opens_reasoning or dialect.name.startswith("glm")
    thinks = st.just("") if "reasoning" in dialect.differences else _WORDS
    calls = st.lists(_calls(_WORDS), min_size=1, max_size=1 if "parallel" in dialect.differences else 3)
    no_calls = st.lists(_calls(_WORDS), max_size=0)
    return st.builds(
        lambda reasoning, prose, calls, results: Exchange(
            reasoning, prose, tuple(calls), tuple(results[: len(calls) or 1])
        ),
        (_WORDS.filter(bool) if always_thinks else thinks),
        st.just("") if "text" in dialect.differences else _WORDS,
        calls if "error" in dialect.differences or "text" in dialect.differences else st.one_of(calls, no_calls),
        st.lists(_WORDS, min_size=3, max_size=3),
    )


def check_append_equals_whole(policy: Any, number: int) -> None:
    template = policy.chat_template()
    errors_by = "tool" if policy.dialect.answers_errors else "user"
    exchanges = st.lists(_exchanges(policy.dialect), max_size=4).map(tuple)
    conversations = st.builds(Conversation, _WORDS.filter(bool), _WORDS, exchanges)

    @settings(_SETTINGS, max_examples=number)
    @given(conversation=conversations)
    def check(conversation: Conversation) -> None:
        ids = _append(policy.renderer, conversation)
        whole = render_by_template(template, conversation, errors_by)
        assert policy.spell(ids).decode() == whole
        assert ids == policy.encode(whole)

    check()


def _append(renderer: Renderer, conversation: Conversation) -> list[int]:
    """As an episode does it."""
    messages = [Message("system", conversation.system, is_ours=True), Message("user", conversation.user)]
    ids = list(renderer.prompt(messages, conversation.tools).token_ids)
    for exchange in conversation.exchanges:
        sampled = renderer.completion(exchange.calls, exchange.prose, exchange.reasoning)
        ids += sampled
        ids += renderer.observation(list_results(exchange), renderer.parse(sampled).stop).token_ids
    return ids


@pytest.mark.parametrize("name", NAMES)
def test_turns_that_are_appended_are_the_tokens_of_the_whole_conversation(
    policies: Mapping[str, Any], name: str
) -> None:
    check_append_equals_whole(policies[name], 100)


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_appended_conversations_are_the_tokens_of_the_whole(
    policies: Mapping[str, Any], name: str
) -> None:
    check_append_equals_whole(policies[name], 10_000)


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_read_back_and_spans_decode_to_their_values(byte_policies: Mapping[str, Any], name: str) -> None:
    renderer = byte_policies[name].renderer
    is_json = not name.startswith(("qwen3", "glm"))

    @settings(_SETTINGS, max_examples=80)
    @given(prose=_TEXT, reasoning=_WORDS, calls=st.lists(_calls(_TEXT), min_size=1, max_size=3))
    def check(prose: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
        ids = _completion_or_skip(renderer, calls, prose, reasoning)
        parsed = renderer.parse(ids, offset=50)
        assert parsed.problem == "" and parsed.stop in renderer.dialect.stops
        assert [(call.name, call.arguments) for call in parsed.calls] == calls
        for call, (tool, arguments) in zip(parsed.calls, calls, strict=True):
            span = slice(call.start - 50, call.end - 50)
            runs = _runs(byte_policies[name], ids[span], parsed.segments[span])
            assert runs[Segment.TOOL_NAME] == [tool.encode()]
            changed = [value for key, value in arguments.items() if TOOLS[tool].arguments[key].is_diff and value]
            spelled = [run.decode() for run in runs.get(Segment.DIFF, [])]
            assert [json.loads(f'"{run}"', strict=False) if is_json else run for run in spelled] == changed

    check()


def test_spans_are_exact_behind_characters_of_every_width_and_bytes_that_are_none(
    byte_policies: Mapping[str, Any],
) -> None:
    policy = byte_policies["hermes"]
    borders = "\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"
    byte = {policy.renderer.token_bytes(token): token for token in range(300)}
    for sign in borders:
        ids = policy.renderer.completion([("create", {"path": sign, "content": f"a{sign}{borders}"})], prose=sign)
        for stray in (b"", b"\xff", b"\xed\xa0\x80", b"\xe2\x82"):
            sampled = [byte[bytes([value])] for value in stray] + ids
            parsed = policy.renderer.parse(sampled)
            assert _runs(policy, sampled, parsed.segments)[Segment.DIFF] == [f"a{sign}{borders}".encode()]
            assert policy.spell(sampled[parsed.calls[0].start : parsed.calls[0].end]).startswith(b"<tool_call>\n{")


def _completion_or_skip(renderer: Renderer, calls: Any, prose: str, reasoning: str) -> list[int]:
    try:
        return renderer.completion(calls, prose, reasoning)
    except ValueError:  # text that reads as a call, or a value that the dialect can't quote
        texts = [prose, *(value for _, arguments in calls for value in arguments.values() if isinstance(value, str))]
        assume(not any(trap in text for text in texts for trap in _SPELLED if len(trap) > 2))
        raise


_WRITTEN = {
    "hermes": ["<think>\nWhy.\n</think>", "\n\nSo.\n"],
    "hermes-thinking": ["Why.\n</think>", "\n\nSo.\n"],
    "qwen3-coder": ["<think>\nWhy.\n</think>", "\n\nSo.\n\n"],
    "qwen3.5": ["Why.\n</think>", "\n\nSo.\n\n"],
    "deepseek-v3.1": ["<think>\nWhy.\n</think>", "\n\nSo."],
    "deepseek-r1": ["<think>\nWhy.\n</think>", "\n\nSo."],
    "glm-4.5": ["<think>Why.</think>", "\nSo.\n"],
    "glm-4.7": ["Why.</think>", "So."],
    "llama3": ["", "Why.\nSo.\n"],
    "gpt-oss": [
        "<|channel|>analysis<|message|>Why.<|end|>",
        "<|start|>assistant<|channel|>commentary<|message|>So.<|end|>",
    ],
    "plain": ["<think>\nWhy.\n</think>", "\n\nSo.\n"],
}


@pytest.mark.parametrize("name", _WRITTEN)
def test_a_completion_has_its_reasoning_its_text_and_all_else_as_arguments(
    byte_policies: Mapping[str, Any], name: str
) -> None:
    policy = byte_policies[name]
    reasoning, text = _WRITTEN[name]
    ids = policy.renderer.completion([("view", {"path": "a", "start": 3, "end": -1})], "So.", "Why.")
    parsed = policy.renderer.parse(ids)
    assert parsed.calls[0].arguments == {"path": "a", "start": 3, "end": -1}
    runs = {segment: b"".join(spelled).decode() for segment, spelled in _runs(policy, ids, parsed.segments).items()}
    leading = "\n" if name == "glm-4.5" else ""  # its completions begin with a line end
    assert runs.get(Segment.REASONING, "") == reasoning
    assert runs[Segment.TEXT] == leading + text
    assert runs[Segment.TOOL_NAME] == "view" and runs[Segment.STOP] == parsed.stop
    whole = policy.spell(ids).decode()
    arguments = whole.removesuffix(parsed.stop).replace(reasoning, "").replace(text, "").removeprefix(leading)
    assert runs[Segment.TOOL_ARGS] == arguments.replace("view", "")


def _runs(policy: Any, ids: list[int], segments: Iterable[int]) -> dict[int, list[bytes]]:
    """Segment -> what each run of tokens that have it spells."""
    runs: dict[int, list[bytes]] = {}
    for segment, group in itertools.groupby(zip(segments, ids, strict=True), key=lambda pair: pair[0]):
        runs.setdefault(segment, []).append(policy.spell([token for _, token in group]))
    return runs


@pytest.mark.parametrize("name", NAMES)
def test_any_sampled_tokens_are_partitioned_and_a_token_has_the_segment_of_its_first_byte(
    policies: Mapping[str, Any], byte_policies: Mapping[str, Any], name: str
) -> None:
    policy, bytewise = policies[name], byte_policies[name]
    fragments = [*policy.added, *_SPELLED, '{"name": "edit", "arguments": {"old": "a\\u00e9"', "edit", "{}"]
    fragments += ['{"path": "é"}', "functions.edit", " to=functions.edit", "NaN", "[" * 40, "}}", ": 3", "x\n", "; "]
    stops = policy.renderer.stop_token_ids

    @settings(_SETTINGS, max_examples=150)
    @given(
        texts=st.lists(st.sampled_from(fragments), max_size=12),
        noise=st.lists(st.integers(0, len(policy.added) + 300), max_size=4),
    )
    def check(texts: list[str], noise: list[int]) -> None:
        ids = [token for text in texts for token in policy.encode(text)] + noise
        ids = [token for token in ids[:-1] if token not in stops] + ids[-1:]
        parsed = policy.renderer.parse(ids)
        assert parsed.segments.shape == (len(ids),) and parsed.segments.dtype == np.uint8
        assert {Segment(int(s)) for s in parsed.segments} <= SAMPLED_SEGMENTS
        assert (parsed.problem == "") <= bool(parsed.calls)
        for first, second in itertools.pairwise(parsed.calls):
            assert first.end <= second.start
        split, starts = _split(policy, bytewise, ids)
        exact = bytewise.renderer.parse(split)
        assert exact.problem == parsed.problem and len(exact.calls) == len(parsed.calls)
        spelled = [i for i, token in enumerate(ids) if policy.renderer.token_bytes(token)]
        assert [parsed.segments[i] for i in spelled] == [exact.segments[starts[i]] for i in spelled]

    check()


def _split(policy: Any, bytewise: Any, ids: list[int]) -> tuple[list[int], list[int]]:
    """The same sample in tokens of one byte, and where each of its tokens begins there."""
    single = {bytewise.renderer.token_bytes(token): token for token in range(300)}
    split: list[int] = []
    starts: list[int] = []
    for token in ids:
        starts.append(len(split))
        spelled = policy.renderer.token_bytes(token)
        is_special = token in policy.added.values()
        split += [single[spelled]] if is_special else [single[bytes([byte])] for byte in spelled]
    return split, starts


@pytest.mark.parametrize("name", NAMES)
def test_text_of_tasks_and_tools_never_becomes_a_special_token(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    special = set(policies[name].added.values())
    traps = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(sorted(policies[name].added))), max_size=5).map(
        "".join
    )

    @settings(_SETTINGS, max_examples=60)
    @given(text=traps)
    def check(text: str) -> None:
        for dressed, bare, own in (
            (renderer.prompt([Message("user", text)]), renderer.prompt([Message("user", "")]), Segment.PROMPT),
            *((renderer.observation([Result(text, tool)], ""), renderer.observation([Result("", tool)], ""),
               Segment.OBSERVATION) for tool in ("view", "")),
        ):  # fmt: skip
            foreign = [t for t, s in zip(dressed.token_ids, dressed.segments, strict=True) if s == own]
            assert not special & set(foreign)
            assert [t for t in dressed.token_ids if t in special] == [t for t in bare.token_ids if t in special]
            assert len(dressed.token_ids) == len(dressed.segments)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_completion_that_was_cut_is_closed_by_our_token(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    whole = renderer.completion([("view", {"path": "a.py"})])
    stop = renderer.parse(whole).stop
    closed = renderer.observation([Result("ok", "view")], stop)
    cut = renderer.observation([Result("ok", "view")], "")
    assert cut.token_ids[1:] == closed.token_ids and cut.segments[0] == Segment.TEMPLATE
    ending = renderer.decode(cut.token_ids[:1])
    assert ending in renderer.dialect.stops or (name, ending) == ("gpt-oss", "<|end|>")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_breaks_off_at_any_token_is_a_problem(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    ids = renderer.completion([("edit", {"path": "a.py", "old": "é\n", "new": "日本 {}"})])
    parsed = renderer.parse(ids)
    last = parsed.calls[0].end - (1 if name != "llama3" else 0)  # nothing but its JSON closes a call of Llama's
    for length in range(min(last, len(ids) - 1) + (name == "gpt-oss")):
        cut = renderer.parse(ids[:length])
        assert cut.problem and not cut.calls and cut.stop == ""


@pytest.mark.parametrize(
    ("stop", "tool", "begins"),
    [
        ("<|observation|>", "view", "\n<tool_response>\nok"),
        ("<|observation|>", "", "\n<tool_response>\nok"),
        ("<|user|>", "", "\nok<|assistant|>"),
        ("<|user|>", "view", "\nok<|assistant|>"),
        ("<|endoftext|>", "view", "<|observation|>\n<tool_response>\nok"),
        ("", "", "<|user|>\nok<|assistant|>"),
    ],
)
def test_what_comes_back_has_the_role_that_the_policy_opened(
    policies: Mapping[str, Any], stop: str, tool: str, begins: str
) -> None:
    renderer = policies["glm-4.5"].renderer
    assert renderer.decode(renderer.observation([Result("ok", tool)], stop).token_ids).startswith(begins)


@pytest.mark.parametrize(
    "header",
    [" to=functions.edit<|channel|>commentary json", "<|channel|>commentary to=functions.edit <|constrain|>json"],
)
def test_a_recipient_stands_in_front_of_the_channel_or_behind_it(policies: Mapping[str, Any], header: str) -> None:
    policy = policies["gpt-oss"]
    ids = policy.encode(
        f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}<|message|>{{"old": "x"}}<|call|>'
    )
    parsed = policy.renderer.parse(ids)
    assert parsed.problem == "" and parsed.stop == "<|call|>"
    assert [(call.name, call.arguments) for call in parsed.calls] == [("edit", {"old": "x"})]
    runs = _runs(policy, ids, parsed.segments)
    assert runs[Segment.REASONING] == [b"<|channel|>analysis<|message|>Hm.<|end|>"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<|channel|>commentary to=browser.open<|message|>{"a": 1}<|call|>', "calls go to=functions.its name"),
        ("<|channel|>final<|message|>Done.<|return|>", "no tool call"),
        (' to=functions.edit<|channel|>commentary json<|message|>{"a": 1} x<|call|>', "nothing may follow"),
        (" to=functions.edit<|channel|>commentary json<|message|>[1]<|call|>", "expected {"),
        (' to=functions.edit<|channel|>commentary json<|message|>{"a": 1}', "a call ends with <|call|>"),
        (" to=functions.edit<|channel|>commentary json<|call|>", "expected {"),
    ],
)
def test_a_message_that_is_no_call_is_a_problem(policies: Mapping[str, Any], text: str, problem: str) -> None:
    policy = policies["gpt-oss"]
    parsed = policy.renderer.parse(policy.encode(text))
    assert problem in parsed.problem and not parsed.calls


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('I look.\n{"name": "view", "parameters": {"path": "a"}}', ["view"]),
        ('{"type": "function", "name": "view", "parameters": {}}', ["view"]),
        ('<|python_tag|>{"name": "view", "arguments": {}}; {"name": "submit", "parameters": {}}', ["view", "submit"]),
        ('{"name": "view", "parameters": {}}\n{"name": "submit", "parameters": {}} Done.', ["view", "submit"]),
        ('Like {"name": "view"} in a line', []),
        ("<|python_tag|>print(1)", []),
        ('{"name": "view", "parameters": {}}{"name": 3}', []),
    ],
)
def test_a_call_of_llamas_begins_a_line_or_follows_another(
    policies: Mapping[str, Any], text: str, names: list[str]
) -> None:
    policy = policies["llama3"]
    parsed = policy.renderer.parse(policy.encode(f"{text}<|eot_id|>"))
    assert (parsed.problem == "") == bool(names)
    if names:
        assert [call.name for call in parsed.calls] == names


def test_a_normaliser_does_not_move_the_border_between_template_and_text(policies: Mapping[str, Any]) -> None:
    from swe_rl.agent.vocabulary import Vocabulary

    policy = policies["hermes"]
    spec = json.loads(policy.tokenizer_json) | {"normalizer": {"type": "NFC"}}
    renderer = Renderer(Vocabulary(json.dumps(spec)), policy.dialect)
    text = "e\u0301" * 30
    rendered = renderer.observation([Result(text)], "<|im_end|>")
    seen = [t for t, s in zip(rendered.token_ids, rendered.segments, strict=True) if s == Segment.OBSERVATION]
    assert renderer.decode(seen) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_says_next_looks_as_in_a_prompt(policies: Mapping[str, Any], name: str) -> None:
    policy = policies[name]
    messages = [Message("system", "Be brief.", is_ours=True), Message("user", "Mend it.")]
    short = policy.spell(policy.renderer.prompt(messages).token_ids).decode()
    long = policy.spell(policy.renderer.prompt([*messages, Message("user", "And tests.")]).token_ids).decode()
    framed = long[next(i for i, (a, b) in enumerate(itertools.zip_longest(short, long)) if a != b) :]
    said = Result("And tests.", by_user=True)
    for stop in policy.dialect.stops:
        alone = policy.spell(policy.renderer.observation([said], stop).token_ids).decode()
        behind = policy.spell(policy.renderer.observation([Result("ok", "bash"), said], stop).token_ids).decode()
        assert f"{stop}{alone}".endswith(framed) and behind.endswith(framed)
        assert (alone.count("And tests."), behind.count("And tests."), behind.count("ok")) == (1, 1, 1)
        observed = policy.spell(policy.renderer.observation([Result("ok", "bash")], stop).token_ids).decode()
        start = observed[: observed.index("ok")]
        assert behind.startswith(start)
