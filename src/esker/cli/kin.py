"""`esker import`, `esker export`, and `esker verify kin+comet:///path`: the files of other logs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

import esker
from esker.engine.progress import Progress
from esker.engine.reader import Gaps


def _tell(progress: Progress) -> None:
    if sys.stderr.isatty():
        print(f"\r{progress}", end="", file=sys.stderr, flush=True)


def _say(done: Any, as_json: bool, **more: Any) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if as_json:
        print(msgspec.json.encode({**more, **msgspec.structs.asdict(done)}).decode())
    else:
        print(done)


def import_(arguments: argparse.Namespace) -> int:
    """`esker import`."""
    from esker import kin

    gaps: Gaps = "skip" if arguments.skip_gaps else "raise"
    kin.open_kin(arguments.source)  # before a store is made for what is not there
    with esker.open(arguments.dir) as store:
        done = kin.import_(
            arguments.source, store, arguments.topic, source=arguments.name, gaps=gaps,
            progress=_tell,
        )  # fmt: skip
    _say(done, arguments.json)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """`esker export`."""
    from esker import kin

    with esker.open(arguments.dir, "r") as store:
        done = kin.export_topic(
            store[arguments.topic], arguments.target, drop=arguments.drop, shard=arguments.shard,
            progress=_tell,
        )  # fmt: skip
    _say(done, arguments.json)
    return 0


def info(arguments: argparse.Namespace) -> int:
    """`esker info kin+comet:///path`."""
    from esker import kin

    with kin.open_kin(arguments.dir) as store:
        topics = [
            {"topic": name, "shard": shard, "earliest": found.earliest(shard),
             "end": found.end(shard), "files": len(parts)}
            for name, found in ((name, store[name]) for name in store)
            for shard, parts in store._found[name].items()
        ]  # fmt: skip
    if arguments.json:
        told = {"path": store.path, "kind": store.kind, "topics": topics}
        print(msgspec.json.encode(told).decode())
        return 0
    print(f"{store.path}: {store.kind}")
    for row in topics:
        span = f"offsets {row['earliest']}..{row['end']}"
        print(f"  {row['topic']} shard {row['shard']}: {span}, {row['files']} files")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """`esker verify kin+comet:///path`."""
    from esker import kin

    found = kin.verify(arguments.dir)
    if arguments.json:
        flaws = [msgspec.structs.asdict(flaw) for flaw in found.flaws]
        told = {"ok": found.ok, **msgspec.structs.asdict(found), "flaws": flaws}
        print(msgspec.json.encode(told).decode())
    else:
        print(found)
    return 0 if found.ok else 1
