"""Scaffolds that nobody here wrote solve a task in a real sandbox, and what they sampled is a graded trajectory."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from swe_rl.gateway.session import SessionLimits
from swe_rl.trajectory import StopReason
from swe_rl.verdict import Outcome
from swe_rl.wire import ExecRequest

BASH: Any = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}
SCAFFOLD = """
import json, sys, urllib.request
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel

gateway, key, service, token, session = sys.argv[1:]

class Sandbox:
    config = None
    def execute(self, action, cwd=""):
        body = json.dumps({"script": action["command"], "timeout_s": 30}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        call = urllib.request.Request(f"{service}/v1/sessions/{session}/exec", body, headers)
        result = json.load(urllib.request.urlopen(call))
        output = result["stdout"] + result["stderr"]
        if output.startswith("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"):
            raise Submitted({"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}})
        return {"output": output, "returncode": result["exit_code"], "exception_info": ""}
    def get_template_vars(self, **kwargs):
        return {"system": "Linux", "release": "", "version": "", "machine": "x86_64", **kwargs}
    def serialize(self):
        return {}

settings = get_config_from_spec("mini")
model = {k: v for k, v in settings.get("model", {}).items() if k in ("observation_template", "format_error_template")}
kwargs = {"api_base": f"{gateway}/v1", "api_key": key}
model = LitellmModel(model_name="openai/policy", cost_tracking="ignore_errors", model_kwargs=kwargs, **model)
agent = {k: settings["agent"][k] for k in ("system_template", "instance_template")}
print(json.dumps(DefaultAgent(model, Sandbox(), step_limit=10, **agent).run("Mend it.")))
"""


@pytest.fixture
def limits() -> SessionLimits:
    return SessionLimits(max_context=100_000, max_tokens_per_turn=2000)


def call(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


def fixing(task: Any) -> str:
    """The command that a policy would have to think of."""
    fixed = task.files[task.source_path].replace(task.broken_line, task.fixed_line)
    return f"cat > {task.source_path} <<'X'\n{fixed.rstrip()}\nX"


async def graded(stage: Any, client: Any, session_id: str, num_turns: list[int]) -> None:
    """Resolved, and so are the trajectories, of so many turns."""
    verdict = await client.grade(session_id)
    assert verdict.outcome is Outcome.RESOLVED
    trajectories = await stage.gateway.close("t0", StopReason.SUBMITTED, verdict)
    assert [len(trajectory.turns) for trajectory in trajectories] == num_turns
    assert {trajectory.reward for trajectory in trajectories} == {1.0}


async def test_a_loop_over_openai_s_client_is_recorded(stage, key, script, service, client) -> None:
    task = service.tasks[0]
    script(call("ls"), f"There it is.\n{call(fixing(task))}", "Mended.")
    policy = openai.AsyncOpenAI(api_key=key, base_url=f"{stage.url}/v1", max_retries=0)
    session = await client.create_session(task.task_id)
    try:
        messages: list[Any] = [{"role": "user", "content": task.instruction}]
        while True:
            answer = await policy.chat.completions.create(model="policy", messages=messages, tools=[BASH])
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for one in message.tool_calls:
                command = json.loads(one.function.arguments)["command"]
                result = await client.exec(session.session_id, ExecRequest(script=command, timeout_s=30))
                messages.append({"role": "tool", "tool_call_id": one.id, "content": result.stdout + result.stderr})
        await graded(stage, client, session.session_id, [3])
    finally:
        await client.close_session(session.session_id)


@pytest.fixture
def scaffold_python() -> str:
    python = os.environ.get("SWE_RL_SCAFFOLD_PYTHON", "")
    if not python:
        pytest.skip("SWE_RL_SCAFFOLD_PYTHON names no interpreter that has mini-swe-agent: run `make test-scaffolds`")
    return python


@pytest.mark.scaffolds
@pytest.mark.parametrize(
    ("mistakes", "num_turns"),
    # It takes an answer without a call out of its history: what follows is another branch.
    [([], [3]), (["What now?"], [2, 2])],
    ids=["straight", "with a mistake"],
)
async def test_mini_swe_agent_is_recorded_as_it_is(
    stage, key, script, service, client, scaffold_python: str, tmp_path: Path, mistakes: list[str], num_turns: list[int]
) -> None:
    task = service.tasks[1]
    done = call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    script(f"First a look.\n{call('ls; cat ' + task.source_path)}", *mistakes, call(fixing(task)), done)
    session = await client.create_session(task.task_id)
    try:
        process = await asyncio.create_subprocess_exec(
            *(scaffold_python, "-c", SCAFFOLD, stage.url, key, service.url, service.token, session.session_id),
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()[-3000:]
        assert json.loads(out.decode().splitlines()[-1])["exit_status"] == "Submitted"
        await graded(stage, client, session.session_id, num_turns)
    finally:
        await client.close_session(session.session_id)
