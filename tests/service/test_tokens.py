"""Several tokens: each has its own sessions, quota and rate."""

import hashlib
from pathlib import Path

import httpx
import pytest

from swe_rl.client import SandboxClient
from swe_rl.errors import AuthError, CapacityError, ConfigError, ResourceNotFoundError, SessionNotFoundError
from swe_rl.service.tokens import Caller, Token, Tokens, read_tokens
from swe_rl.wire import ExecRequest

SECRETS = {"trainer": "secret-of-the-trainer", "guest": "secret-of-the-guest"}


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def tokens(**guest: float) -> Tokens:
    return Tokens([
        Token("trainer", digest(SECRETS["trainer"])),
        Token("guest", digest(SECRETS["guest"]), **guest),  # type: ignore[arg-type]
    ])  # fmt: skip


async def test_what_one_token_made_is_not_there_for_another(start) -> None:
    live = await start(token=tokens())
    async with SandboxClient(live.url, SECRETS["trainer"]) as mine, SandboxClient(live.url, SECRETS["guest"]) as other:
        session = (await mine.create_session("clamp", idempotency_key="k")).session_id
        snapshot = await mine.create_snapshot(session)
        lease = await mine.create_lease()
        assert await other.list_sessions() == [] and await other.list_snapshots() == []
        for call in (
            other.get_session(session),
            other.exec(session, ExecRequest(argv=["true"])),
            other.read_file(session, "src/clamp.py"),
            other.patch(session),
            other.grade(session),
            other.fork(session),
            other.close_session(session),
            other.mcp_access(session),
        ):
            with pytest.raises(SessionNotFoundError):
                await call
        for call in (
            other.fork_snapshot(snapshot.snapshot_id),
            other.delete_snapshot(snapshot.snapshot_id),
            other.renew_lease(lease.lease_id),
            other.end_lease(lease.lease_id),
            other.create_session("clamp", lease_id=lease.lease_id),
        ):
            with pytest.raises(ResourceNotFoundError):
                await call
        assert (await other.create_session("clamp", idempotency_key="k")).session_id != session
        assert (await mine.exec(session, ExecRequest(argv=["true"]))).exit_code == 0


async def test_a_quota_bounds_one_token_alone(start) -> None:
    live = await start(token=tokens(max_sessions=2))
    async with SandboxClient(live.url, SECRETS["trainer"]) as mine, SandboxClient(live.url, SECRETS["guest"]) as guest:
        first = await guest.create_session("clamp")
        with pytest.raises(CapacityError, match="'guest' has 1 of its 2"):
            await guest.fork(first.session_id, 2)
        await guest.fork(first.session_id, 1)
        with pytest.raises(CapacityError, match="'guest' has 2 of its 2"):
            await guest.create_session("clamp")
        await mine.create_session("clamp")
        await guest.close_session(first.session_id)
        await guest.create_session("clamp")


async def test_a_rate_is_kept_by_answers_that_say_when_to_come_back(start) -> None:
    live = await start(token=tokens(calls_per_s=0.5, burst=3))
    async with httpx.AsyncClient(base_url=live.url, timeout=120) as http:
        headers = {"Authorization": f"Bearer {SECRETS['guest']}"}
        answers = [await http.get("/v1/sessions", headers=headers) for _ in range(5)]
        assert [answer.status_code for answer in answers[:3]] == [200] * 3
        last = answers[-1]
        assert (last.status_code, last.json()["error"]) == (429, "RateLimitError")
        assert int(last.headers["retry-after"]) in (1, 2)
        trainer = {"Authorization": f"Bearer {SECRETS['trainer']}"}
        assert (await http.get("/v1/sessions", headers=trainer)).status_code == 200


async def test_a_client_waits_for_its_rate(start) -> None:
    live = await start(token=tokens(calls_per_s=2, burst=1))
    async with SandboxClient(live.url, SECRETS["guest"]) as guest:
        for _ in range(3):
            assert await guest.list_sessions() == []


def test_a_bucket_refills_with_time_up_to_its_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("swe_rl.service.tokens.time.monotonic", lambda: now[0])
    caller = Caller(Token("t", "", calls_per_s=2.0, burst=2))
    caller.admit()
    caller.admit()
    with pytest.raises(CapacityError) as refused:
        caller.admit()
    assert refused.value.retry_after_s == pytest.approx(0.5)
    now[0] += 0.5
    caller.admit()
    now[0] += 1000
    caller.admit()
    caller.admit()
    with pytest.raises(CapacityError):
        caller.admit()


def test_a_file_of_tokens_is_read_by_hash_or_secret(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(
        f'[tokens.a]\nsha256 = "{digest("one")}"\nmax_sessions = 3\n'
        '[tokens.b]\nsecret = "a-secret-of-16-letters"\ncalls_per_s = 10\n'
    )
    a, b = read_tokens(file)
    assert (a.name, a.max_sessions, a.calls_per_s) == ("a", 3, None)
    assert (b.sha256, b.burst) == (digest("a-secret-of-16-letters"), 20)
    known = Tokens([a, b])
    assert known.find("Bearer one").name == "a"
    with pytest.raises(AuthError):
        known.find("Bearer two")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tokens"),
        ("tokens = 3", "tokens"),
        ("[tokens.a]\n", "exactly one"),
        ('[tokens.a]\nsecret = "short-secret"\n', "secret"),
        ('[tokens.a]\nsha256 = "xyz"\n', "sha256"),
        ('[tokens.a]\nsecret = "a-secret-of-16-letters"\nunknown = 1\n', "unknown"),
        ('[tokens.a]\nsecret = "a-secret-of-16-letters"\nmax_sessions = 0\n', "max_sessions"),
        ('[tokens.a]\nsecret = "a-secret-of-16-letters"\nburst = 2\n', "burst"),
        ("[[", "TOML"),
    ],
)
def test_a_broken_file_of_tokens_is_refused_without_showing_a_secret(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem) as error:
        read_tokens(file)
    assert "short-secret" not in str(error.value) and "a-secret-of" not in str(error.value)


def test_two_tokens_with_one_secret_are_refused() -> None:
    with pytest.raises(ConfigError, match="of another token"):
        Tokens([Token("a", digest("x")), Token("b", digest("x"))])
    with pytest.raises(ConfigError, match="no token"):
        Tokens([])
