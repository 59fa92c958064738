"""The API's own document, and a run of schemathesis against the real service by it: no 5xx, no undocumented answer."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend
from swe_rl.service.app import create_app
from swe_rl.service.server import running
from swe_rl.service.service import ServiceOptions
from swe_rl.task.language import read_languages
from swe_rl.task.taskset import TaskSet
from swe_rl.wire import ErrorBody

ROOT = Path(__file__).parents[2]
TOKEN = "the-token-of-the-schema-test"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
MAX_EXAMPLES = 12


@pytest.fixture(scope="module")
def url(tasks_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real service in a thread of its own."""
    ready, done, state = threading.Event(), threading.Event(), {}
    scratch = tmp_path_factory.mktemp("scratch")

    async def serve() -> None:
        languages = read_languages(ROOT / "sandboxes")
        try:
            backend = await open_backend("auto", languages, scratch)
        except SandboxUnavailableError as error:
            state["skip"] = str(error)
            ready.set()
            return
        tasks, options = TaskSet.load([tasks_dir]), ServiceOptions(pool_size=2)
        app = create_app(backend=backend, languages=languages, tasks=tasks, token=TOKEN, max_sessions=8,
                         scratch_dir=scratch, options=options)  # fmt: skip
        async with running(app) as address:
            state["url"] = address
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    if "skip" in state:
        pytest.skip(state["skip"])
    yield state["url"]
    done.set()
    thread.join(60)


def test_every_route_documents_its_errors_and_its_token(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json", timeout=120).json()
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    assert len(operations) > 30
    for path, operation in operations:
        if not path.startswith("/v1"):
            continue
        assert operation["security"] == [{"bearer": []}], path
        assert {"401", "404", "422", "429", "500", "503", "504"} <= set(operation["responses"]), path
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}, (path, status)


def test_bodies_come_with_examples_that_the_service_understands(url: str) -> None:
    schemas = httpx.get(f"{url}/openapi.json", timeout=120).json()["components"]["schemas"]
    with_examples = {name for name, schema in schemas.items() if schema.get("examples")}
    requests = {"CreateSession", "Fork", "CreateSnapshot", "CreateLease", "Prefetch", "ExecRequest", "GradePatch"}
    assert requests <= with_examples
    import swe_rl.wire

    for name in with_examples:
        for example in schemas[name]["examples"]:
            getattr(swe_rl.wire, name).model_validate(example)


def test_schemathesis_finds_no_fault_and_no_undocumented_answer(url: str) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis isn't installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a schema can't say what a tar or a diff is

    @schemathesis.serializer("application/x-tar")
    def _any_bytes(ctx, value) -> bytes:
        return bytes(getattr(value, "data", value) if not isinstance(value, str) else value.encode())

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    session = httpx.post(f"{url}/v1/sessions", json={"task_id": "clamp"}, headers=HEADERS, timeout=60).json()
    num_calls = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == "/ready":  # a full service says so by a documented 503
            continue

        @settings(
            max_examples=MAX_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def run(case) -> None:
            nonlocal num_calls
            for known in ({}, {"session_id": session["session_id"]}):
                if known and (case.method == "DELETE" or "session_id" not in (case.path_parameters or {})):
                    continue
                case.path_parameters = {**(case.path_parameters or {}), **known}
                if isinstance(case.body, dict) and "timeout_s" in case.body:
                    case.body["timeout_s"] = 2
                num_calls += 1
                case.call_and_validate(headers=HEADERS, timeout=120, excluded_checks=[positive_data_acceptance])

        run()
    assert num_calls > 200
