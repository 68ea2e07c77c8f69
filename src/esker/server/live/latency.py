"""The way of a record from a client to those who watch, in stages, and what each may take.

    parse     from the head of the request to records that can be appended
    append    until the append is acknowledged as its class asks: written, or synced too
    wake      from the writer's word to the topic's turn in the ready set
    make      reading what is new, and making frames of it, once for all who look alike
    write     handing the frames to all connections that are open

The budget is for one record on a machine with time to spare, class `disk`. It is a yardstick, not a
promise: metrics show both, as `esker_stage_seconds` and `esker_stage_budget_seconds`, so that it is
seen which stage is over it.

Of an append an answer also tells how long it was held back, and how long it waited for the disk
(docs/http.md, Server-Timing), where it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from esker.engine.tally import Times

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.server.http.call import Call

T = TypeVar("T")

BUDGET: Final = {
    "parse": 0.0002, "append": 0.0005, "wake": 0.0001, "make": 0.0002, "write": 0.001,
}  # fmt: skip
BOUNDS: Final = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 1.0,
)  # fmt: skip


class Stages:
    """How long each stage took, since the server was started. On the loop."""

    def __init__(self) -> None:
        self.times = {stage: Times(BOUNDS) for stage in BUDGET}

    def took(self, stage: str, seconds: float) -> None:
        """Once more through a stage."""
        self.times[stage].took(max(0.0, seconds))


async def timed(call: Call, append: Callable[[Store], T]) -> T:
    """Append in the pool of threads, and note what of it was waiting."""

    def work(store: Store) -> tuple[T, float, float]:
        waits = store._context.committer.waits
        waits.held = waits.synced = 0.0
        return append(store), waits.held, waits.synced

    found, held, synced = await call.app.run(work)
    note_waits(call, held, synced)
    return found


def took(call: Call, stage: str, seconds: float) -> None:
    """A call went through a stage: the answer tells, and the metrics count it."""
    call.times[stage] = seconds * 1e3
    call.app.hub.stages.took(stage, seconds)


def note_waits(call: Call, held: float, synced: float) -> None:
    """An append was held back for so many seconds, and waited so many for a sync."""
    if held:
        call.times["throttle"] = held * 1e3
    if synced:
        call.times["sync"] = synced * 1e3
