"""Jobs: what people do with logs all the time, as functions over a Spark session.

    from esker.spark import jobs
    jobs.scrub(spark, "data")

Each is also a command: `esker spark scrub data`. A job takes the session, a store's directory and
what it works on; everything else has a default and is given by name. It tells how far it is to
`progress`, returns what it did as a struct that prints as a sentence, and can be begun again: what
is done stays done, and nothing is done twice.

    running.py      what all of them share: progress, and work in rounds
    streams.py      what those share that are streams: a checkpoint, and running to the end
    aggregating.py  aggregate: windows of time and their numbers, from a short description
    described.py    that description
    archiving.py    archive: sealed segments as Parquet files
    compacting.py   compact: the last record of each key, into a new topic
    exporting.py    export: a topic as files
    importing.py    import: files as records of a topic, once
    portable.py     the files that both speak of, and how they are written
    foreign.py      how they, and those of other programs, are read
    profiling.py    profile: what is in a topic
    replaying.py    replay: a range of a topic, or what matches, into another topic
    scrubbing.py    scrub: every checksum of a store, verified

JOBS is the list that the command line reads: parameters become arguments, and the lines of a
docstring that begin with a parameter's name become their help.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from esker.spark.jobs.aggregating import Aggregated, aggregate
from esker.spark.jobs.archiving import Archived, archive
from esker.spark.jobs.compacting import Compacted, compact
from esker.spark.jobs.exporting import Exported, export
from esker.spark.jobs.importing import Imported, import_
from esker.spark.jobs.profiling import Profiled, profile
from esker.spark.jobs.replaying import Replayed, replay
from esker.spark.jobs.running import Progress
from esker.spark.jobs.scrubbing import Scrubbed, scrub

JOBS: Final[dict[str, Callable[..., Any]]] = {
    "aggregate": aggregate,
    "archive": archive,
    "compact": compact,
    "export": export,
    "import": import_,
    "profile": profile,
    "replay": replay,
    "scrub": scrub,
}

__all__ = [
    "JOBS", "Aggregated", "Archived", "Compacted", "Exported", "Imported", "Profiled", "Progress",
    "Replayed", "Scrubbed", "aggregate", "archive", "compact", "export", "import_", "profile",
    "replay", "scrub",
]  # fmt: skip
