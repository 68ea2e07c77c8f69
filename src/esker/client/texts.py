"""Positions, jobs and records in the words of JSON and of queries."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from esker import positions
from esker.format.columns import Extra
from esker.records import Record


def position(given: Any) -> str:
    """A position as text; refused here if it is none."""
    parsed = positions.parse(given, 0)
    if given is None:
        return positions.EARLIEST
    if isinstance(given, datetime):
        return f"@{given.isoformat()}"
    if isinstance(given, int):
        return str(parsed.number if given >= 0 else -parsed.number)
    return str(given).strip()


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def record_in(value: bytes, extra: Extra | None) -> dict[str, Any]:
    """A record to append; its bytes in base64, for they may be anything."""
    told: dict[str, Any] = {"base64": text64(value)}
    if extra is None:
        return told
    key, tag, node, headers, timestamp = extra
    if key is not None:
        told["key_base64"] = text64(key)
    if tag is not None:
        told["tag"] = tag
    if node is not None:
        told["node"] = node
    if headers:
        told["headers"] = {name: {"base64": text64(cell)} for name, cell in headers.items()}
    if timestamp is not None:
        told["timestamp"] = timestamp
    return told


def record_out(told: dict[str, Any]) -> Record:
    """A record as a server tells it."""
    headers = told.get("headers")
    return Record(
        _bytes(told, "value", "base64") or b"",
        _bytes(told, "key", "key_base64"),
        told.get("tag"),
        told.get("node"),
        None
        if headers is None
        else {
            name: cell.encode() if isinstance(cell, str) else base64.b64decode(cell["base64"])
            for name, cell in headers.items()
        },
        told["timestamp"],
        told["offset"],
        told["shard"],
    )


def _bytes(told: dict[str, Any], plain: str, coded: str) -> bytes | None:
    if coded in told:
        return base64.b64decode(told[coded])
    return told[plain].encode() if plain in told else None
