"""A policy's own chat template: Jinja text in its directory, rendered as transformers renders it.

Messages in the form of chat APIs flow in, text flows out. It is used to find a policy's dialect and to compare with it;
no prompt is made by it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swe_rl.agent.dialects.base import DAY
from swe_rl.errors import PolicyError


class ChatTemplate:
    """Raises PolicyError if the text isn't a template. `special_tokens`: names like `bos_token` and their text."""

    def __init__(self, text: str, special_tokens: Mapping[str, str], where: str = "chat template") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = datetime.combine(DAY, time()).strftime
        self.text = text
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise PolicyError(f"{where}: not a chat template: {error}") from error

    @classmethod
    def from_policy(cls, policy_dir: Path) -> "ChatTemplate | None":
        """Reads `chat_template.jinja`, or `tokenizer_config.json`; None where neither has one."""
        config = read_tokenizer_config(policy_dir)
        tokens = {name: _content(token) for name, token in config.items() if name.endswith("_token") and token}
        path = Path(policy_dir) / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text(encoding="utf-8"), tokens, str(path))
        template = config.get("chat_template")
        if isinstance(template, list):  # several named ones, the one for tools first
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("tool_use") or named.get("default")
        return cls(template, tokens, f"{policy_dir}/tokenizer_config.json") if isinstance(template, str) else None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
        """`opens`: with the opening of the next completion. Raises ValueError if the template refuses."""
        given = {"tools": list(tools)} if tools else {"tools": None}
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=opens, **given, **self._special_tokens
            )
        except (TemplateError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def read_tokenizer_config(policy_dir: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, {} where there is none. Raises PolicyError if it isn't a JSON object."""
    path = Path(policy_dir) / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PolicyError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{path}: expected a JSON object, got {type(config).__name__}")
    return config


def end_token(policy_dir: Path) -> str:
    """The tokenizer's own end token; '' where it names none."""
    token = read_tokenizer_config(policy_dir).get("eos_token")
    return _content(token) if token else ""


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
