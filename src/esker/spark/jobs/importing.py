"""`esker spark import`: files become records of a topic, all of them or none, and once.

Each task reads a file and stages its records beside the log, where nobody sees them; the driver
commits all at once (see spark/sink.py). The commit has a name made of the topic and of the files:
their paths, sizes and times of change. Run again, after a kill or by mistake, the import finds its
name there and does nothing.

What export wrote comes back as it was: key, value, timestamp, headers, tag, node, the shard, and
the order within it. From other files a row becomes a record as a whole, as JSON, or by its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from esker.engine import attach
from esker.engine.store import open_store
from esker.errors import EskerError, InvalidOption, InvalidRecord, nearest
from esker.format.commit import Ticket
from esker.spark import sink
from esker.spark.jobs import portable
from esker.spark.jobs.foreign import BAD_NAMED, Bad, How, records
from esker.spark.jobs.portable import MARKER, Marker
from esker.spark.jobs.running import Progress, Teller, in_rounds
from esker.spark.sink import Target, application
from esker.spark.source import local_path
from esker.storage.files import SYSTEM_FILES, absolute, join, modified_ns
from esker.storage.given import Given


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    source: str
    topic: str
    format: str
    files: int
    rows: int
    bad: int  # rows that were left out
    bad_rows: list[str]  # the first of them: file, line and reason
    done_before: bool  # these very files were imported by an earlier run: nothing was done
    seconds: float

    def __str__(self) -> str:
        if self.done_before:
            return (
                f"{self.source} was imported into {self.topic} before: nothing was done. "
                "The same files (path, size, time of change) go into a topic once."
            )
        lines = [
            f"{self.topic}: {self.rows:,} records from {self.files} files ({self.format}) "
            f"of {self.source}, {self.seconds:.1f} s"
        ]
        if self.bad:
            lines.append(f"  {self.bad:,} bad rows were left out; the first:")
            lines += [f"    {each}" for each in self.bad_rows]
        return "\n".join(lines)


class _Staged(msgspec.Struct):
    """What a task tells of a file."""

    tickets: list[Ticket]
    rows: int
    bad: int
    named: list[str]


def import_(
    spark: SparkSession,
    source: str,
    store: str,
    topic: str,
    *,
    format: str | None = None,
    value_from: str | None = None,
    value_format: str | None = None,
    key_column: str | None = None,
    timestamp_column: str | None = None,
    tag_column: str | None = None,
    partitions: bool = True,
    shards: int | None = None,
    on_bad: str = "fail",
    progress: Callable[[Progress], None] | None = None,
) -> Imported:
    """Append files to a topic: JSON lines, CSV, Parquet or Arrow, all or nothing, and once.

        source             a file, or a directory of them
        store              the store's directory
        topic              the topic; made if it is not there
        format             jsonl, csv, parquet or arrow, if the suffix does not tell
        value_from         column: a column `value` (and key, timestamp, ... beside it); row: the
                           whole row, as JSON (default: column, if there is one)
        value_format       json: values in JSON lines are JSON, even where they are a text
                           (default: what the export says)
        key_column         the column that is the key (default, beside a column value: key)
        timestamp_column   the column that is the timestamp: ISO 8601, or microseconds
        tag_column         the column that is the tag
        partitions         rows that name a partition go to that shard
        shards             of a topic that is made (default: as the export says, else 1)
        on_bad             a row that cannot be a record: fail, or skip (counted, and named)

    The same files (path, size, time of change) go into a topic once.
    """
    path, root = absolute(source), local_path(store)
    marker, files = _files(path)
    how = How(
        format=_format(path, files, format, marker),
        value_from=_one_of("value_from", value_from, ("column", "row")),
        value_format=_one_of("value_format", value_format, portable.VALUE_FORMATS)
        or (marker.value_format if marker is not None else None),
        key_column=key_column, timestamp_column=timestamp_column, tag_column=tag_column,
        partitions=partitions, on_bad=_one_of("on_bad", on_bad, ("fail", "skip")) or "fail",
    )  # fmt: skip
    teller = Teller("import", "files", progress, total=len(files))
    made_with = shards or (marker.shards if marker is not None else None)
    target = _target(root, topic, made_with, files)
    done: list[_Staged] = []
    if not target.done:
        try:
            for told in _staged(spark, target, files, how):
                done += told
                teller.add(len(told))
            _complete(path, marker, done)
        except BaseException:
            tickets = [ticket for each in done for ticket in each.tickets]
            with open_store(root, mode="r") as opened:
                attach.abandon(opened._context, tickets)
            raise
        target.done = not _committed(target, done)
    if target.done:
        done = []
    return Imported(
        source=path, topic=topic, format=how.format, files=len(files),
        rows=sum(each.rows for each in done), bad=sum(each.bad for each in done),
        bad_rows=[text for each in done for text in each.named][:BAD_NAMED],
        done_before=target.done, seconds=teller.seconds,
    )  # fmt: skip


# ---- what is asked for -----------------------------------------------------------------------


def _one_of(name: str, given: str | None, known: tuple[str, ...]) -> str | None:
    if given is not None and given not in known:
        raise InvalidOption(f"{name}={given}: {nearest(given, known)}")
    return given


def _files(path: str) -> tuple[Marker | None, list[str]]:
    """The files to be read, in order; and what an export says of them."""
    kind = SYSTEM_FILES.kind(path)
    if kind == "file":
        return None, [path]
    if kind == "link":
        raise InvalidOption(f"{path} is a symbolic link: give the path that it leads to")
    if kind != "dir":
        raise InvalidOption(f"there is no file or directory {path}")
    files = sorted(join(path, name) for name in SYSTEM_FILES.list(path) if name[0] not in "._")
    for each in files:
        if SYSTEM_FILES.kind(each) != "file":
            raise InvalidOption(
                f"{each} is not a file: all that is in a directory is imported, and only files can"
            )
    marker = _marker(join(path, MARKER))
    if marker is not None and marker.files != len(files):
        raise InvalidOption(
            f"{path} has {len(files)} files, the export wrote {marker.files}: "
            f"get the rest, or delete {MARKER} to import what is there"
        )
    return marker, files


def _marker(path: str) -> Marker | None:
    """What an export says; None if another program made the directory."""
    if SYSTEM_FILES.kind(path) != "file":
        return None
    source = Given(path)
    try:
        return msgspec.json.decode(source.read(), type=Marker)
    except msgspec.MsgspecError:
        return None  # Spark's own is empty
    finally:
        source.close()


def _format(path: str, files: list[str], given: str | None, marker: Marker | None) -> str:
    found = portable.format_of(path, given) or (marker.format if marker is not None else None)
    if found is not None:
        return found
    kinds = {portable.format_of(each, None) for each in files}
    if len(kinds) != 1 or None in kinds:
        raise InvalidOption(f"which format is {path}? Name it: jsonl, csv, parquet or arrow")
    return str(kinds.pop())


def _target(root: str, topic: str, shards: int | None, files: list[str]) -> Target:
    """Where the records go, under a name made of the topic and the files."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    given = {"path": root, "topic": topic} | ({"shards": str(shards)} if shards else {})
    schema = StructType([StructField("value", BinaryType())])
    Target(root, given, schema).prepare()
    with open_store(root, mode="r") as store:
        known = [f"topic {store[topic]._existing().id}"]
    for path in files:
        source = Given(path)
        known.append(f"{path}\n{source.size}\n{modified_ns(path)}")
        source.close()
    name = "import " + sha256("\n\n".join(known).encode("utf-8", "surrogateescape")).hexdigest()
    target = Target(root, given | {"txnAppId": name, "txnVersion": "0"}, schema)
    target.prepare()
    return target


# ---- in the workers --------------------------------------------------------------------------


def _staged(
    spark: SparkSession, target: Target, files: list[str], how: How
) -> Iterator[list[_Staged]]:
    def work(item: bytes) -> bytes:
        return msgspec.json.encode(_stage(target, item.decode("utf-8", "surrogateescape"), how))

    items = [path.encode("utf-8", "surrogateescape") for path in files]
    for answers in in_rounds(spark, items, work):
        yield [msgspec.json.decode(answer, type=_Staged) for answer in answers]


def _committed(target: Target, done: list[_Staged]) -> bool:
    """Make all of it a part of the log; False if another run was faster."""
    assert target.transaction is not None
    name, version = target.transaction
    tickets = [ticket for each in done for ticket in each.tickets]
    if not tickets:
        return True
    with open_store(target.path, routes=False) as store:
        return store.attach(application(name), version, tickets, timeout=target.timeout)


def _stage(target: Target, path: str, how: How) -> _Staged:
    bad = Bad(path, how)
    rows = 0

    def counted() -> Iterator[Any]:
        nonlocal rows
        for batch in records(path, how, bad):
            rows += batch.num_rows
            yield batch

    try:
        tickets = sink.stage(target, counted()).tickets
    except EskerError as problem:
        if path in str(problem):
            raise
        raise InvalidRecord(f"{path}: {problem}") from problem
    return _Staged(tickets, rows, bad.count, bad.named)


def _complete(path: str, marker: Marker | None, done: list[_Staged]) -> None:
    rows = sum(each.rows + each.bad for each in done)
    if marker is not None and rows != marker.rows:
        raise InvalidRecord(
            f"{path} holds {rows:,} records, the export wrote {marker.rows:,}: files were changed. "
            f"Delete {MARKER} to import what is there. Nothing was imported"
        )
