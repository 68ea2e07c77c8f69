"""`esker spark profile`: what is in a topic.

Three looks at one snapshot of it:

    all records     counted and measured by Spark, for each shard and together: offsets, times,
                    sizes, what is null, what is text, how many keys, which gaps
    all keys        counted, without their values: which are the most frequent
    a sample        a few thousand values from all over the topic, parsed on the driver: which
                    fields their JSON has, of which types, how often, and what they look like

Counts are exact. Percentiles and the number of distinct keys are estimates, within about one
in ten thousand and one in fifty. The sketch of the fields speaks of the sample alone, and says how
large it was.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from esker.clock import SYSTEM_CLOCK
from esker.errors import InvalidOption
from esker.records import Gap
from esker.spark import plan
from esker.spark.jobs.running import Progress, Teller
from esker.spark.plan import Span
from esker.spark.source import local_path
from esker.spark.wanted import wanted
from esker.upkeep.report import size_text

WINDOWS: Final = 16  # places of a shard from which the sample is taken
SAMPLE_BYTES: Final = 64 << 20
EXAMPLES: Final = 3
EXAMPLE_LENGTH: Final = 40
DEPTH: Final = 8
FIELDS: Final = 1_000
ELEMENTS: Final = 20  # of an array that are looked at
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MEASURES: Final = {
    "records": "count_if(gap IS NULL)",
    "bytes": "coalesce(sum(size), 0)",
    "first": "min(place)",
    "last": "max(place)",
    "first_us": "min(time)",
    "last_us": "max(time)",
    "least": "min(size)",
    "mean": "avg(size)",
    "most": "max(size)",
    "percentiles": "percentile_approx(size, array(0.5D, 0.95D, 0.99D), 10000)",
    "no_key": "count_if(gap IS NULL AND key IS NULL)",
    "no_tag": "count_if(gap IS NULL AND tag IS NULL)",
    "no_node": "count_if(gap IS NULL AND node IS NULL)",
    "no_headers": "count_if(gap IS NULL AND coalesce(size(headers), 0) <= 0)",
    "text": "count_if(text)",
    "keys": "approx_count_distinct(key, 0.02D)",
    "gaps": "collect_list(gap)",
}


class Sizes(msgspec.Struct, frozen=True):
    """How large values are, in bytes."""

    min: int = 0
    mean: float = 0.0
    p50: int = 0
    p95: int = 0
    p99: int = 0
    max: int = 0


class Part(msgspec.Struct, frozen=True):
    """A shard, or all of them together. Shares are between 0 and 1."""

    shard: int | None  # None: all
    records: int = 0
    bytes: int = 0  # of values
    first: int | None = None
    last: int | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    rate: float = 0.0  # records a second, from the first timestamp to the last
    sizes: Sizes = Sizes()
    no_key: float = 0.0
    no_tag: float = 0.0
    no_node: float = 0.0
    no_headers: float = 0.0
    text: float = 0.0  # values that are UTF-8


class Key(msgspec.Struct, frozen=True):
    """A frequent key."""

    key: str  # what is not UTF-8 as base64:…
    records: int
    share: float


class Field(msgspec.Struct, frozen=True):
    """A field of the JSON objects in the sample. `a.b` is nested, `a[]` the elements of a list."""

    path: str
    present: float  # share of the objects
    types: dict[str, int]
    examples: list[str]


class Sketch(msgspec.Struct, frozen=True):
    """What values look like, from a sample."""

    sampled: int = 0
    objects: int = 0
    other_json: int = 0  # JSON, and not an object
    not_json: int = 0
    fields: list[Field] = []
    more_fields: bool = False  # there are more than are told


class Profiled(msgspec.Struct, frozen=True):
    """What is in a topic."""

    store: str
    topic: str
    total: Part
    shards: list[Part]
    largest_shard: float  # its share of all records
    keys: int  # distinct ones, estimated
    top_keys: list[Key]
    gaps: list[Gap]
    sketch: Sketch
    seconds: float

    def __str__(self) -> str:
        return "\n".join(_report(self))


def profile(
    spark: SparkSession,
    store: str,
    topic: str,
    *,
    top: int = 20,
    start: str | None = None,
    end: str | None = None,
    sample: int = 10_000,
    progress: Callable[[Progress], None] | None = None,
) -> Profiled:
    """Tell what is in a topic: counts, sizes, times, keys, gaps, and the fields of its JSON.

        store    the store's directory
        topic    the topic
        top      how many of the most frequent keys
        start    where to begin: earliest, 100, -100, @2026-11-15T10:00, @-15m
        end      where to end, likewise (default: latest)
        sample   how many values at most are parsed for the fields

    Counts are exact; percentiles and distinct keys are estimates.
    """
    if top < 0 or sample < 0:
        raise InvalidOption(f"top={top}, sample={sample}: numbers of 0 or more")
    path = local_path(store)
    teller = Teller("profile", "steps", progress, total=3)
    try:
        spans = _spans(path, topic, start, end)
        sketch = sketched(_sample(path, spans, sample))
    finally:
        plan.let_go()
    teller.add(1)
    measured = _measured(spark, path, spans) if spans else []
    teller.add(1)
    total = next((row for row in measured if row["shard"] is None), None)
    top_keys = _top(spark, path, spans, top) if total is not None and total["keys"] else []
    teller.add(1)
    shards = sorted((row for row in measured if row["shard"] is not None), key=lambda r: r["shard"])
    records = total["records"] if total is not None else 0
    return Profiled(
        store=path,
        topic=topic,
        total=_part(total, None) if total is not None else Part(None),
        shards=[_part(row, row["shard"]) for row in shards],
        largest_shard=max((row["records"] / records for row in shards), default=0)
        if records
        else 0,
        keys=total["keys"] if total is not None else 0,
        top_keys=[
            Key(_name(bytes(row["key"])), row["records"], row["records"] / records)
            for row in top_keys
        ],
        gaps=[
            Gap(topic, row["shard"], gap["first"], gap["last"], gap["reason"])
            for row in shards
            for gap in sorted(row["gaps"])
        ],
        sketch=sketch,
        seconds=teller.seconds,
    )


# ---- all records -----------------------------------------------------------------------------


def _spans(path: str, topic: str, start: str | None, end: str | None) -> list[Span]:
    given = {"path": path, "subscribe": topic}
    given |= {"startingOffsets": start} if start is not None else {}
    given |= {"endingOffsets": end} if end is not None else {}
    asked = wanted(given, now_us=SYSTEM_CLOCK.now_us(), streaming=False)
    return [span for span, _ in plan.spans(asked)]


def _frame(spark: SparkSession, path: str, spans: Sequence[Span], columns: str) -> DataFrame:
    """The snapshot once more: the same offsets each time."""
    topic = spans[0].topic
    options = {
        "assign": {topic: [span.shard for span in spans]},
        "startingOffsets": {topic: {str(span.shard): span.first for span in spans}},
        "endingOffsets": {topic: {str(span.shard): span.end for span in spans}},
    }
    texts = {name: msgspec.json.encode(value).decode() for name, value in options.items()}
    return (
        spark.read.format("esker").options(**texts, onDataLoss="gapRow", columns=columns).load(path)
    )


def _measured(spark: SparkSession, path: str, spans: Sequence[Span]) -> list[Any]:
    """A row for each shard, and one for all of them."""
    frame = _frame(
        spark, path, spans, "partition,offset,timestamp,key,value,headers,tag,node,gap"
    ).selectExpr(
        "partition", "key", "tag", "node", "headers", "gap",
        "if(gap IS NULL, offset, NULL) AS place", "unix_micros(timestamp) AS time",
        "octet_length(value) AS size", "is_valid_utf8(cast(value AS string)) AS text",
    )  # fmt: skip
    from pyspark.sql.functions import expr

    measures = [expr(text).alias(name) for name, text in _MEASURES.items()]
    return (
        frame.rollup("partition").agg(*measures).withColumnRenamed("partition", "shard").collect()
    )


def _top(spark: SparkSession, path: str, spans: Sequence[Span], top: int) -> list[Any]:
    frame = _frame(spark, path, spans, "key,gap").where("key IS NOT NULL").groupBy("key")
    counted = frame.count().withColumnRenamed("count", "records")
    return counted.orderBy(counted["records"].desc(), "key").limit(top).collect()


def _part(row: Any, shard: int | None) -> Part:
    records = row["records"]
    if not records:
        return Part(shard)
    seconds = (row["last_us"] - row["first_us"]) / 1e6
    p50, p95, p99 = row["percentiles"]
    return Part(
        shard=shard, records=records, bytes=row["bytes"],
        first=None if shard is None else row["first"], last=None if shard is None else row["last"],
        first_time=_time(row["first_us"]), last_time=_time(row["last_us"]),
        rate=records / seconds if seconds else 0.0,
        sizes=Sizes(row["least"], row["mean"], p50, p95, p99, row["most"]),
        no_key=row["no_key"] / records, no_tag=row["no_tag"] / records,
        no_node=row["no_node"] / records, no_headers=row["no_headers"] / records,
        text=row["text"] / records,
    )  # fmt: skip


def _time(micros: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None  # a time that no calendar has


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "base64:" + b64encode(key).decode("ascii")


# ---- a sample --------------------------------------------------------------------------------


def _sample(path: str, spans: Sequence[Span], count: int) -> Iterator[bytes]:
    """Values from places all over the topic, of each shard by its length."""
    total = sum(span.end - span.first for span in spans)
    room = SAMPLE_BYTES
    for span in spans:
        length = span.end - span.first
        share = length * count // total
        for first, end in windows(span.first, span.end, share):
            topic = plan.reading(path)[span.topic]
            for batch in topic.batches(first, end, shard=span.shard, gaps="skip"):
                for value in batch.values:
                    room -= len(value)
                    if room < 0:
                        return
                    yield value


def windows(first: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """At most so many offsets of a span, in pieces that are spread over it."""
    length = end - first
    if count >= length:
        yield first, end
        return
    pieces = min(WINDOWS, count)
    for number in range(pieces):
        size = count * (number + 1) // pieces - count * number // pieces
        begin = first + length * number // pieces
        yield begin, min(begin + size, end)


class _Seen:
    """One path."""

    def __init__(self) -> None:
        self.present = 0
        self.types: Counter[str] = Counter()
        self.examples: dict[str, None] = {}


def sketched(values: Iterator[bytes]) -> Sketch:
    """Which fields the JSON objects among some values have."""
    seen: dict[str, _Seen] = {}
    sampled = objects = other = 0
    cut = False
    for value in values:
        sampled += 1
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if not isinstance(found, dict):
            other += 1
            continue
        objects += 1
        here: set[str] = set()
        for path, cell in _walk(found, "", 0):
            known = seen.get(path)
            if known is None:
                if len(seen) >= FIELDS:
                    cut = True
                    continue
                known = seen[path] = _Seen()
            if path not in here:
                here.add(path)
                known.present += 1
            known.types[_type(cell)] += 1
            if len(known.examples) < EXAMPLES and not isinstance(cell, dict | list | None):
                known.examples[_short(cell)] = None
    fields = [
        Field(path, each.present / objects, dict(each.types.most_common()), list(each.examples))
        for path, each in seen.items()
    ]
    return Sketch(sampled, objects, other, sampled - objects - other, fields, cut)


def _walk(found: dict[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, cell in found.items():
        yield from _cell(before + name, cell, depth)


def _cell(path: str, cell: Any, depth: int) -> Iterator[tuple[str, Any]]:
    yield path, cell
    if depth >= DEPTH:
        return
    if isinstance(cell, dict):
        yield from _walk(cell, path + ".", depth + 1)
    elif isinstance(cell, list):
        for each in cell[:ELEMENTS]:
            yield from _cell(path + "[]", each, depth + 1)


def _type(cell: Any) -> str:
    match cell:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "text"
        case dict():
            return "object"
    return "list"


def _short(cell: Any) -> str:
    text = msgspec.json.encode(cell).decode()
    return text if len(text) <= EXAMPLE_LENGTH else text[: EXAMPLE_LENGTH - 1] + "…"


# ---- for people ------------------------------------------------------------------------------


def _report(found: Profiled) -> Iterator[str]:
    total, sizes = found.total, found.total.sizes
    yield (
        f"{found.topic} in {found.store}: {total.records:,} records, {size_text(total.bytes)} of "
        f"values, {_counted(len(found.shards), 'shard')} with records, {found.seconds:.1f} s"
    )
    if total.records:
        yield f"  time    {_clock(total.first_time)} to {_clock(total.last_time)}, {_rate(total)}"
        yield (
            f"  values  min {sizes.min:,}, mean {sizes.mean:,.0f}, p50 {sizes.p50:,}, "
            f"p95 {sizes.p95:,}, p99 {sizes.p99:,}, max {sizes.max:,} bytes; "
            f"{_percent(total.text)} UTF-8"
        )
        yield (
            f"  absent  key {_percent(total.no_key)}, tag {_percent(total.no_tag)}, "
            f"node {_percent(total.no_node)}, headers {_percent(total.no_headers)}"
        )
        yield (
            f"  keys    about {found.keys:,} distinct; the largest shard has "
            f"{_percent(found.largest_shard)} of the records"
        )
    if found.shards:
        rows = [
            ["shard", "records", "bytes", "offsets", "from", "to", "per s", "p50", "p99", "max"]
        ]
        rows += [
            [
                str(part.shard), f"{part.records:,}", size_text(part.bytes),
                f"{part.first}..{part.last}", _clock(part.first_time), _clock(part.last_time),
                f"{part.rate:,.1f}", f"{part.sizes.p50:,}", f"{part.sizes.p99:,}",
                f"{part.sizes.max:,}",
            ]
            for part in found.shards
        ]  # fmt: skip
        yield from _table(rows)
    if found.top_keys:
        yield from _table(
            [["key", "records", "share"]]
            + [
                [_cut(each.key), f"{each.records:,}", _percent(each.share)]
                for each in found.top_keys
            ]
        )
    for gap in found.gaps:
        yield f"  gap: {gap}"
    yield from _fields(found.sketch)


def _fields(sketch: Sketch) -> Iterator[str]:
    yield (
        f"  of {sketch.sampled:,} values sampled: {sketch.objects:,} JSON objects, "
        f"{sketch.other_json:,} other JSON, {sketch.not_json:,} not JSON"
    )
    if sketch.fields:
        yield from _table(
            [["field", "present", "types", "examples"]]
            + [
                [
                    each.path, _percent(each.present),
                    ", ".join(f"{kind} {count:,}" for kind, count in each.types.items()),
                    ", ".join(each.examples),
                ]
                for each in sketch.fields
            ]
        )  # fmt: skip
    if sketch.more_fields:
        yield f"  and more fields than {FIELDS:,}"


def _table(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "    " + "  ".join(cells).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_LENGTH else text[: EXAMPLE_LENGTH - 1] + "…"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rate(part: Part) -> str:
    return f"{part.rate:,.1f} records a second"


def _clock(moment: datetime | None) -> str:
    return "?" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
