"""`esker queue dead …`: jobs that were given up: look at them, put them back, throw them away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from cyclopts import Parameter

from esker.cli.failing import Usage
from esker.cli.place import HERE, Place
from esker.cli.queues import JOB
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, counted, tell

_ROW: Final = (
    *JOB[:2], Column("TRIES", lambda row: str(row.deliveries), right=True),
    Column("REASON", lambda row: row.reason, wide=True), *JOB[2:],
)  # fmt: skip


def ls(
    queue: str, /, *,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 100,
    where: str | None = None,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Show jobs that were given up, and why.

    Parameters
    ----------
    queue
        The name of the queue.
    limit
        So many at the most; over a URL 1,000.
    where
        A filter over their records. See docs/filters.md.
    """
    from esker.cli.look import queue_of
    from esker.server.bodies import wire_rooms as rooms
    from esker.server.seals import record_fields

    with place.open() as store:
        found = queue_of(store, queue)
        count = len(found.dead)
        jobs = _matching(found.dead.peek(limit) if where is None else list(found.dead), where)
    rows = [
        rooms.DeadOut(
            **record_fields(job.record, "text", True), deliveries=job.deliveries, reason=job.reason
        )
        for job in jobs[:limit]
    ]
    document = {"queue": queue, "count": count, "jobs": rows}
    answer(shown, document, rows, _ROW, empty="no dead jobs")
    return 0


def requeue(
    queue: str, /, *jobs: str,
    all: Flag = False,
    where: str | None = None,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Put dead jobs back into their queue, once each; their tries count from 0 again.

    Parameters
    ----------
    queue
        The name of the queue.
    jobs
        SHARD:OFFSET, as `dead ls` shows them.
    all
        All of them.
    where
        Those whose records match a filter. See docs/filters.md.
    """
    count = _settle(place, queue, jobs, all, where, lambda dead, chosen: dead.requeue(chosen))
    tell(shown, {"queue": queue, "count": count}, f"{counted(count, 'job')} back in {queue!r}")
    return 0


def purge(
    queue: str, /, *jobs: str,
    all: Flag = False,
    where: str | None = None,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Throw dead jobs away.

    Parameters
    ----------
    queue
        The name of the queue.
    jobs
        SHARD:OFFSET, as `dead ls` shows them.
    all
        All of them.
    where
        Those whose records match a filter. See docs/filters.md.
    """
    count = _settle(place, queue, jobs, all, where, lambda dead, chosen: dead.purge(chosen))
    tell(shown, {"queue": queue, "count": count}, f"{counted(count, 'job')} thrown away")
    return 0


def _settle(
    place: Place, queue: str, jobs: tuple[str, ...], all: bool, where: str | None,
    verb: Callable[[Any, Any], int],
) -> int:  # fmt: skip
    from esker.cli.look import queue_of

    if bool(jobs) + all + (where is not None) != 1:
        raise Usage("say which: SHARD:OFFSET, or --all, or --where FILTER")
    named = [_named(each) for each in jobs]
    with place.open("rw") as store:
        dead = queue_of(store, queue).dead
        if all:
            return verb(dead, None)
        return verb(dead, named if jobs else _matching(list(dead), where))


def _named(text: str) -> Any:
    from esker.queues.dead import DeadJob
    from esker.records import Record

    shard, _, offset = text.partition(":")
    if not (shard.isdigit() and offset.isdigit()):
        raise Usage(f"{text!r} is no job; as in 0:17")
    return DeadJob(Record(b""), int(shard), int(offset), 0, "")


def _matching(jobs: list[Any], where: str | None) -> list[Any]:
    """Those of the jobs that a filter takes, in one look at all of them."""
    if where is None or not jobs:
        return jobs
    import pyarrow as pa

    from esker.cli.intake import columns_of
    from esker.filters import parse

    chosen = parse(where)
    keep = []
    for shard in sorted({job.shard for job in jobs}):
        some = [job for job in jobs if job.shard == shard]
        offsets = pa.array([job.offset for job in some], pa.int64())
        mask = chosen.mask(columns_of([job.record for job in some]), offsets, shard)
        keep += [job for job, take in zip(some, mask.to_pylist(), strict=True) if take]
    return keep
