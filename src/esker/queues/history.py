"""Who held a job when: the log of leases, read for one offset."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from esker.format import leases as fmt
from esker.format.leases import Event, Told

_WORDS: dict[type, str] = {
    fmt.Acked: "acked", fmt.Nacked: "nacked", fmt.Released: "released", fmt.Extended: "extended",
    fmt.Gone: "gone", fmt.Dead: "dead", fmt.Moved: "moved", fmt.Requeued: "requeued",
    fmt.Purged: "purged",
}  # fmt: skip


class Entry(msgspec.Struct, frozen=True):
    """One thing that happened to a job."""

    when_us: int  # microseconds since 1970
    what: str  # claimed, acked, nacked, released, extended, died, booted, delayed, parked, ...
    pid: int = 0
    token: str = ""
    reason: str = ""

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.when_us / 1e6, UTC)

    def __str__(self) -> str:
        who = f" by process {self.pid}" if self.pid else ""
        why = f" ({self.reason})" if self.reason else ""
        moment = self.time.isoformat(sep=" ", timespec="milliseconds")
        return f"{moment} {self.what}{who}{why}"


def entries(told: Iterable[Told], offset: int) -> list[Entry]:
    """What happened to this offset, in order."""
    found: list[Entry] = []
    pids: dict[int, int] = {}
    holder = 0  # the worker that has it
    for one in told:
        for event in one.events:
            if isinstance(event, fmt.Claimed):
                pids[event.worker] = event.pid
            if isinstance(event, fmt.Died | fmt.Booted):
                if holder and (isinstance(event, fmt.Booted) or event.worker == holder):
                    what = "booted" if isinstance(event, fmt.Booted) else "died"
                    found.append(Entry(one.when, what, pids.get(holder, 0)))
                    holder = 0
                continue
            what = _said(event, offset)
            if not what:
                continue
            worker, number = getattr(event, "worker", 0), getattr(event, "number", 0)
            token = f"{worker:016x}-{number}" if worker else ""
            found.append(Entry(one.when, what, pids.get(worker, 0), token, _reason(event)))
            if what != "extended":
                holder = worker if what == "claimed" else 0
    return found


def _said(event: Event, offset: int) -> str:
    if isinstance(event, fmt.Claimed) and _in(event.runs, offset):
        return "claimed"
    if isinstance(event, fmt.Delayed | fmt.Parked) and offset in event.pairs[::2]:
        return "delayed" if isinstance(event, fmt.Delayed) else "parked"
    word = _WORDS.get(type(event), "")
    return word if word and _in(getattr(event, "runs", []), offset) else ""


def _in(runs: list[int], offset: int) -> bool:
    return any(
        first <= offset < first + count for first, count in zip(runs[::2], runs[1::2], strict=True)
    )


def _reason(event: Event) -> str:
    if isinstance(event, fmt.Moved):
        return f"to {event.to}"
    return str(getattr(event, "reason", ""))
