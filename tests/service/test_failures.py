"""Every refusal is typed: the same class on both ends, and a status that says what kind it is."""

import asyncio

import httpx
import pytest

from swe_rl.client import SandboxClient, attempts
from swe_rl.errors import (
    AuthError,
    ConfigError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SweRlError,
)
from swe_rl.service.failures import STATUSES
from swe_rl.service.routes.context import deadline
from swe_rl.wire import ErrorBody, ExecRequest

TOKEN = "the-service's-own-token"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(attempts, "PATIENCE_S", 0.0)


class Losing(httpx.AsyncBaseTransport):
    """A connection that loses its first answers after the service has acted on the request."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self._real = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._real.handle_async_request(request)
        if self.losses:
            self.losses -= 1
            await answer.aclose()
            raise httpx.ReadError("lost", request=request)
        return answer


async def test_without_the_token_only_health_answers(live) -> None:
    async with httpx.AsyncClient(base_url=live.url, timeout=120) as http:
        assert (await http.get("/health")).json()["status"] == "ok"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer é"}):
            encoded = {name: value.encode() for name, value in headers.items()}
            for path in ("/v1/tasks", "/v1/sessions", "/v1/sessions/x", "/v1/sessions/x/patch"):
                answer = await http.get(path, headers=encoded)
                assert answer.status_code == 401
                assert ErrorBody.model_validate(answer.json()).error == "AuthError"
    async with SandboxClient(live.url, "wrong") as client:
        with pytest.raises(AuthError):
            await client.list_tasks()


async def test_bodies_that_make_no_sense_are_refused_with_the_field(live) -> None:
    info = await live.client.create_session("clamp")
    bodies = [
        {},
        {"argv": ["ls"], "script": "ls"},
        {"argv": []},
        {"argv": ["a\0b"]},
        {"argv": ["ls"], "timeout_s": 0},
        {"argv": ["ls"], "timeout_s": True},
        {"argv": ["ls"], "timeout_s": 1e9},
        {"argv": ["ls"], "unknown": 1},
        {"argv": ["ls"], "env": {"A=B": "x"}},
        {"argv": ["ls"], "env": {"": "x"}},
    ]
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        for body in bodies:
            answer = await http.post(f"/v1/sessions/{info.session_id}/exec", json=body)
            assert answer.status_code == 422, body
            failure = ErrorBody.model_validate(answer.json())
            assert (failure.error, failure.session_id) == ("ConfigError", info.session_id)
        assert (await http.post("/v1/sessions", content=b"{not json")).status_code == 422
        assert (await http.get("/v1/nowhere")).status_code == 404
        wrong = await http.request("OPTIONS", f"/v1/sessions/{info.session_id}/files")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, PUT")
        for body in ({"ttl_s": "60"}, {"ttl_s": True}):
            assert (await http.post("/v1/leases", json=body)).status_code == 422
        ErrorBody.model_validate((await http.get("/v1/nowhere")).json())
    assert (await live.client.exec(info.session_id, ExecRequest(argv=["true"]))).exit_code == 0


async def test_text_that_no_encoding_knows_does_not_break_the_service(live) -> None:
    info = await live.client.create_session("clamp")
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        for body in (b'{"argv": ["echo", "\\ud800"]}', b'{"script": "echo \\ud800"}', b'{"argv": ["\xff"]}'):
            answer = await http.post(f"/v1/sessions/{info.session_id}/exec", content=body)
            assert answer.status_code in (200, 422)
    assert (await live.client.exec(info.session_id, ExecRequest(argv=["true"]))).exit_code == 0


async def test_a_file_beyond_the_limit_is_refused(live) -> None:
    info = await live.client.create_session("clamp")
    with pytest.raises(SweRlError, match="33554432"):
        await live.client.write_file(info.session_id, "big", b"x" * (32 * 1024 * 1024 + 1))


async def test_a_lost_answer_to_a_creation_makes_no_second_session(live) -> None:
    async with SandboxClient(live.url, TOKEN, transport=Losing(2)) as client:
        await client.create_session("clamp")
    assert (await live.client.health()).num_sessions == 1


async def test_a_lost_verdict_is_asked_for_again(live) -> None:
    info = await live.client.create_session("clamp")
    async with SandboxClient(live.url, TOKEN, transport=Losing(1)) as client:
        assert (await client.grade(info.session_id)).reward == 0.0


async def test_a_command_whose_answer_was_lost_is_not_run_again(live) -> None:
    info = await live.client.create_session("clamp")
    async with SandboxClient(live.url, TOKEN, transport=Losing(1)) as client:
        with pytest.raises(SandboxUnavailableError, match="lost"):
            await client.exec(info.session_id, ExecRequest(script="echo x >>count"))
    assert await live.client.read_file(info.session_id, "count") == b"x\n"


async def test_a_service_that_is_not_there_is_unavailable() -> None:
    async with SandboxClient("http://127.0.0.1:9", TOKEN) as client:
        with pytest.raises(SandboxUnavailableError, match="5 attempts"):
            await client.exec("s", ExecRequest(argv=["true"]))


async def test_an_error_that_nobody_foresaw_tells_its_kind_and_the_request_and_no_more(live) -> None:
    live.service.leases = None
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Request-Id": "mine"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=120) as http:
        answer = await http.get("/v1/leases")
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    body = ErrorBody.model_validate(answer.json())
    assert (body.error, body.request_id) == ("SandboxError", "mine")
    assert body.message == "sandbox service: internal error: AttributeError"


async def test_a_time_out_within_a_call_keeps_its_own_words() -> None:
    with pytest.raises(SandboxTimeoutError, match="the engine didn't answer"):
        async with deadline(60.0, "a command"):
            raise SandboxTimeoutError("docker: the engine didn't answer within 60 s")
    with pytest.raises(SandboxTimeoutError, match="a command took more than"):
        async with deadline(0.01, "a command"):
            await asyncio.sleep(60)


def answering(handler) -> SandboxClient:
    return SandboxClient("http://service", TOKEN, transport=httpx.MockTransport(handler))


@pytest.mark.parametrize("error", [cls for cls, _ in STATUSES])
async def test_every_error_of_the_service_arrives_as_its_own_class(error: type[SweRlError]) -> None:
    body = ErrorBody(error=error.__name__, message="why").model_dump()
    with pytest.raises(error, match="why") as caught:
        await answering(lambda request: httpx.Response(500, json=body)).health()
    assert type(caught.value) is error


@pytest.mark.parametrize("name", ["os.system", "KeyboardInterrupt", "SystemExit", "Exception", "SweRlError"])
async def test_a_name_that_is_not_in_the_table_is_a_plain_sandbox_error(name: str) -> None:
    body = ErrorBody(error=name, message="why").model_dump()
    with pytest.raises(SandboxError, match="why") as caught:
        await answering(lambda request: httpx.Response(500, json=body)).health()
    assert type(caught.value) is SandboxError


async def test_answers_of_something_else_are_told_apart() -> None:
    with pytest.raises(SandboxError, match="is it a swe-rl service"):
        await answering(lambda request: httpx.Response(502, text="<html>bad gateway</html>")).health()
    with pytest.raises(SandboxError, match="can't read the answer"):
        await answering(lambda request: httpx.Response(200, json={"status": "fine"})).health()


async def test_no_answer_in_time_is_a_time_out_and_not_repeated() -> None:
    calls = []

    def hang(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        raise httpx.ReadTimeout("slow", request=request)

    with pytest.raises(SandboxTimeoutError):
        await answering(hang).grade("s")
    assert len(calls) == 1


def test_a_client_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWE_RL_SANDBOX_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="SWE_RL_SANDBOX_TOKEN"):
        SandboxClient("http://service")
