"""The head and the tail of a stream in bounded memory."""

from collections import deque

_MARKER_ROOM = 64


class Capture:
    """Keeps the first and the last half of `limit_bytes`; what lies between is counted and dropped."""

    def __init__(self, limit_bytes: int) -> None:
        room = limit_bytes - _MARKER_ROOM if limit_bytes >= 4 * _MARKER_ROOM else limit_bytes
        self._has_marker = room < limit_bytes
        self._limit_bytes = limit_bytes
        self._head_room = room // 2
        self._tail_room = room - self._head_room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        room = self._limit_bytes - len(self._head)
        if self._tail_bytes == 0 and room > 0:  # until the limit is passed, all of it is head
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        self._tail.append(chunk[-self._tail_room :])
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= self._tail_room:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated_bytes(self) -> int:
        return max(0, self.total_bytes - self._limit_bytes) and self.total_bytes - self._head_room - self._tail_room

    def data(self) -> bytes:
        """At most `limit_bytes`; a dropped middle is named by one line where the limit leaves room for it."""
        if not self.truncated_bytes:
            return bytes(self._head)
        seen = bytes(self._head) + b"".join(self._tail)
        marker = f"\n[... {self.truncated_bytes} bytes left out ...]\n".encode() if self._has_marker else b""
        return seen[: self._head_room] + marker + seen[-self._tail_room :]


class Tail:
    """The last `limit_bytes` of a stream, to be read from any offset while it grows."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        self._held += chunk[-self._limit_bytes :]
        if len(self._held) > 2 * self._limit_bytes:  # not at every chunk: cutting the front moves the rest
            del self._held[: -self._limit_bytes]

    def read(self, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes, and where they begin: at `offset`, or later where that is no longer held."""
        first = self.total_bytes - len(self._held)
        begin = min(max(offset, first), self.total_bytes)
        return bytes(self._held[begin - first : begin - first + limit]), begin
