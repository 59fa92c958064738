"""Structured logs: one JSON object a line, with the ids of the request and session that it belongs to.

The ids are kept for the current task in context variables, so that lines of every module carry them.
"""

import json
import logging
import time
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
SESSION_ID: ContextVar[str] = ContextVar("session_id", default="")
CALLER: ContextVar[str] = ContextVar("caller", default="")
_FIELDS = ("verb", "status", "duration_ms", "outcome", "reason")


class JsonFormatter(logging.Formatter):
    """ts, level, logger, message; ids where there are any; the fields of `extra` that an access line has."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "ts": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, variable in (("request_id", REQUEST_ID), ("session_id", SESSION_ID), ("caller", CALLER)):
            if value := getattr(record, name, None) or variable.get():
                line[name] = value
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Every handler of the root logger writes JSON from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter())
