"""What both clients agree on: how a request is made of a call, when it is made again, and which error an answer is."""

import os
import random
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from swe_rl.client.calls import Call
from swe_rl.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    PatchError,
    PathError,
    RateLimitError,
    ResourceNotFoundError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SessionNotFoundError,
    SweRlError,
    TaskError,
)
from swe_rl.wire import ErrorBody

TOKEN_VARIABLE = "SWE_RL_SANDBOX_TOKEN"
MAX_ATTEMPTS = 5
FIRST_DELAY_S = 0.2
CONNECT_TIMEOUT_S = 10.0
PATIENCE_S = 60.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=60.0)

_ERRORS: dict[str, type[SweRlError]] = {
    cls.__name__: cls
    for cls in (
        AuthError,
        CapacityError,
        ConfigError,
        PatchError,
        PathError,
        RateLimitError,
        ResourceNotFoundError,
        SandboxError,
        SandboxTimeoutError,
        SandboxUnavailableError,
        SessionNotFoundError,
        TaskError,
    )
}
R = TypeVar("R")
_JSON = (b"content-type", b"application/json")


class Endpoint:
    """Address and token of one service."""

    def __init__(self, base_url: str, token: str | None) -> None:
        """`token` defaults to the variable SWE_RL_SANDBOX_TOKEN. Raises ConfigError without one, or for no address."""
        token = token or os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(f"sandbox client: no token; set {TOKEN_VARIABLE} to the one of the service at {base_url}")
        self.base_url = base_url.rstrip("/")
        try:
            self._url = httpx.URL(self.base_url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ConfigError(f"sandbox client: {base_url!r} isn't an address: {error}") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ConfigError(f"sandbox client: {base_url!r} isn't an address, expected http:// or https://")
        self._headers = [
            (b"host", self._url.netloc),
            (b"authorization", f"Bearer {token}".encode()),
            (b"accept", b"*/*"),
        ]

    def request(self, call: Call[Any]) -> httpx.Request:
        """A transport takes it as it is: a client's cookies, redirects and proxies have no business here."""
        path = self._url.raw_path.rstrip(b"/").decode() + call.path
        if call.params:
            path = f"{path}?{httpx.QueryParams(call.params)}"
        url = self._url.copy_with(raw_path=path.encode())
        headers = [*self._headers, _JSON] if call.method == "POST" and call.content else self._headers
        wait = {"connect": CONNECT_TIMEOUT_S, "read": call.timeout_s, "write": call.timeout_s, "pool": call.timeout_s}
        return httpx.Request(call.method, url, headers=headers, content=call.content, extensions={"timeout": wait})


class Attempts:
    """One call's tries. After a failure it gives the seconds to wait before the next one, or raises."""

    def __init__(self, call: Call[Any], base_url: str) -> None:
        self.where = f"sandbox service at {base_url}: {call.method} {call.path}"
        self._call = call
        self._num_failed = 0
        self._patient_until = time.monotonic() + PATIENCE_S

    def after_error(self, error: httpx.TransportError) -> float:
        """Raises SandboxTimeoutError or SandboxUnavailableError."""
        was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        if was_sent and isinstance(error, httpx.TimeoutException):
            raise SandboxTimeoutError(f"{self.where}: no answer within {self._call.timeout_s:g} s") from error
        if was_sent and not self._call.is_repeatable:
            raise SandboxUnavailableError(f"{self.where}: the connection was lost: {error!r}") from error
        self._num_failed += 1
        if self._num_failed == MAX_ATTEMPTS:
            raise SandboxUnavailableError(
                f"{self.where}: no connection in {MAX_ATTEMPTS} attempts: {error!r}; is the service running?"
            ) from error
        return float(FIRST_DELAY_S * 2 ** (self._num_failed - 1) * random.uniform(0.75, 1.25))

    def after_refusal(self, answer: httpx.Response) -> float:
        """A call that a rate limit refused did nothing and is repeated for a while. Raises what the answer names."""
        error = self._error(answer)
        if not isinstance(error, RateLimitError):
            raise error
        wait_s = error.retry_after_s * random.uniform(1.0, 1.25)
        if time.monotonic() + wait_s > self._patient_until:
            raise error
        return wait_s

    def _error(self, answer: httpx.Response) -> SweRlError:
        try:
            body = ErrorBody.model_validate_json(answer.content)
        except ValidationError:
            text = answer.content[:200].decode(errors="replace")
            return SandboxError(f"{self.where}: status {answer.status_code}: {text!r}; is it a swe-rl service?")
        error = _ERRORS.get(body.error, SandboxError)(body.message)
        if isinstance(error, CapacityError):
            after = answer.headers.get("retry-after", "")
            error.retry_after_s = float(after) if after.isdigit() else 1.0
        return error


def read_answer(call: Call[R], body: bytes, headers: Mapping[str, str]) -> R:
    """Raises SandboxError for what isn't the answer that the call expects."""
    try:
        return call.read(body, headers)
    except (ValueError, KeyError, SweRlError) as error:
        raise SandboxError(f"sandbox service: {call.method} {call.path}: can't read the answer: {error}") from error


def is_good(call: Call[Any], answer: httpx.Response) -> bool:
    return answer.is_success or answer.status_code in call.good
