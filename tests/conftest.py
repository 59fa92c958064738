"""What several areas share: a toy tokenizer, and a real sandbox service over a few small tasks."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from swe_rl.client import SandboxClient
from swe_rl.synth.family import SynthTask, make_task

TOKEN = "a-token-for-tests"
SPECIAL_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]
_TEXTS = [
    '{"name": "view", "arguments": {"path": "src/app.py"}}\n',
    '{"name": "edit", "arguments": {"path": "src/app.py", "old": "return a - b", "new": "return a + b"}}\n',
    '{"name": "create", "arguments": {"path": "a.py", "content": "def f(a, b):\\n    return a + b\\n"}}\n',
    '{"name": "run_tests", "arguments": {}}\n{"name": "submit", "arguments": {}}\n',
    "system user assistant The sum is wrong. Files: error: ok submitted def return import <|im_end|> <tool_call>",
] * 5


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the tokenizer.json of a byte-level BPE with the special tokens of a tiny policy."""
    directory = tmp_path_factory.mktemp("policy")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """torchrun(number of ranks, source of a program, its arguments): until all have ended, with status 0."""
    directory = tmp_path_factory.mktemp("programs")

    def run(num_ranks: int, source: str, *arguments: object) -> None:
        program = directory / f"{len(list(directory.iterdir()))}.py"
        program.write_text(source)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        done = subprocess.run(
            [sys.executable, *(launcher if num_ranks > 1 else []), str(program), *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]

    return run


@dataclass(frozen=True, slots=True)
class Service:
    """A live sandbox service; `tasks` are the Python tasks that it serves, in split `train`."""

    url: str
    token: str
    tasks: tuple[SynthTask, ...]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """In a thread with its own event loop, so that every test's client meets it over a real socket."""
    from swe_rl.errors import SandboxUnavailableError
    from swe_rl.sandbox.backend import open_backend
    from swe_rl.service.app import create_app
    from swe_rl.service.server import running
    from swe_rl.synth.write import write_task
    from swe_rl.task.language import read_languages
    from swe_rl.task.taskset import TaskSet

    folder = tmp_path_factory.mktemp("service")
    made = [make_task("train", index, 0) for index in range(12)]
    tasks = tuple(task for task in made if task.bug.language == "python")[:3]
    for task in tasks:
        write_task(task, folder / "tasks")
    ready, done, state = threading.Event(), threading.Event(), {}

    async def serve() -> None:
        languages = read_languages(Path(__file__).parents[1] / "sandboxes")
        try:
            backend = await open_backend("auto", languages, folder / "scratch")
        except SandboxUnavailableError as error:
            state["skip"] = str(error)
            ready.set()
            return
        taskset = TaskSet.load([folder / "tasks"])
        app = create_app(backend=backend, languages=languages, tasks=taskset, token=TOKEN, grade_concurrency=2)
        async with running(app) as url:
            state["url"] = url
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60), "the service didn't start"
    if "skip" in state:
        pytest.skip(f"no sandbox can be made on this machine: {state['skip']}")
    yield Service(state["url"], TOKEN, tasks)
    done.set()
    thread.join(30)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[SandboxClient]:
    async with SandboxClient(service.url, service.token) as client:
        yield client
