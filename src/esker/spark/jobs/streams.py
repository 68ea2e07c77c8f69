"""What jobs that are streams share: running to the end, telling how far, what was lost on the way.

Such a job reads a topic with Esker's source and writes one with Esker's sink, and a checkpoint of
Spark's remembers how far it is. So it can be stopped anywhere and begun again: it goes on, and no
record comes twice. Unless it is told another place, the checkpoint lies in the store that is
written to:

    DATA/spark/replay-0123456789abcdef/     the name is made of all that says what is to be done

A query tells how it went batch by batch, in what Spark calls its progress; `run` hands these over
while it waits, in the caller's thread. Numbers that Spark does not count by itself are counted by
`observe` as the rows go by.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.functions import expr

from esker import errors
from esker.clock import SYSTEM_CLOCK
from esker.engine.store import open_store
from esker.errors import EskerError, InvalidOption, TopicNotFound, nearest
from esker.format import names
from esker.spark import plan
from esker.spark.wanted import wanted
from esker.storage.files import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from esker.engine.store import Store
    from esker.format.catalog import TopicEntry
    from esker.spark.jobs.running import Teller

SECONDS_BETWEEN_LOOKS: Final = 0.5
GAPS_NAMED: Final = 20  # of a result
_OURS: Final = re.compile(r"\besker\.[\w.]+\.(\w+): (.+)")


class Losses(msgspec.Struct, frozen=True):
    """Records that should have been there and were not."""

    gaps: int = 0
    missed: int = 0  # offsets, so this many records at the most
    named: tuple[str, ...] = ()  # the first and the last gap of each batch

    def __str__(self) -> str:
        if not self.gaps:
            return ""
        more = self.gaps - len(self.named)
        rest = f", and {more} more" if more > 0 else ""
        gaps = "a gap" if self.gaps == 1 else f"{self.gaps:,} gaps"
        return f"{gaps} of at most {self.missed:,} records: {'; '.join(self.named)}{rest}"

    def and_then(self, counted: dict[str, Any]) -> Losses:
        """With what `observed` counted in one more batch."""
        found = dict.fromkeys(each for each in (counted["first"], counted["last"]) if each)
        named = (*self.named, *(each for each in found if each not in self.named))
        return Losses(
            self.gaps + (counted["gaps"] or 0), self.missed + (counted["missed"] or 0),
            named[:GAPS_NAMED],
        )  # fmt: skip


LOSSES: Final = (
    "count(gap) AS gaps",
    "coalesce(sum(gap.last - gap.first + 1), 0) AS missed",
    "min({}) AS first",
    "max({}) AS last",
)
_NAMED: Final = (
    "concat('shard ', partition, ': offsets ', gap.first, '..', gap.last, ' (', gap.reason, ')')"
)


def loss_columns() -> list[Any]:
    """What to observe of a frame that has the column `gap`."""
    return [expr(each.format(_NAMED)) for each in LOSSES]


# ---- where a job remembers how far it is -----------------------------------------------------


def fingerprint(*parts: Any) -> str:
    """A name for something, made of all that says what it is."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def checkpoint_in(store: str, job: str, *parts: Any) -> str:
    """The directory of a job's checkpoint, in the store that it writes to."""
    return join(store, names.SPARK, f"{job}-{fingerprint(*parts)}")


# ---- topics ----------------------------------------------------------------------------------


def source_of(path: str, topic: str) -> TopicEntry:
    """What the catalog says of a topic that is to be read."""
    with open_store(path, mode="r") as store:
        if topic not in store:
            raise TopicNotFound(f"no topic {topic!r} in {path}; {nearest(topic, list(store))}")
        return store[topic]._existing()


def make_like(store: Store, topic: str, model: TopicEntry, shards: int | None) -> TopicEntry:
    """Make a topic with the options of another one, unless it is there."""
    if topic not in store:
        options = msgspec.structs.asdict(model.options)
        if shards is not None:
            options["shards"] = shards
        store.create(topic, exist_ok=True, **options)
    found = store[topic]._existing()
    if shards is not None and shards != found.options.shards:
        there = found.options.shards
        raise InvalidOption(f"topic {topic!r} is there, with {there} shards and not {shards}")
    return found


def bounds(
    path: str, topic: str, start: str | None, end: str | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Where each shard begins and ends, as of now: what makes a batch the same when done again."""
    given = {
        "path": path, "subscribe": topic,
        "startingOffsets": "earliest" if start is None else str(start),
        "endingOffsets": "latest" if end is None else str(end),
    }  # fmt: skip
    asked = wanted(given, now_us=SYSTEM_CLOCK.now_us(), streaming=False)
    found = plan.find_topics(asked)
    return plan.resolve(asked.starting, found)[topic], plan.resolve(asked.ending, found)[topic]


def places(topic: str, offsets: dict[int, int]) -> str:
    """Offsets as the source's options take them."""
    told = {topic: {str(number): offset for number, offset in offsets.items()}}
    return msgspec.json.encode(told).decode()


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidOption(f"{name}={value!r}: {nearest(value, choices)}")
    return value


# ---- running ---------------------------------------------------------------------------------


class Run(msgspec.Struct):
    """How a query went."""

    batches: int = 0
    progress: list[dict[str, Any]] = []
    _last: int = -1
    _from: dict[str, Any] | None = None
    _told: int = 0

    def observed(self, name: str) -> list[dict[str, Any]]:
        """What was counted under a name, batch by batch."""
        found = [each.get("observedMetrics", {}).get(name) for each in self.progress]
        return [_row(each) for each in found if each]


def _row(counted: dict[str, Any]) -> dict[str, Any]:
    """Names and numbers. Through Connect they come one beside the other."""
    if counted.keys() != {"values", "schema"}:
        return counted
    names = [field["name"] for field in counted["schema"]["fields"]]
    return dict(zip(names, counted["values"], strict=True))


def run(frame: DataFrame, checkpoint: str, options: dict[str, str], teller: Teller) -> Run:
    """Write a stream with Esker's sink until it ends; tells how far it is after each batch."""
    writer = (
        frame.writeStream.format("esker").outputMode("append").options(**options)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True)
    )  # fmt: skip
    told = Run()
    with as_ours():
        query = writer.start()
        try:
            while not query.awaitTermination(SECONDS_BETWEEN_LOOKS):  # type: ignore[arg-type]
                _look(query, told, teller)
        finally:
            query.stop()
        _look(query, told, teller)
    if told.batches and not teller.total:  # all of them were planned before: nobody looked further
        teller.total = teller.done
        teller.add(0)
    return told


def _look(query: StreamingQuery, told: Run, teller: Teller) -> None:
    """Take what the query says of batches that we have not seen."""
    for each in query.recentProgress:
        seen: dict[str, Any] = msgspec.json.decode(each.json)
        if seen["batchId"] <= told._last or not seen.get("sources"):
            continue
        if not _has_ended(seen):
            continue
        told._last = seen["batchId"]
        told.batches += 1
        told.progress.append(seen)
        done, total = _offsets(seen, told)
        teller.total = max(total, done) if total else 0
        teller.add(done - told._told)
        told._told = done


def _has_ended(seen: dict[str, Any]) -> bool:
    """A progress without an end is that of a trigger which found nothing to do."""
    return "addBatch" in seen.get("durationMs", {})


def _offsets(seen: dict[str, Any], told: Run) -> tuple[int, int]:
    """How many offsets this run has read, and how many there are for it; 0: not known.

    A batch that was planned before, by a run that was stopped, comes without looking any further.
    """
    source = seen["sources"][0]
    end = _decoded(source.get("endOffset"))
    if told._from is None:
        told._from = {**_decoded(source.get("startOffset")), **end.get("@from", {})}
    latest = _decoded(source.get("latestOffset"))
    return _between(told._from, end), _between(told._from, latest)


def _between(first: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(
        max(0, offset - first.get(topic, {}).get(shard, 0))
        for topic, shards in end.items() if not topic.startswith("@")
        for shard, offset in shards.items()
    )  # fmt: skip


def _decoded(offsets: Any) -> dict[str, Any]:
    if isinstance(offsets, str):
        offsets = msgspec.json.decode(offsets)
    return offsets or {}


# ---- errors ----------------------------------------------------------------------------------


@contextmanager
def as_ours() -> Iterator[None]:
    """An error of Esker's in a worker is the same error here, not a worker's traceback."""
    try:
        yield
    except PySparkException as problem:
        found = error_in(str(problem))
        if found is None:
            raise
        raise found from problem


def conditional(frame: DataFrame, where: str | None) -> DataFrame:
    """The rows that fulfil a condition of SQL; one that Spark does not understand is told."""
    if not where:
        return frame
    try:
        found = frame.where(where)
        found.schema  # noqa: B018  (through Connect, nobody looks at it before this)
        return found
    except AnalysisException as problem:  # and those of the parser
        lines = [line for line in str(problem).splitlines() if line.strip()]
        raise InvalidOption(f"where={where!r}: {lines[0] if lines else problem}") from problem


def error_in(text: str) -> EskerError | None:
    """The error of Esker's that a message of Spark's is about."""
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, EskerError):
            try:
                return kind(message)
            except TypeError:
                return EskerError(message)
    return None
