"""What each dialect writes, word for word."""

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from swe_rl.agent.agreement import Conversation, Exchange, list_results, render_by_pieces
from swe_rl.agent.dialects.base import Call
from swe_rl.agent.render import Message

_EDIT: Call = ("edit", {"path": "a.py", "old": "1", "new": "é"})
_HERMES_CALL = '<tool_call>\n{"name": "edit", "arguments": {"path": "a.py", "old": "1", "new": "é"}}\n</tool_call>'
_CHATML = "<|im_start|>system\nMend.<|im_end|>\n<|im_start|>user\nDo it.<|im_end|>\n<|im_start|>assistant\n"
_HERMES = (
    f"{_CHATML}So.\n{_HERMES_CALL}<|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)
_XML_CALL = (
    "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n<parameter=old>\n1\n</parameter>\n"
    "<parameter=new>\né\n</parameter>\n</function>\n</tool_call>"
)
_CODER = (
    f"{_CHATML}So.\n\n{_XML_CALL}<|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n"
)
_THOUGHT = "<think>\nWhy.\n</think>\n\nSo."
_THINKER = _CODER.replace("So.", _THOUGHT).replace("response>\n<|im_end|>", "response><|im_end|>") + "<think>\n"
_ARGUMENTS = '{"path": "a.py", "old": "1", "new": "é"}'
_GLM = (
    "[gMASK]<sop><|system|>Mend.<|user|>Do it.<|assistant|><think>Why.</think>So.<tool_call>edit"
    "<arg_key>path</arg_key><arg_value>a.py</arg_value><arg_key>old</arg_key><arg_value>1</arg_value>"
    "<arg_key>new</arg_key><arg_value>é</arg_value></tool_call><|observation|><tool_response>ok"
    "</tool_response><|assistant|><think>"
)
GOLDENS = {
    "hermes": _HERMES,
    "qwen2.5-coder": _HERMES,
    "hermes-thinking": _HERMES.replace("So.", _THOUGHT).removesuffix("\n") + "\n<think>\n",
    "qwen3-coder": _CODER,
    "qwen3-coder-first": _CODER,
    "qwen3.5": _THINKER,
    "qwen3.8": _THINKER,
    "deepseek-v3.1": (
        "<｜begin▁of▁sentence｜>Mend.<｜User｜>Do it.<｜Assistant｜></think>So."
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>edit"
        f"<｜tool▁sep｜>{_ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        "<｜tool▁output▁begin｜>ok<｜tool▁output▁end｜>"
    ),
    "deepseek-r1": (
        "<｜begin▁of▁sentence｜>Mend.<｜User｜>Do it.<｜Assistant｜>So."
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
        f"<｜tool▁sep｜>edit\n```json\n{_ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>ok<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    ),
    "glm-4.5": (
        "[gMASK]<sop><|system|>\nMend.<|user|>\nDo it.<|assistant|>\n<think>Why.</think>\nSo.\n<tool_call>edit\n"
        "<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>old</arg_key>\n<arg_value>1</arg_value>\n"
        "<arg_key>new</arg_key>\n<arg_value>é</arg_value>\n</tool_call><|observation|>\n<tool_response>\nok\n"
        "</tool_response><|assistant|>"
    ),
    "glm-4.7": _GLM,
    "glm-5.1": _GLM,
    "glm-5.2": _GLM.replace("<sop>", "<sop><|system|>Reasoning Effort: Max"),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\nMend.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nDo it.<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "edit", "parameters": '
        f'{_ARGUMENTS}}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"ok"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2024-07-26\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nMend.<|end|><|start|>user<|message|>Do it.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Why.<|end|><|start|>assistant "
        f"to=functions.edit<|channel|>commentary json<|message|>{_ARGUMENTS}<|call|><|start|>functions.edit "
        'to=assistant<|channel|>commentary<|message|>"ok"<|end|><|start|>assistant'
    ),
    "plain": (
        f"### System\n\nMend.\n\n### User\n\nDo it.\n\n### Assistant\n\n{_THOUGHT}\n{_HERMES_CALL}<|endoftext|>\n\n"
        "### Result\n\nok\n\n### Assistant\n\n"
    ),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "view",
        "description": "Show a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "which"},
                "start": {"type": "integer", "description": "first line"},
            },
            "required": ["path"],
        },
    },
}
LISTINGS = {
    "hermes": "1ed7fb8aac92c624",
    "qwen2.5-coder": "1512977d4bb03550",
    "hermes-thinking": "e1485cc54dbb9ead",
    "qwen3-coder": "e87e9ae10a45e041",
    "qwen3-coder-first": "c73f87eea63314c6",
    "qwen3.5": "207dc602b9b3a22c",
    "qwen3.8": "6156e8c2b78f4428",
    "deepseek-v3.1": "146ab1aac54c02b9",
    "deepseek-r1": "3db47fa37b3bebbf",
    "glm-4.5": "35400dd04b4fc2fc",
    "glm-4.7": "be13faf5b62ba556",
    "glm-5.1": "77350cff764ffcd7",
    "glm-5.2": "7ffd5dc8b19b80b7",
    "llama3": "5dc7ae6f3437b2df",
    "gpt-oss": "258011287c251135",
    "plain": "df7c74fd67f181eb",
}
"""First digits of the SHA-256 of a prompt with one tool; what the families' own templates print, too."""


@pytest.mark.parametrize("name", GOLDENS)
def test_a_conversation_is_written_word_for_word(policies: Mapping[str, Any], name: str) -> None:
    policy = policies[name]
    renderer = policy.renderer
    reasoning = "Why." if "Why." in GOLDENS[name] else ""
    exchange = Exchange(reasoning, "So." if "So." in GOLDENS[name] else "", (_EDIT,), ("ok",))
    assert render_by_pieces(policy.dialect, Conversation("Mend.", "Do it.", (exchange,))) == GOLDENS[name]

    ids = renderer.prompt([Message("system", "Mend.", is_ours=True), Message("user", "Do it.")]).token_ids
    sampled = renderer.completion(exchange.calls, exchange.prose, exchange.reasoning)
    observed = renderer.observation(list_results(exchange), renderer.parse(sampled).stop).token_ids
    assert [*ids, *sampled, *observed] == policy.encode(GOLDENS[name])


@pytest.mark.parametrize("name", GOLDENS)
def test_a_listing_of_tools_stays_as_it_is(policies: Mapping[str, Any], name: str) -> None:
    text = render_by_pieces(policies[name].dialect, Conversation("Mend.", "Do it.", (), (_TOOL,)))
    assert "Show a file." in text and "first line" in text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == LISTINGS[name]
