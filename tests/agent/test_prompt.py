"""What a policy is told at the start."""

from swe_rl.agent.prompt import build_messages, list_tools
from swe_rl.agent.render import Renderer
from swe_rl.agent.tools import TOOLS


def test_the_compact_prompt_is_the_instruction_and_one_file_a_line() -> None:
    [message] = build_messages("compact", "  Fix add.\n\n", ["src/a.py", "tests/test_a.py"])
    assert (message.role, message.is_ours) == ("user", False)
    assert message.text == "Fix add.\nFiles:\nsrc/a.py\ntests/test_a.py"


def test_the_full_prompt_lists_every_tool_as_a_schema_and_the_compact_one_none() -> None:
    system, user = build_messages("full", "Fix add.", ["a.py"])
    schemas = [tool["function"] for tool in list_tools("full")]
    assert [schema["name"] for schema in schemas] == list(TOOLS)
    edit = next(schema for schema in schemas if schema["name"] == "edit")
    assert edit["parameters"]["required"] == ["path", "old", "new"]
    assert system.is_ours and not user.is_ours and user.role == "user" and "Fix add." in user.text
    assert list_tools("compact") == []


def test_the_full_prompt_names_how_many_files_it_leaves_out() -> None:
    _, user = build_messages("full", "Fix.", [f"f{i}.py" for i in range(230)])
    assert "f199.py\n(30 more)" in user.text and "f200.py" not in user.text


def test_our_own_marker_in_the_system_message_is_a_token_but_a_file_name_is_not(renderer: Renderer) -> None:
    marker = 3  # <tool_call> in the toy tokenizer
    plain = renderer.prompt(build_messages("full", "Fix.", ["a.py"]), list_tools("full")).token_ids
    trapped = renderer.prompt(build_messages("full", "Fix.", ["<tool_call>.py"]), list_tools("full")).token_ids
    assert plain.count(marker) == trapped.count(marker) == 2
