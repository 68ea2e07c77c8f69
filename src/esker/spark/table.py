"""`table`: a topic's whole history as one DataFrame, from the archive and the log.

The archive is read by Spark's own Parquet reader, from exactly the files that the manifest named
when `table` was called; the log by the format "esker", from where the archive of each shard ends.
So no record comes twice and none is left out, whatever is archived, merged or appended meanwhile:
the files of a manifest never change, and offsets behind them are read from the log.

What is missing is told, as the source tells it: `on_data_loss="fail"` (an error with the exact
offsets) or `"skip"`. Three things can be missing: gaps that the archive names; records that were
deleted from the log before they were archived; and files of the archive that are gone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from esker.errors import DataLoss, InvalidOption, StorageError
from esker.format.archive import Manifest
from esker.records import Gap
from esker.spark import plan
from esker.spark.wanted import ALWAYS, COLUMNS
from esker.storage.archive import Archive, check_owner, damage
from esker.storage.files import SYSTEM_FILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS: Final = 3
EARLIEST: Final = -2  # as Kafka has it


def table(
    spark: SparkSession, store: str, topic: str, *, archive: str | None = None,
    headers: bool = False, tag: bool = False, node: bool = False, on_data_loss: str = "fail",
) -> DataFrame:  # fmt: skip
    """All records of a topic: those that were archived, and those that are in the log only.

    `archive` is where `jobs.archive` wrote to, if not to the store's own directory. Columns are
    those of the source: key, value, topic, partition, offset, timestamp, timestampType; with
    `headers`, `tag` and `node` also these.

    What is archived is as of now; what is in the log is looked up by each query, as the source does
    it. Call it anew for a query that runs much later: records that were archived and deleted from
    the log since are missing then, which is an error.
    """
    if on_data_loss not in ("fail", "skip"):
        raise InvalidOption(f"on_data_loss={on_data_loss!r}: fail or skip")
    from esker.spark.jobs.archiving import archive_of, shards_of, store_id
    from esker.spark.source import local_path

    path = local_path(store)
    switches = {"headers": headers, "tag": tag, "node": node}
    columns = [*ALWAYS, *(name for name, wanted in switches.items() if wanted)]
    shards = shards_of(path, topic)
    place = archive_of(path, topic, archive)
    manifest = _whole_archive(place)
    if manifest is not None:
        check_owner(manifest, place.root, store_id(path), shards.id)
        if on_data_loss == "fail":
            _refuse_gaps(path, place, manifest, shards)
    ends = manifest.ends if manifest is not None else {}
    live = _live(spark, path, topic, columns, shards, ends, on_data_loss)
    if manifest is None or not manifest.files:
        return live
    return _archived(spark, place, manifest, columns).unionByName(live)


def _whole_archive(place: Archive) -> Manifest | None:
    """The manifest, and all files that it names are there."""
    for attempt in range(ATTEMPTS):
        manifest = place.load()
        if manifest is None:
            return None
        found = (damage(SYSTEM_FILES, place.folder, file, deep=False) for file in manifest.files)
        wrong = next((each for each in found if each), "")
        if not wrong:
            return manifest
        again = place.load()
        if attempt + 1 == ATTEMPTS or again is None or again.generation == manifest.generation:
            break  # else it was merged into another one, twice, while we looked
    raise StorageError(
        f"the archive of topic {place.topic!r} is damaged: {wrong}. Restore the file from a "
        "backup; `esker spark archive --verify` looks at all of them.",
        path=place.folder,
    )


def _refuse_gaps(path: str, place: Archive, manifest: Manifest, shards: plan.Shards) -> None:
    for gap in manifest.gaps:
        raise _lost(path, Gap(place.topic, gap.shard, gap.first, gap.last, gap.reason))
    for number, view in shards.views.items():
        end = manifest.ends.get(number)
        there = view.begin
        if end is not None and there > end:
            reason = "deleted from the log before it was archived"
            raise _lost(path, Gap(place.topic, number, end, there - 1, reason))


def _lost(path: str, gap: Gap) -> DataLoss:
    return DataLoss(
        f"topic {gap.topic!r} partition {gap.shard} of {path}: offsets {gap.first} to {gap.last} "
        f'cannot be read: {gap.reason}. To go on without them set on_data_loss="skip".'
    )


def _live(
    spark: SparkSession, path: str, topic: str, columns: list[str], shards: plan.Shards,
    ends: dict[int, int], on_data_loss: str,
) -> DataFrame:  # fmt: skip
    starting = {topic: {str(shard): ends.get(shard, EARLIEST) for shard in shards.views}}
    return (
        spark.read.format("esker")
        .option("assign", msgspec.json.encode({topic: sorted(shards.views)}).decode())
        .option("startingOffsets", msgspec.json.encode(starting).decode())
        .option("onDataLoss", on_data_loss)
        .option("columns", ",".join(columns))
        .load(path)
    )


def _archived(
    spark: SparkSession, place: Archive, manifest: Manifest, columns: list[str]
) -> DataFrame:
    from pyspark.sql import functions as F

    made = {"topic": F.lit(place.topic), "timestampType": F.lit(0)}
    stored = [f"`{name}` {COLUMNS[name]}" for name in columns if name not in made]
    rows = (
        spark.read.schema(", ".join([*stored, "`date` DATE"]))
        .option("basePath", place.folder)
        .parquet(*(_literal(place.path_of(file)) for file in manifest.files))
    )
    return rows.select(*(made[name].alias(name) if name in made else name for name in columns))


def _literal(path: str) -> str:
    """A path of which Spark takes no character for a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
