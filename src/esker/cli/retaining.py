"""`esker retention plan` and `run`: what caps, ages and budgets take away. Only for directories."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Column, Shown, answer, number, size

_ROW: Final = (
    Column("TOPIC", lambda row: row["topic"], wide=True),
    Column("SHARD", lambda row: str(row["shard"]), right=True),
    Column("FIRST", lambda row: number(row["first"]), right=True),
    Column("LAST", lambda row: number(row["last"]), right=True),
    Column("SEGMENTS", lambda row: number(row["segments"]), right=True),
    Column("SIZE", lambda row: size(row["bytes"]), right=True),
    Column("REASON", lambda row: row["reason"]),
)


def plan(*, place: Place = HERE, shown: Shown = USUAL) -> int:
    """What would be evicted now, and why. Changes nothing.

    A writer does so by itself, in the background; its readers are told of a Gap.
    """
    place.directory("retention plan")
    with place.open() as store:
        rows = _rows(store.retention_plan())
    answer(shown, {"evictions": rows}, rows, _ROW, empty="nothing would be evicted")
    return 0


def run(*, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Evict it now. Shards that another process writes are left to that one."""
    place.directory("retention run")
    with place.open("rw", background=False) as store:
        rows = _rows(store.retain())
    answer(shown, {"evictions": rows}, rows, _ROW, empty="nothing was evicted")
    return 0


def _rows(evictions: Any) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(each) for each in evictions]
