"""The way of a record from a client to those who watch, in stages, and what each may take.

    parse     from the head of the request to records that can be appended
    append    until the append is acknowledged as its class asks: written, or synced too
    wake      from the writer's word to the topic's turn in the ready set
    make      reading what is new, and making frames of it, once for all who look alike
    write     handing the frames to all connections that are open

The budget is for one record on a machine with time to spare, class `disk`. It is a yardstick, not a
promise: metrics show both, as `esker_stage_seconds` and `esker_stage_budget_seconds`, so that it is
seen which stage is over it.
"""

from __future__ import annotations

from typing import Final

from esker.engine.tally import Times

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
