"""Faults of a real server: a failed update, a killed process, a run that dies; one line each, never stale."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineError, EngineUnavailableError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.replicas import ReplicatedEngine
from swe_rl.inference.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

PARAMS = SamplingParams(1.0, 16, ())


@pytest.fixture(scope="module")
def untied(make_policy: Any) -> list[Path]:
    """Two policies whose output head is a tensor of its own."""
    return [make_policy(2, is_tied=False), make_policy(3, is_tied=False)]


async def _assert_serves(engine: VllmEngine, policy: Path, version: int, prompt: Any, score: Any) -> None:
    ids = prompt(version, 60)
    completion = await engine.generate("s", ids, PARAMS)
    assert set(completion.policy_version.tolist()) == {version}
    np.testing.assert_allclose(completion.logprobs, score(policy, ids, completion.token_ids, 1.0), atol=1e-4, rtol=0)


async def test_failed_update_restarts_our_server_on_the_new_weights(
    server_engine: VllmEngine, untied: list[Path], prompt: Any, score: Any
) -> None:
    old, new = untied
    await server_engine.load(old, 0)
    await server_engine.load(new, 1)
    await _assert_serves(server_engine, new, 1, prompt, score)
    before = server_engine.url
    async with httpx.AsyncClient(base_url=before, timeout=120) as outsider:
        # An update that somebody began and never finished: ours can't start.
        assert (await outsider.post("/start_weight_update")).status_code == 200
    await server_engine.load(old, 2)
    assert server_engine.url != before
    await _assert_serves(server_engine, old, 2, prompt, score)


async def test_an_update_that_poisons_the_server_costs_no_request(
    server_engine: VllmEngine, untied: list[Path], prompt: Any, score: Any
) -> None:
    engine = ReplicatedEngine([server_engine])
    await engine.load(untied[0], 10)
    prompts = [prompt(i, 60) for i in range(4)]
    params = SamplingParams(1.0, 600, ())
    running = [asyncio.create_task(engine.generate(f"s{i}", ids, params)) for i, ids in enumerate(prompts)]
    await asyncio.sleep(0.5)
    async with httpx.AsyncClient(base_url=server_engine.url, timeout=120) as outsider:
        assert (await outsider.post("/start_weight_update")).status_code == 200
    await engine.load(untied[1], 11)
    for ids, completion in zip(prompts, await asyncio.gather(*running), strict=True):
        assert len(completion.token_ids) == 600
        assert set(completion.policy_version.tolist()) == {11}
        expected = score(untied[1], ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4, rtol=0)


async def test_killed_server_is_unavailable_in_one_line_and_comes_back_with_its_weights(
    server_engine: VllmEngine, untied: list[Path], prompt: Any, score: Any
) -> None:
    await server_engine.load(untied[1], 5)
    running = asyncio.create_task(server_engine.generate("s", prompt(1, 60), SamplingParams(1.0, 1400, ())))
    await asyncio.sleep(0.3)
    for process in _server_processes(server_engine.url):
        os.kill(process, signal.SIGKILL)
    with pytest.raises(EngineUnavailableError) as caught:
        await running
    assert "\n" not in str(caught.value)
    assert server_engine.url in str(caught.value)
    assert "vllm.log" in str(caught.value)
    await _assert_serves(server_engine, untied[1], 5, prompt, score)
    await server_engine.close()


async def test_served_policy_is_updated_by_address_and_ends_with_the_process_that_serves_it(
    engine_config: EngineConfig, policies: list[Path], prompt: Any, score: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "import sys; from swe_rl.cli import serve_inference as verb; import argparse; "]
    command[-1] += "p = argparse.ArgumentParser(); verb.add_arguments(p); sys.exit(verb.run(p.parse_args()))"
    knobs = engine_config.model_dump(include={"dtype", "max_batch", "max_context", "vllm_python"})
    for key, value in knobs.items():
        command += ["--set", f"engine.{key}={json.dumps(value)}"]
    serving = await asyncio.create_subprocess_exec(
        *command, "--policy", str(policies[0]), "--work-dir", str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert serving.stdout is not None
    url = json.loads(await serving.stdout.readline())["url"]
    engine = VllmEngine(engine_config.model_copy(update={"url": url}), tmp_path)
    try:
        with pytest.raises(EngineError, match="call load first"):
            await engine.generate("s", [1, 2, 3], PARAMS)
        await engine.load(policies[1], 8)
        await _assert_serves(engine, policies[1], 8, prompt, score)
        async with httpx.AsyncClient(base_url=url, timeout=120) as outsider:
            assert (await outsider.post("/start_weight_update")).status_code == 200
        with pytest.raises(EngineError, match="restart the server"):
            await engine.load(policies[0], 9)
        with pytest.raises(EngineError, match="update to version 9 failed"):
            await engine.generate("s", [1, 2, 3], PARAMS)
    finally:
        processes = _server_processes(url)
        serving.kill()
        await serving.wait()
        await engine.close()
    assert processes
    for _ in range(300):
        if not any(_is_running(process) for process in processes):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"processes {[p for p in processes if _is_running(p)]} outlived the verb that served them")


def _server_processes(url: str) -> list[int]:
    """Ids of the server that listens on the address and of all that it started."""
    port = url.rpartition(":")[2]
    parents = {}
    leaders = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended meanwhile
            if b"--port" in arguments and port.encode() in arguments and arguments[1] == b"-m":
                leaders.append(int(entry.name))
    family = list(leaders)
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
