"""The options of a read, checked: what is to be read, from where to where, and how.

Names and defaults are those of Spark's Kafka source, so that a query moves by changing its format
and its path. Where Esker can do more there is a further option or a further value:

    path | url                                   a directory, an archive, a server, kin+comet:///...
    key | accessKey, timeout, retries, tlsCa, tlsCert, tlsKey        of a server
    subscribe | subscribePattern | assign        exactly one of them
    startingTimestamp > startingOffsetsByTimestamp > startingOffsets      the first given counts
    endingTimestamp   > endingOffsetsByTimestamp   > endingOffsets        of streams as well
        offsets: earliest, latest, {"topic": {"0": 23, "1": -2}} with -2 earliest and -1 latest;
        and any position of Esker's: 100, -100, @2026-11-15T10:00, @-15m
    onDataLoss = fail | skip | gapRow            failOnDataLoss=false is skip
    cold                                         where cold segments are now
    columns, includeHeaders, includeTag, includeNode     what a row has
    valueFormat = binary | string | json, valueSchema    what `value` is
    minPartitions, maxRecordsPerPartition        how a read is divided
    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxBytesPerTrigger, maxTriggerDelay     streams
    group                                        streams: a group that shows how far they are

Nothing here looks at a store, and nothing here needs Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from esker.client.address import RETRIES_MAX, SCHEMES
from esker.client.address import options as client_options
from esker.client.address import parse as parse_url
from esker.errors import InvalidOption, InvalidPosition, nearest
from esker.positions import EARLIEST, LATEST, UNIT_US, Position, parse
from esker.spark.origin import NOBODY, Access

OnLoss = Literal["fail", "skip", "gapRow"]
Side = Literal["starting", "ending"]

COLUMNS: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "tag": "STRING",
    "node": "STRING",
    "gap": "STRUCT<first: BIGINT, last: BIGINT, reason: STRING>",
}
ALWAYS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_SWITCHES: Final = {"includeHeaders": "headers", "includeTag": "tag", "includeNode": "node"}
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STREAMS_ONLY: Final = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay",
    "group",
)  # fmt: skip
_ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
ACCESS: Final = (
    "key",
    "accessKey",
    "timeout",
    "retries",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)  # of a server
_KNOWN: Final = (
    "path", "url", *ACCESS, "cold", *_SELECTIONS,
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_ENDINGS,
    "failOnDataLoss", "onDataLoss", "columns", *_SWITCHES, "valueFormat", "valueSchema",
    "onBadValue", "minPartitions", "maxRecordsPerPartition", "pushFilters", *_STREAMS_ONLY,
)  # fmt: skip
_OF_BROKERS: Final = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix")
_DURATION: Final = re.compile(r"(\d+)\s*(us|ms|s|m|h|d)?", re.ASCII)

Assigned = dict[str, tuple[int, ...]]
"""Topics and their shards; no shards: all of them."""


class Place(NamedTuple):
    """Where to begin or to end, as it was asked for."""

    option: str  # the option that says so, for messages
    everywhere: Position | None  # the same in all shards
    each: dict[str, dict[int, Position]]  # or one for each
    strict: bool = False  # a time behind the last record is an error


class Wanted(NamedTuple):
    """A read, as its options describe it."""

    path: str
    archived: bool  # the path is that of an archive, and not of a store
    access: Access  # how the server is talked to, if it is one
    cold: str  # where the store's cold segments are; empty: where they were moved to
    topics: Assigned  # by name; empty: those that match the pattern
    pattern: str
    starting: Place
    ending: Place
    has_end: bool  # a stream: whether `ending` was asked for, or it goes on for ever
    on_loss: OnLoss
    columns: tuple[str, ...]
    value_format: str
    value_schema: str
    bad_value: str  # fail | null
    min_partitions: int
    max_records: int  # of a partition; 0: no limit
    push_filters: bool | None  # None: as the session is made
    max_offsets: int
    min_offsets: int
    max_bytes: int
    max_delay_us: int
    group: str  # that shows how far a stream is; empty: none


def wanted(given: Mapping[str, str], *, now_us: int, streaming: bool | None) -> Wanted:
    """Check the options of a read. Raises InvalidOption with what to write instead.

    Spark asks what the rows look like before it says whether it is a stream: `streaming` is None.
    """
    options = _by_name(given)
    path = place_of(options)
    for name in _STREAMS_ONLY if streaming is False else ():
        if name in options:
            raise InvalidOption(f"{name} is for streams: use spark.readStream, or leave it out")
    value_format = _one_of(options, "valueFormat", ("binary", "string", "json"))
    schema = options.get("valueSchema", "")
    if (value_format == "json") != bool(schema):
        raise InvalidOption(
            "valueFormat=json and valueSchema go together: "
            'option("valueFormat", "json").option("valueSchema", "user STRING, amount DOUBLE")'
        )
    topics, pattern = _selected(options)
    on_loss = _on_loss(options)
    return Wanted(
        path=path,
        archived=False,
        access=access_of(options, path),
        cold=options.get("cold", ""),
        topics=topics,
        pattern=pattern,
        starting=_place(options, "starting", now_us, streaming),
        ending=_place(options, "ending", now_us, streaming),
        has_end=any(name in options for name in _ENDINGS),
        on_loss=on_loss,
        columns=_columns(options, on_loss),
        value_format=value_format,
        value_schema=schema,
        bad_value=_one_of(options, "onBadValue", ("fail", "null")),
        min_partitions=_count(options, "minPartitions"),
        max_records=_count(options, "maxRecordsPerPartition"),
        push_filters=_flag(options, "pushFilters") if "pushFilters" in options else None,
        max_offsets=_count(options, "maxOffsetsPerTrigger"),
        min_offsets=_count(options, "minOffsetsPerTrigger"),
        max_bytes=_count(options, "maxBytesPerTrigger"),
        max_delay_us=_duration(options, "maxTriggerDelay", 15 * UNIT_US["m"]),
        group=options.get("group", ""),
    )


def schema_of(asked: Wanted) -> str:
    """The rows of a read, as Spark's DDL."""
    kinds = dict(COLUMNS)
    if asked.value_format == "string":
        kinds["value"] = "STRING"
    elif asked.value_format == "json":
        kinds["value"] = f"STRUCT<{asked.value_schema}>"
    return ", ".join(f"`{name}` {kinds[name]}" for name in asked.columns)


# ---- names -----------------------------------------------------------------------------------


def _by_name(given: Mapping[str, str]) -> dict[str, str]:
    """Options under their proper names: Spark does not tell upper from lower case."""
    proper = {name.lower(): name for name in _KNOWN}
    options: dict[str, str] = {}
    for name, value in given.items():
        found = proper.get(name.lower())
        if found is not None:
            options[found] = str(value)
        elif of_brokers(name):
            raise InvalidOption(
                f"{name}: there is no broker to set up. Leave it out, with all options that begin "
                'with kafka., and name the store\'s directory: .load("data")'
            )
        else:
            raise InvalidOption(f"unknown option {name!r} of format esker; {nearest(name, _KNOWN)}")
    return options


def of_brokers(name: str) -> bool:
    """Whether an option of Spark's Kafka source is about brokers and how to talk to them."""
    return name.lower().startswith(_OF_BROKERS)


def _selected(options: dict[str, str]) -> tuple[Assigned, str]:
    given = [name for name in _SELECTIONS if name in options]
    if len(given) != 1:
        raise InvalidOption(
            f"exactly one of {', '.join(_SELECTIONS)} says which topics to read; "
            + (f"given: {' and '.join(given)}" if given else 'as in option("subscribe", "orders")')
        )
    text = options[given[0]]
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as problem:
            raise InvalidOption(f"subscribePattern {text!r}: {problem}") from problem
        return {}, text
    if given[0] == "subscribe":
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise InvalidOption("subscribe names no topic; as in subscribe=orders,payments")
        return dict.fromkeys(names, ()), ""
    found = _json(options, "assign", dict[str, list[int]], '{"orders": [0, 1]}')
    if not found or not all(found.values()):
        raise InvalidOption('assign names no shard; as in {"orders": [0, 1]}')
    return {name: tuple(sorted(set(shards))) for name, shards in found.items()}, ""


def _columns(options: dict[str, str], on_loss: OnLoss) -> tuple[str, ...]:
    switched = [name for option, name in _SWITCHES.items() if _flag(options, option)]
    if on_loss == "gapRow":
        switched.append("gap")
    if "columns" not in options:
        return (*ALWAYS, *switched)
    proper = {name.lower(): name for name in COLUMNS}
    names = []
    for word in options["columns"].split(","):
        name = proper.get(word.strip().lower())
        if name is None:
            known = nearest(word.strip(), list(COLUMNS))
            raise InvalidOption(f"columns: there is no {word.strip()!r}; {known}")
        if name == "gap" and on_loss != "gapRow":
            raise InvalidOption("columns: gap is there with onDataLoss=gapRow only")
        if name not in names:
            names.append(name)
    return with_gap("columns", tuple(names), on_loss)


def with_gap(option: str, names: tuple[str, ...], on_loss: OnLoss) -> tuple[str, ...]:
    """The columns; where rows stand for missing records, one of them tells which rows do."""
    if on_loss == "gapRow" and "gap" not in names:
        raise InvalidOption(
            f"{option}: with onDataLoss=gapRow add gap to {', '.join(names)}; without it nobody "
            "can tell a row that stands for missing records from a record"
        )
    return names


def place_of(given: Mapping[str, str]) -> str:
    """The one place that is named: a path, or a URL."""
    there = {name: given[name] for name in ("path", "url") if name in given}
    if len(there) > 1:
        raise InvalidOption("path and url are both given: keep the one that is meant")
    for name, place in there.items():
        if name == "url" and "://" not in place:
            raise InvalidOption(f"url={place}: as in http://host:4117; a directory is a path")
        return place
    raise InvalidOption(
        'which store? Give its directory, .option("path", "data"), or the URL of a server, '
        '.option("url", "http://host:4117")'
    )


def access_of(options: Mapping[str, str], place: str) -> Access:
    """How a server is talked to. The key is looked up here, so that workers need not have it."""
    scheme, mark, _ = place.partition("://")
    given = [name for name in ACCESS if name in options]
    if not mark or scheme not in SCHEMES:
        if given:
            raise InvalidOption(f"{given[0]} is for a server, and the path is none; leave it out")
        return NOBODY
    parse_url(place)
    retries = options.get("retries", str(NOBODY.retries)).strip()
    timeout = options.get("timeout", NOBODY.timeout).strip()
    if not retries.isdecimal() or int(retries) > RETRIES_MAX:
        raise InvalidOption(f"retries={retries}: a number, 0 to {RETRIES_MAX}")
    if "key" in options and "accessKey" in options:
        raise InvalidOption("key and accessKey are the same: keep one of them")
    key = options.get("key") or options.get("accessKey", "")
    checked = client_options({"key": key, "timeout": timeout})
    found = Access(
        checked.key, timeout, int(retries), options.get("tlsCa", ""), options.get("tlsCert", ""),
        options.get("tlsKey", ""),
    )  # fmt: skip
    if (found.tls_ca or found.tls_cert) and scheme != "https":
        raise InvalidOption("tlsCa and tlsCert are for https, and the URL is not")
    if found.tls_key and not found.tls_cert:
        raise InvalidOption("tlsKey goes with tlsCert")
    return found


# ---- places ----------------------------------------------------------------------------------


def _place(options: dict[str, str], side: Side, now_us: int, streaming: bool | None) -> Place:
    """Where to begin, or to end: the first of the three options that is given."""
    at, by, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    strategy = _one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    strict = side == "starting" and strategy == "error"
    if at in options:
        return Place(at, Position("time", _milliseconds(at, options[at])), {}, strict)
    if by in options:
        example = '{"orders": {"0": 1763200000000}}'
        found = _json(options, by, dict[str, dict[str, int]], example)
        each = {
            topic: {_shard(by, key): Position("time", ms * 1000) for key, ms in shards.items()}
            for topic, shards in found.items()
        }
        return Place(by, None, each, strict)
    default = EARLIEST if side == "starting" and not streaming else LATEST
    text = options.get(offsets, default).strip()
    if text.startswith("{"):
        example = '{"orders": {"0": 23, "1": -2}}'
        found = _json(options, offsets, dict[str, dict[str, int]], example)
        each = {
            topic: {
                _shard(offsets, key): _kafka(offsets, side, number, streaming)
                for key, number in shards.items()
            }
            for topic, shards in found.items()
        }
        return Place(offsets, None, each)
    try:
        position = parse(text, now_us)
    except InvalidPosition as problem:
        raise InvalidOption(f"{offsets}: {problem}, or JSON for each topic and shard") from problem
    _check_side(offsets, side, position, streaming)
    return Place(offsets, position, {})


def _kafka(option: str, side: Side, number: int, streaming: bool | None) -> Position:
    if number < -2:
        raise InvalidOption(f"{option}: {number} is no offset; -2 is earliest, -1 is latest")
    position = {-2: Position(EARLIEST), -1: Position(LATEST)}.get(number)
    if position is None:
        return Position("offset", number)
    _check_side(option, side, position, streaming)
    return position


def _check_side(option: str, side: Side, position: Position, streaming: bool | None) -> None:
    if side == "starting" and position.kind == LATEST and streaming is False:
        raise InvalidOption(f"{option}: a batch query that begins at latest (-1) reads nothing")
    if side == "ending" and position.kind == EARLIEST:
        raise InvalidOption(f"{option}: a query that ends at earliest (-2) reads nothing")


def _shard(option: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidOption(f"{option}: {text!r} is not the number of a shard")
    return int(text)


def _milliseconds(option: str, text: str) -> int:
    try:
        return int(text) * 1000
    except ValueError:
        raise InvalidOption(
            f"{option}={text}: milliseconds since 1970, as Kafka has it; "
            f"for a date use {option.removesuffix('Timestamp')}Offsets=@2026-11-15T10:00"
        ) from None


# ---- values ----------------------------------------------------------------------------------


def _on_loss(options: dict[str, str]) -> OnLoss:
    found = _one_of(options, "onDataLoss", ("fail", "skip", "gapRow"))
    if "failOnDataLoss" in options:
        old = "fail" if _flag(options, "failOnDataLoss") else "skip"
        if "onDataLoss" in options and found != old:
            raise InvalidOption(f"onDataLoss={found} and failOnDataLoss do not agree; keep one")
        found = old
    return found  # type: ignore[return-value]


def _one_of(options: dict[str, str], name: str, values: tuple[str, ...]) -> str:
    text = options.get(name, values[0])
    for value in values:
        if text.strip().lower() == value.lower():
            return value
    raise InvalidOption(f"{name}={text}: one of {', '.join(values)}")


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{name}={options[name]}: true or false")
    return text == "true"


def _count(options: dict[str, str], name: str) -> int:
    text = options.get(name, "0").strip()
    if name not in options:
        return 0
    if not text.isdecimal() or not int(text):
        raise InvalidOption(f"{name}={text}: a number of 1 or more")
    return int(text)


def _duration(options: dict[str, str], name: str, default: int) -> int:
    """Microseconds; a bare number is milliseconds, as in Spark."""
    if name not in options:
        return default
    found = _DURATION.fullmatch(options[name].strip().lower())
    if found is None:
        raise InvalidOption(f"{name}={options[name]}: as in 30s, 15m, or milliseconds")
    return int(found[1]) * UNIT_US[found[2] or "ms"]


def _json(options: dict[str, str], name: str, kind: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(options[name], type=kind)
    except msgspec.MsgspecError as problem:
        raise InvalidOption(f"{name}: {problem}; as in {example}") from problem
