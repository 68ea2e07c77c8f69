"""OpenTelemetry logs: POST /otlp/v1/logs, as an exporter of OTLP over HTTP sends them.

Protobuf where `opentelemetry-proto` is installed (the extra `otel`), JSON always. Every log record
becomes one record of the topic `otlp.logs`, or of the one that the header Esker-Topic names:

    value       JSON: body, attributes, severity, trace_id, span_id, resource, scope ...
    timestamp   that of the log record, or when it was observed
    tag         the severity: its text, or TRACE, DEBUG, INFO, WARN, ERROR, FATAL by its number
    key         the resource's service.name: the logs of a service stay in order

What cannot be stored (too large) is refused record by record, and told as OTLP's partial success;
everything else of the call is appended, all or none.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.records import Record
from esker.server.appending import appended
from esker.server.bodies.codec import Something, check_count
from esker.server.bodies.wire_rooms import Exported
from esker.server.http.call import AT_ONCE, Call, Reply
from esker.server.http.faults import Fault
from esker.server.live.latency import took

if TYPE_CHECKING:
    from esker.engine.store import Store

TOPIC: Final = "otlp.logs"
PROTOBUF: Final = "application/x-protobuf"
SEVERITIES: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
NANOS_MAX: Final = (1 << 63) - 1
DEPTH_MAX: Final = 64  # of values within values
PARTS_MAX: Final = 600_000  # of an export: records, attributes, values; or fields of protobuf
# Which fields of protobuf are messages themselves; of these those are counted that are logs.
_RESOURCE, _SCOPE, _LOG, _PAIR, _VALUE, _VALUES, _PAIRS, _OF_RESOURCE, _OF_SCOPE = range(1, 10)
_WITHIN: Final[dict[int, dict[int, int]]] = {
    0: {1: _OF_RESOURCE}, _OF_RESOURCE: {1: _RESOURCE, 2: _OF_SCOPE}, _RESOURCE: {1: _PAIR},
    _OF_SCOPE: {1: _SCOPE, 2: _LOG}, _SCOPE: {3: _PAIR}, _LOG: {5: _VALUE, 6: _PAIR},
    _PAIR: {2: _VALUE}, _VALUE: {5: _VALUES, 6: _PAIRS}, _VALUES: {1: _VALUE}, _PAIRS: {1: _PAIR},
}  # fmt: skip


# ---- what is sent, in either form ------------------------------------------------------------


class Item(msgspec.Struct, rename="camel"):
    """A name and a value."""

    key: str = ""
    value: Any = None


class Resource(msgspec.Struct, rename="camel"):
    attributes: list[Item] = []


class Scope(msgspec.Struct, rename="camel"):
    name: str = ""
    version: str = ""
    attributes: list[Item] = []


class Log(msgspec.Struct, rename="camel"):
    time_unix_nano: int | str = 0
    observed_time_unix_nano: int | str = 0
    severity_number: int | str = 0
    severity_text: str = ""
    body: Any = None
    attributes: list[Item] = []
    dropped_attributes_count: int = 0
    flags: int = 0
    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""


class ScopeLogs(msgspec.Struct, rename="camel"):
    scope: Scope | None = None
    log_records: list[Log] = []
    schema_url: str = ""


class ResourceLogs(msgspec.Struct, rename="camel"):
    resource: Resource | None = None
    scope_logs: list[ScopeLogs] = []
    schema_url: str = ""


class Request(msgspec.Struct, rename="camel"):
    """An export, as OTLP's JSON has it; fields that are not known are passed over, as it asks."""

    resource_logs: list[ResourceLogs] = []


class _CountedLogs(msgspec.Struct, rename="camel"):
    log_records: list[Something] = []


class _CountedScopes(msgspec.Struct, rename="camel"):
    scope_logs: list[_CountedLogs] = []


class _Counted(msgspec.Struct, rename="camel"):
    """An export, of which only matters how many log records it has."""

    resource_logs: list[_CountedScopes] = []


class Value(msgspec.Struct, omit_defaults=True):
    """A log record as it is stored."""

    body: Any = None
    attributes: dict[str, Any] | None = None
    severity_text: str = ""
    severity_number: int = 0
    event_name: str = ""
    trace_id: str = ""
    span_id: str = ""
    flags: int = 0
    observed_timestamp: int = 0
    dropped_attributes_count: int = 0
    resource: dict[str, Any] | None = None
    scope: dict[str, Any] | None = None


# ---- the call --------------------------------------------------------------------------------


async def logs(call: Call) -> Reply:
    """Take what an exporter sends."""
    topic = call.headers.get("esker-topic") or TOPIC
    if not call.principal.may("write", topic):
        raise Fault("forbidden", "the key is not for topics of this name")
    protobuf = call.media == PROTOBUF
    proto = _proto() if protobuf else None
    data, most = await call.read(), call.app.settings.batch_records
    records: list[Record] = []
    refused: list[str] = []

    def decode(store: Store) -> None:
        request = _from_protobuf(proto, data, most) if protobuf else _from_json(data, most)
        limit = store._limit_of(topic)
        for record in _records(request):
            if len(record.value) > limit:
                refused.append(f"a log record of {len(record.value)} bytes; at most {limit}")
            else:
                records.append(record)

    await call.app.run(decode)  # which may take a while
    if records:
        took(call, "parse", call.app.clock.monotonic() - call.began)
        await appended(call, topic, records)
    return _reply(proto, refused)


def _reply(proto: Any, refused: list[str]) -> Reply:
    if proto is not None:
        answer = proto.ExportLogsServiceResponse()
        if refused:
            answer.partial_success.rejected_log_records = len(refused)
            answer.partial_success.error_message = refused[0]
        return Reply(answer.SerializeToString(), media=PROTOBUF)
    if not refused:
        return Reply({})
    told = {"rejectedLogRecords": str(len(refused)), "errorMessage": refused[0]}
    return Reply(Exported(told))


def _proto() -> Any:
    try:
        return import_module("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    except ImportError:
        raise Fault(
            "unsupported_media_type", "this server has no protobuf (pip install 'esker[otel]'); "
            "have the exporter send JSON",
        ) from None  # fmt: skip


# ---- reading it ------------------------------------------------------------------------------


def _from_json(data: bytes, most: int) -> Request:
    try:
        parts = data.count(b"{")
        if parts > most:
            _check_parts(parts)
            _check(msgspec.json.decode(data, type=_Counted), most)
        return msgspec.json.decode(data or b"{}", type=Request)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise Fault("invalid_request", f"the body is not an export of logs: {problem}") from None


def _check_parts(parts: int) -> None:
    """What is decoded takes many times the room of what came, so it is counted before."""
    if parts > PARTS_MAX:
        raise Fault("batch_too_large", f"an export of {parts} parts or more; at most {PARTS_MAX}")


def _check(request: Any, most: int) -> None:
    """Refuse too many log records before they are made, which takes many times their room."""
    check_count(
        sum(len(some.log_records) for each in request.resource_logs for some in each.scope_logs),
        most,
    )


def _from_protobuf(proto: Any, data: bytes, most: int) -> Request:
    if len(data) > AT_ONCE:  # a smaller one takes little room, whatever it is made of
        parts, logs = counted(data)
        _check_parts(parts)
        check_count(logs, most)
    message = proto.ExportLogsServiceRequest()
    try:
        message.ParseFromString(data)
    except Exception:  # its own DecodeError, whose module need not be there
        raise Fault("invalid_request", "the body is not an export of logs in protobuf") from None
    _check(message, most)
    return Request([_resource_logs(each) for each in message.resource_logs])


def counted(data: bytes) -> tuple[int, int]:
    """How many fields and how many log records protobuf has; no further than there may be.

    What cannot be understood ends the count: the decoder says what is wrong with it.
    """
    fields = logs = 0
    stack = [(0, len(data), 0)]
    try:
        while stack:
            at, end, kind = stack.pop()
            while at < end and fields <= PARTS_MAX:
                fields += 1
                tag, at = _varint(data, at)
                size = _SIZES.get(tag & 7)
                if size is None:
                    size, at = _varint(data, at)
                    if tag & 7 == 0:  # a number, which ends here
                        continue
                    inner = _WITHIN[kind].get(tag >> 3)
                    if inner is not None:
                        logs += inner == _LOG
                        stack.append((at, min(at + size, end), inner))
                at += size
    except IndexError:
        pass
    return fields, logs


_SIZES: Final = {1: 8, 5: 4, 3: 0, 4: 0}  # of fields of a fixed size; and marks of groups


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


def _resource_logs(given: Any) -> ResourceLogs:
    return ResourceLogs(
        Resource(_items(given.resource.attributes)),
        [
            ScopeLogs(
                Scope(each.scope.name, each.scope.version, _items(each.scope.attributes)),
                [_log(log) for log in each.log_records],
            )
            for each in given.scope_logs
        ],
    )


def _log(log: Any) -> Log:
    return Log(
        log.time_unix_nano, log.observed_time_unix_nano, log.severity_number, log.severity_text,
        _any(log.body), _items(log.attributes), log.dropped_attributes_count, log.flags,
        log.trace_id.hex(), log.span_id.hex(), getattr(log, "event_name", ""),
    )  # fmt: skip


def _items(pairs: Iterable[Any]) -> list[Item]:
    return [Item(pair.key, _any(pair.value)) for pair in pairs]


def _any(value: Any) -> dict[str, Any] | None:
    """A protobuf AnyValue as OTLP's JSON has it."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return {"arrayValue": {"values": [_any(each) for each in value.array_value.values]}}
    if kind == "kvlist_value":
        pairs = [{"key": p.key, "value": _any(p.value)} for p in value.kvlist_value.values]
        return {"kvlistValue": {"values": pairs}}
    if kind == "bytes_value":
        return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
    head, _, tail = kind.partition("_")
    return {head + tail.capitalize(): getattr(value, kind)}


# ---- as records ------------------------------------------------------------------------------


def _records(request: Request) -> Iterator[Record]:
    for group in request.resource_logs:
        resource = _plain_items(group.resource.attributes if group.resource else [])
        service = resource.get("service.name")
        key = service.encode() if isinstance(service, str) and service else None
        for some in group.scope_logs:
            scope = _scope(some.scope)
            for log in some.log_records:
                yield _record(log, key, resource or None, scope)


def _scope(scope: Scope | None) -> dict[str, Any] | None:
    if scope is None:
        return None
    told = {"name": scope.name, "version": scope.version}
    told["attributes"] = _plain_items(scope.attributes)  # type: ignore[assignment]
    return {name: value for name, value in told.items() if value} or None


def _record(
    log: Log, key: bytes | None, resource: dict[str, Any] | None, scope: dict[str, Any] | None
) -> Record:
    seen = _nanos(log.observed_time_unix_nano)
    when = _nanos(log.time_unix_nano) or seen
    number = _number(log.severity_number)
    value = Value(
        _plain(log.body), _plain_items(log.attributes) or None, log.severity_text, number,
        log.event_name, log.trace_id, log.span_id, log.flags, seen // 1000,
        log.dropped_attributes_count, resource, scope,
    )  # fmt: skip
    return Record(
        msgspec.json.encode(value), key, _severity(log.severity_text, number), None, None,
        when // 1000 or None,
    )  # fmt: skip


def _severity(text: str, number: int) -> str | None:
    """The tag of a log record."""
    if text:
        return text.upper()[:64]
    return SEVERITIES[(number - 1) // 4] if 1 <= number <= 24 else None


def _nanos(given: int | str) -> int:
    number = _number(given)
    if not 0 <= number <= NANOS_MAX:
        raise Fault("invalid_record", f"{number} are not nanoseconds since 1970")
    return number


def _number(given: int | str) -> int:
    """A whole number; OTLP's JSON has those of 64 bits as text."""
    if isinstance(given, int):
        return given
    if len(given) > 20 or not given.isascii() or not given.isdigit():
        raise Fault("invalid_record", f"{given[:40]!r} is not a number")
    return int(given)


def _plain_items(items: Iterable[Item]) -> dict[str, Any]:
    return {item.key: _plain(item.value) for item in items}


def _plain(value: Any, depth: int = 0) -> Any:
    """An AnyValue as plain JSON."""
    if depth > DEPTH_MAX:
        raise Fault("invalid_record", f"values within values, more than {DEPTH_MAX} deep")
    if not isinstance(value, Mapping) or not value:
        return None
    kind, inner = next(iter(value.items()))
    if kind == "intValue" and isinstance(inner, str):
        try:
            return int(inner[:24])
        except ValueError:
            raise Fault("invalid_record", f"{inner[:24]!r} is not a number") from None
    if kind in ("arrayValue", "kvlistValue"):
        values = inner.get("values", []) if isinstance(inner, Mapping) else []
        if not isinstance(values, list):
            raise Fault("invalid_record", f"a {kind} without a list of values")
        if kind == "arrayValue":
            return [_plain(each, depth + 1) for each in values]
        return {
            str(each.get("key", "")): _plain(each.get("value"), depth + 1)
            for each in values
            if isinstance(each, Mapping)
        }
    return inner
