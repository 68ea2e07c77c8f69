"""CloudEvents: what other event systems speak, on append and on read.

    binary       the attributes are headers (ce-id, ce-type, ...), the body is the data
    structured   application/cloudevents+json, one event
    batch        application/cloudevents-batch+json, an array of them

An event becomes one record, and the record the same event again:

    data             the value: the bytes of binary mode and of data_base64, the text of a string
                     that is not said to be JSON, else the JSON as it came
    type             the tag
    partitionkey     the key, if the event has this extension
    time             the timestamp; and a header, for what is finer than a microsecond
    datacontenttype  the header `content-type`
    all others       headers, under the name that they have in binary mode: ce-id, ce-source, ...

The id is a header, and no idempotency key. CloudEvents lets a receiver take two events of one
source and id for one; but who numbers his events anew with every run would lose them without being
told. Who wants a retry to count once says so, with `Idempotency-Key`.

A record that was no event is read as one all the same: its type is its tag or `esker.record`, its
source the topic, its id shard and offset.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from esker.records import Record
from esker.server.bodies.codec import SOMETHINGS, check_count
from esker.server.http.call import Call
from esker.server.http.faults import Fault

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
PREFIX: Final = "ce-"
_NAME: Final = re.compile(r"[a-z0-9]{1,64}", re.ASCII)
_JSON: Final = re.compile(r"[^;]*[/+]json\s*(;.*)?", re.IGNORECASE)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEEDED: Final = ("id", "source", "type", "specversion")
_KIND: Final = "esker.record"


# ---- appending -------------------------------------------------------------------------------


def is_event(call: Call) -> bool:
    """Whether a body is an event in binary mode."""
    return f"{PREFIX}specversion" in call.headers and call.media not in (STRUCTURED, BATCHED)


def binary_in(headers: Mapping[str, str], data: bytes) -> Record:
    """An event whose attributes are headers."""
    found = {
        name.removeprefix(PREFIX): _attribute(value)
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    return _record(found, data, headers.get("content-type"))


def _attribute(value: str) -> str:
    """A header as the text that was meant; what is not UTF-8 is Latin-1, or stays as it stands.

    Some libraries send text without encoding it with %, as HTTP once had it.
    """
    with suppress(UnicodeDecodeError):
        value = value.encode("latin-1").decode()
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        return value


def events_in(data: bytes, media: str, limit: int) -> list[Record]:
    """One event, or an array of them, as JSON; counted before they are decoded."""
    kind: Any = dict[str, Raw] if media == STRUCTURED else list[dict[str, Raw]]
    try:
        if media == BATCHED and data.count(b"{") > limit:
            check_count(len(SOMETHINGS.decode(data)), limit)
        found = msgspec.json.decode(data, type=kind)
        if media == STRUCTURED:
            return [_event_in(found)]
        made: list[Record] = []
        try:
            made.extend(map(_event_in, found))  # one by one, so that their number tells which
        except Fault as fault:
            raise Fault(fault.code, f"{fault.message} - at `$[{len(made)}]`") from None
        return made
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise Fault("invalid_request", f"the body is not {media}: {problem}") from None


def _event_in(event: dict[str, Raw]) -> Record:
    attributes: dict[str, str] = {}
    data = event.pop("data", None)
    coded = event.pop("data_base64", None)
    for name, raw in event.items():
        value = msgspec.json.decode(raw)
        if value is None:
            continue  # as if it were not there
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not isinstance(value, str | int):
            raise _wrong(f"the attribute {name[:80]!r} is neither text, a whole number nor a truth")
        attributes[name] = str(value)
    content = attributes.pop("datacontenttype", None)
    return _record(attributes, _data(data, coded, content), content)


def _data(data: Raw | None, coded: Raw | None, content: str | None) -> bytes:
    if data is not None and coded is not None:
        raise _wrong("an event has either `data` or `data_base64`")
    if coded is not None:
        try:
            return base64.b64decode(msgspec.json.decode(coded, type=str), validate=True)
        except (binascii.Error, ValueError):
            raise _wrong("its data_base64 is not base64") from None
    if data is None:
        return b""
    if content is not None and not _JSON.fullmatch(content) and bytes(data)[:1] == b'"':
        return msgspec.json.decode(data, type=str).encode()
    return bytes(data)


def _record(attributes: dict[str, str], data: bytes, content: str | None) -> Record:
    for name in _NEEDED:
        if not attributes.get(name):
            raise _wrong(f"it has no {name}")
    if attributes["specversion"] != "1.0":
        raise _wrong(f"specversion {attributes['specversion'][:20]!r}; 1.0 is what is known here")
    for name in attributes:
        if not _NAME.fullmatch(name):
            raise _wrong(f"an attribute cannot be called {name[:80]!r}")
    time = attributes.get("time")
    key = attributes.get("partitionkey")
    headers = {
        PREFIX + name: _bytes(value)
        for name, value in attributes.items()
        if name not in ("type", "partitionkey")
    }
    if content is not None:
        headers["content-type"] = _bytes(content)
    return Record(
        data, None if key is None else _bytes(key), attributes["type"], None, headers,
        None if time is None else _micros(time),
    )  # fmt: skip


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong("an attribute is not Unicode") from None


def _micros(time: str) -> int:
    """An RFC 3339 time in microseconds since 1970."""
    found = _TIME.fullmatch(time)
    if found is None:
        raise _wrong(f"time {time[:40]!r} is not as RFC 3339 has it")
    day, clock, part, zone = found.groups()
    try:
        zone = "+00:00" if zone in "Zz" else zone
        moment = datetime.fromisoformat(f"{day}T{clock}{zone}") - _EPOCH
    except ValueError:
        raise _wrong(f"there is no time {time[:40]!r}") from None
    return moment // timedelta(microseconds=1) + int((part or "0")[:6].ljust(6, "0"))


def _wrong(what: str) -> Fault:
    return Fault("invalid_record", f"not a CloudEvent: {what}")


# ---- reading ---------------------------------------------------------------------------------


def events_out(topic: str, records: Iterable[Record]) -> bytes:
    """Records as a batch of events."""
    return msgspec.json.encode([_event_out(topic, record) for record in records])


def _event_out(topic: str, record: Record) -> dict[str, Any]:
    headers = dict(record.headers or {})
    content = headers.pop("content-type", None)
    found: dict[str, Any] = {}
    if f"{PREFIX}specversion" in headers:
        for name, value in headers.items():
            if name.startswith(PREFIX):
                found[name.removeprefix(PREFIX)] = value.decode(errors="replace")
        found["type"] = record.tag or _KIND
    else:
        found = {
            "specversion": "1.0", "id": f"{record.shard}-{record.offset}",
            "source": f"/v1/topics/{topic}", "type": record.tag or _KIND,
        }  # fmt: skip
        with suppress(ValueError, OverflowError, OSError):  # a year that has more than four digits
            found["time"] = record.time.isoformat().replace("+00:00", "Z")
    if record.key is not None:
        found["partitionkey"] = record.key.decode(errors="replace")
    if content is not None:
        found["datacontenttype"] = content.decode(errors="replace")
    return found | _data_out(record.value, found.get("datacontenttype"))


def _data_out(value: bytes, content: str | None) -> dict[str, Any]:
    if not value:
        return {}
    if content is None or _JSON.fullmatch(content):
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return {"data_base64": base64.b64encode(value).decode()}
        return {"data": Raw(value)}
    try:
        return {"data": value.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(value).decode()}
