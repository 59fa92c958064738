"""Finding the dialect of a policy, and what is said where its chat template says something else."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from swe_rl.agent.agreement import Conversation, Exchange, find_differences, render_by_pieces, render_by_template
from swe_rl.agent.recognition import DIALECTS, find_dialect
from swe_rl.agent.render import Renderer
from swe_rl.agent.template import ChatTemplate
from swe_rl.config import Dialect
from swe_rl.errors import PolicyError

TELLABLE = [name for name in DIALECTS if name not in ("qwen2.5-coder", "qwen3-coder-first", "qwen3.8", "glm-5.1")]
"""The others differ by the listing of tools alone, which the templates here leave out."""


def test_the_configuration_offers_the_dialects_that_there_are() -> None:
    assert set(get_args(Dialect)) == {"auto", *DIALECTS, "plain"}
    assert all(dialect.name == name for name, dialect in DIALECTS.items())


@pytest.mark.parametrize("name", TELLABLE)
def test_a_policy_with_its_familys_template_is_recognised_and_agrees(
    policies: Mapping[str, Any], name: str, tmp_path: Path
) -> None:
    renderer = Renderer.from_policy(policies[name].write(tmp_path))
    assert renderer.dialect.name == name
    assert set(renderer.differences) <= {"tools", *renderer.dialect.differences}


@pytest.mark.parametrize(
    ("vocabulary", "dialect"),
    [
        *(("hermes", "hermes"), ("qwen3-coder", "hermes"), ("llama3", "llama3"), ("gpt-oss", "gpt-oss")),
        *(("deepseek-r1", "deepseek-v3.1"), ("glm-4.7", "glm-4.5"), ("plain", "plain")),
    ],
)
def test_without_a_template_the_special_tokens_decide(
    policies: Mapping[str, Any], vocabulary: str, dialect: str, tmp_path: Path
) -> None:
    renderer = Renderer.from_policy(policies[vocabulary].write(tmp_path, has_template=False))
    assert renderer.dialect.name == dialect and renderer.differences == {}


def test_a_template_in_the_tokenizer_configuration_is_found_too(policies: Mapping[str, Any], tmp_path: Path) -> None:
    policy = policies["deepseek-r1"]
    policy.write(tmp_path, has_template=False)
    tokens = {name: {"__type": "AddedToken", "content": token} for name, token in policy.special_tokens.items()}
    for template in (policy.template, [{"name": "default", "template": policy.template}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **tokens}))
        assert Renderer.from_policy(tmp_path).dialect.name == "deepseek-r1"


@pytest.mark.parametrize(
    ("part", "other", "probe"),
    [
        ("<|im_end|>\\n", "<|im_end|>", "prompt"),
        ("\\n<tool_response>\\n", "\\n<tool_response>", "call"),
        ('"arguments": ', '"arguments":', "call"),
        ('"\\n" if m.content or', '"\\n\\n" if m.content or', "text"),
        ("m.tool_calls or []", "(m.tool_calls or [])[:1]", "parallel"),
    ],
)
def test_a_template_that_says_something_else_is_refused_by_name(
    policies: Mapping[str, Any], tmp_path: Path, part: str, other: str, probe: str
) -> None:
    policies["hermes"].write(tmp_path)
    template = policies["hermes"].template
    assert part in template
    (tmp_path / "chat_template.jinja").write_text(template.replace(part, other))
    with pytest.raises(PolicyError, match=rf"isn't dialect hermes's, probe {probe}: template .* expected .*") as caught:
        Renderer.from_policy(tmp_path)
    assert str(tmp_path) in str(caught.value) and "set agent.dialect to hermes" in str(caught.value)


def test_a_named_dialect_is_taken_all_the_same_and_the_difference_recorded(
    policies: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policies["hermes"].write(tmp_path)
    template = policies["hermes"].template.replace("\\n<tool_response>\\n", "\\n<tool_response>")
    (tmp_path / "chat_template.jinja").write_text(template)
    with caplog.at_level(logging.WARNING):
        renderer = Renderer.from_policy(tmp_path, "hermes")
    assert {"call", "parallel"} <= renderer.differences.keys()
    assert "dialect hermes: call: not declared: template" in caplog.text


def test_reasoning_that_a_template_drops_from_the_history_stays_and_is_recorded(
    policies: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = policies["deepseek-v3.1"]
    with caplog.at_level(logging.WARNING):
        renderer = Renderer.from_policy(policy.write(tmp_path))
    assert renderer.differences["reasoning"] == policy.dialect.differences["reasoning"]
    assert "drops reasoning" in caplog.text
    exchange = Exchange("Why.", "", (("submit", {}),), ("ok",))
    conversation = Conversation("S", "U", (exchange,))
    assert "Why." in render_by_pieces(policy.dialect, conversation)
    assert "Why." not in render_by_template(policy.chat_template(), conversation, "user")


def test_a_template_that_refuses_a_conversation_differs_in_it(policies: Mapping[str, Any]) -> None:
    policy = policies["llama3"]
    refusing = "{%- if messages | length > 2 %}{{ raise_exception('no history') }}{% endif %}" + policy.template
    differences = find_differences(policy.dialect, ChatTemplate(refusing, policy.special_tokens))
    assert {"call", "error"} <= differences.keys() and "prompt" not in differences
    assert "no history" in differences["call"]


def test_a_template_without_tools_is_compared_as_far_as_it_goes(policies: Mapping[str, Any], tmp_path: Path) -> None:
    policies["hermes"].write(tmp_path)
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    assert find_dialect(tmp_path, policies["hermes"].added).differences.keys() == {"tools", "calls"}
    (tmp_path / "chat_template.jinja").write_text(template.replace("m.role + '\\n'", "m.role + ':\\n'"))
    with pytest.raises(PolicyError, match="probe prompt"):
        find_dialect(tmp_path, policies["hermes"].added)


def test_a_policy_of_no_known_family_speaks_plainly_and_it_is_said(
    policies: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policies["hermes"].write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}[INST]")
    with caplog.at_level(logging.WARNING):
        assert Renderer.from_policy(tmp_path).dialect.name == "plain"
    assert "of no known family" in caplog.text and "<|start_header_id|>" in caplog.text


def test_a_policy_without_signs_and_without_an_end_token_is_refused_with_what_was_looked_for(
    policies: Mapping[str, Any], tmp_path: Path
) -> None:
    policies["plain"].write(tmp_path, has_template=False)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"(?s)gpt-oss: <\|channel\|>.*<\|im_start\|>.*names no eos_token"):
        Renderer.from_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt-oss", r"has no token <\|start\|>.*dialect gpt-oss needs it"),
        ("alpaca", "no dialect 'alpaca'; dialects: auto"),
    ],
)
def test_a_dialect_that_cannot_be_written_is_refused(
    policies: Mapping[str, Any], tmp_path: Path, name: str, message: str
) -> None:
    policies["hermes"].write(tmp_path, has_template=False)
    with pytest.raises(PolicyError, match=message):
        Renderer.from_policy(tmp_path, name)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("chat_template.jinja", "{% for %}", r"chat_template\.jinja: not a chat template"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not JSON"),
        ("tokenizer_config.json", "[]", "expected a JSON object, got list"),
    ],
)
def test_a_broken_file_of_a_policy_is_named(
    policies: Mapping[str, Any], tmp_path: Path, file: str, text: str, message: str
) -> None:
    (policies["hermes"].write(tmp_path) / file).write_text(text)
    with pytest.raises(PolicyError, match=message):
        Renderer.from_policy(tmp_path)


def test_a_template_has_no_way_out_of_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages.append(1) }}", {})
    with pytest.raises(ValueError, match="SecurityError"):
        template.render([], [], opens=True)


def test_a_sentencepiece_vocabulary_is_refused_by_what_it_is(policies: Mapping[str, Any], tmp_path: Path) -> None:
    spec = json.loads(policies["hermes"].tokenizer_json)
    spec["model"]["byte_fallback"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(PolicyError, match=r"tokenizer\.json: a SentencePiece vocabulary with byte_fallback"):
        Renderer.from_policy(tmp_path)
