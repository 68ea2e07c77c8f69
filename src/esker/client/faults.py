"""Errors of a server, as the exceptions that a directory would have raised.

The code of an answer is the code of an exception. Codes that only a server has stand here. What an
exception carries besides its text comes in `detail`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from esker import errors
from esker.errors import (
    BatchTooLarge,
    ColdUnavailable,
    Corruption,
    DataGap,
    EskerError,
    Forbidden,
    InvalidFilter,
    InvalidOption,
    MemberBusy,
    SequenceGap,
    ServerFault,
    StaleLease,
    StorageError,
    Throttled,
    Unavailable,
    WriterBusy,
)
from esker.records import Gap


class Told(msgspec.Struct):
    """What an answer says of an error."""

    code: str
    message: str
    request: str = ""
    detail: dict[str, Any] | None = None


class Body(msgspec.Struct):
    """An answer that is an error."""

    error: Told


def _kinds(kind: type[EskerError]) -> Iterator[type[EskerError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


KINDS: Final[dict[str, type[EskerError]]] = {
    kind.code: kind for kind in _kinds(EskerError) if kind.__module__ == errors.__name__
}
_SERVERS_OWN: Final[dict[str, type[EskerError]]] = {
    "invalid_request": InvalidOption,
    "payload_too_large": BatchTooLarge,
    "misdirected": Forbidden,
    "not_ready": Unavailable,
    "shutting_down": Unavailable,
    "store_closed": Unavailable,  # the server's is; this handle of it is not
}
_CARRIED: Final[dict[type[EskerError], tuple[str, ...]]] = {
    SequenceGap: ("expected",),
    WriterBusy: ("pid", "since"),
    MemberBusy: ("pid",),
    StaleLease: ("jobs",),
    InvalidFilter: ("at",),
}
_ADVICE: Final = "Whoever runs the server can look with `esker verify`."


def exception(status: int, headers: Mapping[str, str], body: bytes, url: str) -> EskerError:
    """The exception that an answer stands for."""
    told: Told | None = None
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        told = msgspec.json.decode(body, type=Body).error
    if told is None or status < 400:
        return ServerFault(
            f"{url} answered {status}, and not as a server of Esker does; is it one?", status=status
        )
    detail = told.detail or {}
    kind = _SERVERS_OWN.get(told.code) or KINDS.get(told.code) or ServerFault
    message = told.message
    if kind is DataGap:
        known = {name: detail.get("gap", {}).get(name) for name in Gap.__struct_fields__}
        return DataGap(msgspec.convert(known, Gap))
    if kind is Corruption:
        return Corruption(message, path=url, advice=_ADVICE)
    if kind is ColdUnavailable:
        return ColdUnavailable(message, root=url)
    if issubclass(kind, StorageError):
        return kind(message, path=url)
    if kind is Throttled:
        return Throttled(message, retry_after=_seconds(headers.get("retry-after", "1")))
    if kind is ServerFault:
        number = f", request {told.request}" if told.request else ""
        return ServerFault(f"{message} ({told.code}{number})", status=status)
    carried = {name: detail[name] for name in _CARRIED.get(kind, ()) if name in detail}
    return kind(message, **carried)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 1.0
