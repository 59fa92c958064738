"""Both clients: the same methods, the same answers, and no trust in what a server says."""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from swe_rl.client import SandboxClient, SyncSandboxClient, attempts
from swe_rl.errors import CapacityError, ConfigError, RateLimitError, SandboxError, SandboxUnavailableError
from swe_rl.wire import ErrorBody, ExecRequest

TOKEN = "t"
OK = {"status": "ok", "version": "0", "backend": "b", "num_sessions": 0, "num_tasks": 0}


def public(cls: type) -> dict[str, list[str]]:
    return {
        name.removeprefix("a") if name == "aclose" else name: list(inspect.signature(method).parameters)
        for name, method in vars(cls).items()
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert public(SandboxClient) == public(SyncSandboxClient)


def test_a_script_works_without_any_event_loop(service) -> None:
    task_id = service.tasks[0].task_id
    with SyncSandboxClient(service.url, service.token) as client:
        assert client.health().status == "ok" and client.ready().is_ready
        assert task_id in {task.task_id for task in client.list_tasks("train")}
        session = client.create_session(task_id).session_id
        assert client.exec(session, ExecRequest(script="echo é; cat", stdin="in")).stdout == "é\nin"
        client.write_file(session, "new dir/ü#?.txt", b"\0x")
        assert client.read_file(session, "new dir/ü#?.txt") == b"\0x"
        started = client.start(session, ExecRequest(script="echo a; echo b >&2"))
        events = list(client.stream(session, started.process_id))
        assert {(event.stream, event.text) for event in events if event.stream} == {
            ("stdout", "a\n"),
            ("stderr", "b\n"),
        }
        assert events[-1].result is not None and events[-1].result.exit_code == 0
        [fork] = client.fork(session)
        assert client.read_file(fork.session_id, "new dir/ü#?.txt") == b"\0x"
        with pytest.raises(ConfigError):
            client.exec(session, ExecRequest(argv=["true"], env={"1": "x"}))
        for made in (session, fork.session_id):
            client.close_session(made)


def test_one_synchronous_client_serves_many_threads(service) -> None:
    with SyncSandboxClient(service.url, service.token) as client:
        session = client.create_session(service.tasks[0].task_id).session_id
        with ThreadPoolExecutor(6) as threads:
            results = list(threads.map(lambda n: client.exec(session, ExecRequest(argv=["echo", str(n)])), range(12)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(12)]
        client.close_session(session)
    assert threading.active_count() < 50


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """Gives the answers in turn, the last one for ever."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = answers[min(len(seen), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.MockTransport(handle), seen


def refused(name: str, **headers: str) -> httpx.Response:
    return httpx.Response(429, json=ErrorBody(error=name, message="later").model_dump(), headers=headers)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    # not the sleep of all threads: some that other tests left sleep, too
    monkeypatch.setattr("swe_rl.client.synchronous.time", SimpleNamespace(sleep=waits.append))
    return waits


def test_what_a_rate_limit_refused_is_repeated_after_the_time_that_it_names(impatient: list[float]) -> None:
    result = {"exit_code": 0, "stdout": "", "stderr": "", "duration_s": 0.0}
    limited = refused("RateLimitError", **{"retry-after": "3"})
    transport, seen = answering(limited, limited, httpx.Response(200, json=result))
    client = SyncSandboxClient("http://service", TOKEN, transport=transport)
    assert client.exec("s", ExecRequest(argv=["true"])).exit_code == 0
    assert len(seen) == 3 and all(3.0 <= wait <= 3.75 for wait in impatient)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch, impatient: list[float]) -> None:
    monkeypatch.setattr(attempts, "PATIENCE_S", 10.0)
    transport, seen = answering(refused("RateLimitError", **{"retry-after": "60"}))
    with pytest.raises(RateLimitError) as error:
        SyncSandboxClient("http://service", TOKEN, transport=transport).health()
    assert (error.value.retry_after_s, len(seen), impatient) == (60.0, 1, [])


def test_a_full_service_is_not_asked_again(impatient: list[float]) -> None:
    transport, seen = answering(refused("CapacityError", **{"retry-after": "nonsense"}))
    with pytest.raises(CapacityError) as error:
        SyncSandboxClient("http://service", TOKEN, transport=transport).create_session("t")
    assert (error.value.retry_after_s, len(seen)) == (1.0, 1)


def test_a_creation_is_repeated_with_the_same_key(impatient: list[float]) -> None:
    lost = httpx.ReadError("lost")
    transport, seen = answering(lost, lost, refused("CapacityError"))
    with pytest.raises(CapacityError):
        SyncSandboxClient("http://service", TOKEN, transport=transport).fork("s", 2)
    assert len(seen) == 3 and len({request.content for request in seen}) == 1
    assert b"idempotency_key" in seen[0].content


@pytest.mark.parametrize("call", ["exec", "start", "run_tests"])
def test_what_may_have_run_is_not_repeated(call: str, impatient: list[float]) -> None:
    transport, seen = answering(httpx.ReadError("lost"))
    client = SyncSandboxClient("http://service", TOKEN, transport=transport)
    arguments = () if call == "run_tests" else (ExecRequest(argv=["true"]),)
    with pytest.raises(SandboxUnavailableError):
        getattr(client, call)("s", *arguments)
    assert len(seen) == 1


def test_ids_cannot_lead_a_call_astray() -> None:
    transport, seen = answering(httpx.Response(204))
    client = SyncSandboxClient("http://service/base/", TOKEN, transport=transport)
    client.close_session("../snapshots/x?y#z")
    assert seen[0].url.raw_path == b"/base/v1/sessions/..%2Fsnapshots%2Fx%3Fy%23z"
    assert seen[0].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("url", ["", "service:8000", "ftp://service", "http://"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        SyncSandboxClient(url, TOKEN)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"status": "ok"}', b"\xff", b'{"status": "__import__(\'os\')"}'])
def test_an_answer_that_is_not_understood_is_an_error_and_never_evaluated(body: bytes) -> None:
    transport, _ = answering(httpx.Response(200, content=body))
    with pytest.raises(SandboxError, match="can't read the answer"):
        SyncSandboxClient("http://service", TOKEN, transport=transport).health()


def test_nothing_is_imported_by_name() -> None:
    import swe_rl.client.asynchronous
    import swe_rl.client.calls

    for module in (attempts, swe_rl.client.asynchronous, swe_rl.client.calls):
        source = inspect.getsource(module)
        assert not any(word in source for word in ("eval(", "exec(compile", "__import__", "importlib", "pickle"))
