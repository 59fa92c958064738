"""Finds the dialect of a policy: by the signs of its vocabulary and chat template, then by comparing with the template.

A policy's directory flows in, a dialect and its known differences flow out. What the template renders otherwise, and
the dialect doesn't declare, is an error here and not a surprise in training: the policy would see prompts that it was
never taught. A dialect that the configuration names is taken all the same, and the difference is logged.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_rl.agent.agreement import LIMITS, find_differences
from swe_rl.agent.dialects.base import Dialect
from swe_rl.agent.dialects.deepseek import DeepSeek
from swe_rl.agent.dialects.glm import Glm
from swe_rl.agent.dialects.harmony import Harmony
from swe_rl.agent.dialects.hermes import Hermes
from swe_rl.agent.dialects.llama import Llama
from swe_rl.agent.dialects.plain import Plain
from swe_rl.agent.dialects.qwen_xml import EFFORT, HEADING, QwenXml
from swe_rl.agent.template import ChatTemplate, end_token
from swe_rl.errors import PolicyError

logger = logging.getLogger(__name__)

PLAIN = "plain"
DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Harmony(),
        Glm("glm-4.5"),
        Glm("glm-4.7", line_end=""),
        Glm("glm-5.1", line_end="", is_bare=True),
        Glm("glm-5.2", line_end="", is_bare=True, effort="Max"),
        DeepSeek("deepseek-v3.1"),
        DeepSeek("deepseek-r1", is_fenced=True),
        Llama(),
        QwenXml("qwen3-coder"),
        QwenXml("qwen3-coder-first", heading=""),
        QwenXml("qwen3.5", is_coder=False),
        QwenXml("qwen3.8", is_coder=False, heading=EFFORT + HEADING),
        Hermes("hermes"),
        Hermes("hermes-thinking", opens_reasoning=True),
        Hermes("qwen2.5-coder", doubles_braces=True),
    )
}
"""All but `plain`, which needs to know a tokenizer's end token."""


@dataclass(frozen=True, slots=True)
class Family:
    """Dialects of which a template can be one, the likeliest first. A policy belongs to the family if its vocabulary
    has what they need and its template holds all signs; without a template only if they can be told by their tokens."""

    dialects: tuple[str, ...]
    signs: tuple[str, ...]
    needs_template: bool = False


_FAMILIES = (
    Family(("gpt-oss",), ("<|channel|>",)),
    Family(("glm-4.5", "glm-4.7", "glm-5.1", "glm-5.2"), ("[gMASK]<sop>", "<arg_key>")),
    Family(("deepseek-v3.1", "deepseek-r1"), ("<｜User｜>",)),
    Family(("llama3",), ("<|start_header_id|>",)),
    Family(
        ("qwen3-coder", "qwen3-coder-first", "qwen3.5", "qwen3.8"), ("<|im_start|>", "<function="), needs_template=True
    ),
    Family(("hermes", "hermes-thinking", "qwen2.5-coder"), ("<|im_start|>",)),
)


@dataclass(frozen=True, slots=True)
class Found:
    """`differences`: probe -> what the policy's template is known to render otherwise, and why."""

    dialect: Dialect
    differences: Mapping[str, str]


def find_dialect(policy_dir: Path, tokens: Mapping[str, int], name: str = "auto") -> Found:
    """`tokens`: the vocabulary's special tokens. Raises PolicyError if there is no dialect to write in."""
    template = ChatTemplate.from_policy(policy_dir)
    candidates = _candidates(tokens, template) if name == "auto" else _named(name)
    if not candidates:
        return Found(_plain(policy_dir, template, is_named=name == PLAIN), {})
    if template is None:
        return Found(candidates[0], {})
    compared = [(dialect, find_differences(dialect, template)) for dialect in candidates]
    dialect, differences = min(compared, key=lambda pair: (len(_undeclared(*pair)), len(pair[1])))
    undeclared = _undeclared(dialect, differences)
    if undeclared and name == "auto":
        raise PolicyError(
            f"policy {policy_dir}: its chat template isn't dialect {dialect.name}'s, probe {undeclared[0]}: "
            f"{differences[undeclared[0]]}; set agent.dialect to {dialect.name} to train in it all the same"
        )
    reasons = {probe: dialect.differences.get(probe, "not declared") for probe in differences}
    for probe, excerpt in differences.items():
        logger.warning("policy %s: dialect %s: %s: %s: %s", policy_dir, dialect.name, probe, reasons[probe], excerpt)
    return Found(dialect, reasons)


def _undeclared(dialect: Dialect, differences: Mapping[str, str]) -> list[str]:
    return [probe for probe in differences if probe not in dialect.differences and probe not in LIMITS]


def _candidates(tokens: Mapping[str, int], template: ChatTemplate | None) -> list[Dialect]:
    """Those of the first family that has all signs; none where no family has."""
    for family in _FAMILIES:
        dialects = [DIALECTS[name] for name in family.dialects if set(DIALECTS[name].needs) <= tokens.keys()]
        is_meant = template is None or all(sign in template.text for sign in family.signs)
        if dialects and is_meant and not (template is None and family.needs_template):
            return dialects
    return []


def _named(name: str) -> list[Dialect]:
    if name not in DIALECTS and name != PLAIN:
        raise PolicyError(f"no dialect {name!r}; dialects: auto {' '.join(DIALECTS)} {PLAIN}")
    return [DIALECTS[name]] if name != PLAIN else []


def _plain(policy_dir: Path, template: ChatTemplate | None, is_named: bool) -> Dialect:
    looked_for = "; ".join(f"{family.dialects[0]}: {' '.join(family.signs)}" for family in _FAMILIES)
    end = end_token(policy_dir)
    if not end:
        raise PolicyError(
            f"policy {policy_dir}: no dialect: its vocabulary or chat template lacks the signs of every family "
            f"({looked_for}), and tokenizer_config.json names no eos_token, which dialect {PLAIN} needs"
        )
    if not is_named:
        what = "has no chat template" if template is None else "has a chat template of no known family"
        logger.warning("policy %s %s (looked for %s): dialect %s", policy_dir, what, looked_for, PLAIN)
    return Plain(stops=(end,), needs=(end,))
