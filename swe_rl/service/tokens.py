"""Who may call: tokens by name, each with its quota of sessions and its rate of calls.

A token is known by the hash of its secret alone. A file of tokens is TOML:

    [tokens.trainer]
    sha256 = "9f86d0..."      # hex of the secret's SHA-256; or: secret = "..." in a file that nobody else reads
    max_sessions = 128        # default: as many as the service has
    calls_per_s = 200         # default: no limit
    burst = 400               # calls that may come at once (default: two seconds' worth)
"""

import hashlib
import hmac
import math
import secrets
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from swe_rl.errors import AuthError, ConfigError, RateLimitError


@dataclass(frozen=True, slots=True)
class Token:
    """One caller's rights. `calls_per_s` of None: as many as it likes."""

    name: str
    sha256: str
    max_sessions: int | None = None
    calls_per_s: float | None = None
    burst: int = 0


@dataclass(slots=True)
class Caller:
    """One token and the calls it has left: a bucket that refills with time."""

    token: Token
    _calls_left: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._calls_left = float(self.token.burst)
        self._filled_at = time.monotonic()

    @property
    def name(self) -> str:
        return self.token.name

    def admit(self) -> None:
        """Takes one call. Raises RateLimitError with the seconds until the next one in `retry_after_s`."""
        rate = self.token.calls_per_s
        if rate is None:
            return
        now = time.monotonic()
        self._calls_left = min(float(self.token.burst), self._calls_left + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._calls_left < 1:
            error = RateLimitError(
                f"sandbox service: token {self.name!r} may make {rate:g} calls a second, {self.token.burst} at once; "
                "repeat this one later"
            )
            error.retry_after_s = (1 - self._calls_left) / rate
            raise error
        self._calls_left -= 1


class Tokens:
    """All tokens of a service, and the passes it gives out for the MCP endpoint of single sessions."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        """Raises ConfigError without any token, or where two share a secret."""
        self._by_hash: dict[bytes, Caller] = {}
        for token in tokens:
            if self._by_hash.setdefault(token.sha256.encode(), caller := Caller(token)) is not caller:
                raise ConfigError(f"tokens: {token.name!r} has the secret of another token; give each its own")
        if not self._by_hash:
            raise ConfigError("sandbox service: no token; set SWE_RL_SANDBOX_TOKEN to a secret that callers share")
        self._key = secrets.token_bytes(32)

    def find(self, authorization: str) -> Caller:
        """The caller behind an Authorization header. Raises AuthError."""
        secret = _bearer(authorization)
        # Found by hash: how long a comparison takes tells nothing about a secret that isn't known.
        caller = self._by_hash.get(hashlib.sha256(secret).hexdigest().encode()) if secret else None
        if caller is None:
            raise AuthError(
                "sandbox service: the bearer token is missing or wrong; set SWE_RL_SANDBOX_TOKEN as the service has it"
            )
        return caller

    def session_pass(self, session_id: str) -> str:
        """The bearer token of one session's MCP endpoint; it ends with the service."""
        return hmac.new(self._key, session_id.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    def is_session_pass(self, session_id: str, authorization: str) -> bool:
        return hmac.compare_digest(self.session_pass(session_id).encode(), _bearer(authorization))


def single_token(secret: str) -> Tokens:
    """One token without quota. Raises ConfigError if it is empty."""
    return Tokens([Token("default", _digest(secret))] if secret else [])


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    secret: str | None = Field(default=None, min_length=16)
    max_sessions: int | None = Field(default=None, gt=0)
    calls_per_s: int | float | None = Field(default=None, gt=0)
    burst: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_secret(self) -> "_Entry":
        if (self.sha256 is None) == (self.secret is None):
            raise ValueError("give exactly one of sha256 and secret")
        if self.burst is not None and self.calls_per_s is None:
            raise ValueError("burst without calls_per_s")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: dict[str, _Entry] = Field(min_length=1)


def read_tokens(path: Path) -> list[Token]:
    """Raises ConfigError, one line with the file and the key; never with a secret."""
    try:
        parsed = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: isn't TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None  # the cause would show the secret
    return [_token(name, entry) for name, entry in parsed.tokens.items()]


def _token(name: str, entry: _Entry) -> Token:
    digest = entry.sha256 or _digest(entry.secret or "")
    burst = entry.burst or math.ceil(2 * (entry.calls_per_s or 0))
    return Token(name, digest, entry.max_sessions, entry.calls_per_s, max(1, burst))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _bearer(authorization: str) -> bytes:
    """The header comes as Latin-1, its bytes are UTF-8."""
    scheme, _, given = authorization.partition(" ")
    return given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
