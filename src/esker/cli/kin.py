"""The files of other logs: what `import`, `export`, `info` and `verify` do with kin+KIND:///path."""

from __future__ import annotations

from typing import Any

import msgspec

from esker.cli.failing import FAILED
from esker.cli.place import Place
from esker.cli.progress import Bar
from esker.cli.shown import Shown, tell

KINDS = "rustlog, cursus, comet, topics or aof2"


def import_(
    source: str, topic: str, name: str | None, skip_gaps: bool, place: Place, shown: Shown
) -> int:
    """Copy another log to a topic; goes on where it was stopped, and no record comes twice."""
    from esker import kin

    place.directory("import")
    kin.open_kin(source)  # before a store is made for what is not there
    with place.open("rw", make=True, handover=False) as store, Bar("import") as bar:
        done = kin.import_(
            source, store, topic, source=name, gaps="skip" if skip_gaps else "raise",
            progress=lambda told: bar.at(told.done, told.total),
        )  # fmt: skip
    tell(shown, done, str(done))
    return 0


def export(
    topic: str, target: str, drop: bool, shard: int | None, place: Place, shown: Shown
) -> int:
    """Write a topic as another log would have."""
    from esker import kin

    place.directory("export")
    with place.open() as store, Bar("export") as bar:
        done = kin.export_topic(
            store[topic], target, drop=drop, shard=shard,
            progress=lambda told: bar.at(told.done, told.total),
        )  # fmt: skip
    tell(shown, done, str(done))
    return 0


def info(path: str, shown: Shown) -> int:
    """What there is in another log."""
    from esker import kin

    with kin.open_kin(path) as store:
        topics: list[dict[str, Any]] = [
            {"topic": name, "shard": shard, "earliest": found.earliest(shard),
             "end": found.end(shard), "files": len(parts)}
            for name, found in ((name, store[name]) for name in store)
            for shard, parts in store._found[name].items()
        ]  # fmt: skip
    lines = [f"{store.path}: {store.kind}"]
    for row in topics:
        span = f"offsets {row['earliest']}..{row['end']}"
        lines.append(f"  {row['topic']} shard {row['shard']}: {span}, {row['files']} files")
    told = {"path": store.path, "kind": store.kind, "topics": topics}
    tell(shown, told, "\n".join(lines))
    return 0


def verify(path: str, shown: Shown) -> int:
    """Check another log."""
    from esker import kin

    found = kin.verify(path)
    flaws = [msgspec.structs.asdict(flaw) for flaw in found.flaws]
    tell(shown, {"ok": found.ok, **msgspec.structs.asdict(found), "flaws": flaws}, str(found))
    return 0 if found.ok else FAILED
