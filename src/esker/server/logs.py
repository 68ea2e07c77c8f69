"""What a server says on standard error: a line for each thing, as text or as JSON.

What clients sent can be in it. Whatever is not printable ASCII is escaped, so that no line can look
like two, and secrets that somebody put where none belongs are taken out.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from esker.server.access.keys import redacted
from esker.server.settings import Settings

LOG: Final = logging.getLogger("esker.server")
_PLAIN: Final = {number: chr(number) for number in range(0x20, 0x7F)}


def escaped(text: str) -> str:
    """Text of one line, in ASCII."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_PLAIN.get(ord(each)) or f"\\u{ord(each):04x}" for each in text)


class Lines(logging.Formatter):
    """A line of text; the lines of a trace are below it."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = escaped(redacted(record.getMessage()))
        text = f"{when} {record.levelname.lower()} {record.name}: {said}"
        if record.exc_info:
            trace = redacted(self.formatException(record.exc_info)).splitlines()
            text += "".join(f"\n    {escaped(each)}" for each in trace)
        return text


class JsonLines(logging.Formatter):
    """One JSON object a line; what has fields of its own (`extra={"fields": ...}`) shows them."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": when, "level": record.levelname.lower(), "logger": record.name,
            "message": redacted(record.getMessage()),
        }  # fmt: skip
        for name, value in getattr(record, "fields", {}).items():
            told[name] = redacted(value) if isinstance(value, str) else value
        if record.exc_info:
            told["trace"] = redacted(self.formatException(record.exc_info))
        return json.dumps(told)


def set_up(settings: Settings) -> None:
    """From now on what is logged goes to standard error, in the form that was asked for."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
