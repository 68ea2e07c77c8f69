"""What a shard says when it takes no more records, and who else writes it."""

from __future__ import annotations

from esker.errors import Poisoned, WriterBusy
from esker.storage.files import Holder


def busy(topic: str, shard: int, holder: Holder, own: int) -> WriterBusy:
    """Another process, or another handle of this one, writes the shard."""
    who, end = f"process {holder.pid or 'unknown'}", "end that process"
    if holder.pid == own:
        who, end = f"another handle of this process ({own})", "close that handle"
    return WriterBusy(
        f"topic {topic!r} shard {shard} is being written by {who} since "
        f"{holder.since or 'unknown'}. Do it there, or {end}; to append beside it, open the store "
        'with handover=True; to read beside it, with mode="r".',
        pid=holder.pid,
        since=holder.since,
    )


def sync_failed(topic: str, shard: int, problem: BaseException, first: int, end: int) -> Poisoned:
    """Nothing in [first, end) may be acknowledged any more."""
    return Poisoned(
        f"a sync of topic {topic!r} shard {shard} failed ({_said(problem)}). "
        f"Offsets {first}..{max(end - 1, first)} are in doubt; "
        "close the store and open it again to go on with what is really there."
    )


def not_undone(path: str, problem: BaseException, worse: BaseException, first: int) -> Poisoned:
    """A write failed, and what it left could not be removed."""
    return Poisoned(
        f"a write to {path} failed ({_said(problem)}) and could not be undone ({_said(worse)}); "
        f"offsets from {first} on are in doubt"
    )


def half_way(path: str, problem: BaseException, first: int) -> Poisoned:
    """A write was interrupted between the file and the books."""
    return Poisoned(
        f"an append to {path} was interrupted half-way ({_said(problem)}); offsets from {first} "
        "on are in doubt, close the store and open it again"
    )


def _said(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__
