"""Opening: after a kill, after a clean close, and looking up records in what was opened.

Opening may be lazy, so the clock stops only when records have been read. The files are in the page
cache, as they are after a process died and not the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import COLUMNS, NOT_INSTALLED, Contender, Goal, Row, round_robin
from bench.peers import PEERS
from bench.setting import MS, SEED, US, Setting, expect, in_batches, per, random_values
from bench.subject import STORES, Esker, available

BATCH = 1_000
SMALL_SEGMENT = 500  # records


class Opening:
    """A store that is closed; `run` opens it and reads the records asked for."""

    def __init__(self, name: str, path: Path, asked: Sequence[int]) -> None:
        self._name = name
        self._path = path
        self._asked = asked
        self.store: Any = None

    def run(self) -> None:
        self.store = STORES[self._name](self._path)
        expect(self.store.random_lookup(self._asked), len(self._asked))

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def recovery(setting: Setting) -> Iterator[Row]:
    """Each run opens its own copy of what the killed process left behind."""
    count = _large(setting)
    killed = _killed(setting)
    found: dict[str, Any] = {}

    def contender(name: str) -> Contender[Opening]:
        copy = setting.fresh(f"recovered-{name}")

        def prepare() -> Opening:
            shutil.copytree(killed[name], copy)
            _sync_tree(copy)  # or the disk is busy with the copy while we are timed
            return Opening(name, copy, [count - 1])

        def clean(opening: Opening) -> None:
            if name == Esker.name and opening.store is not None:
                report = opening.store.store.recovery
                found.update(
                    shards=report.shards, findings=[finding.label for finding in report.findings]
                )
                if opening.store.topic.end() != count:
                    raise RuntimeError(f"{opening.store.topic.end():,} records came back")
            opening.close()
            setting.drop(copy)

        return Contender(prepare, Opening.run, clean)

    names = [name for name in (Esker.name, *PEERS) if available(name)]
    seconds = round_robin(setting.size(2, 1), {name: contender(name) for name in names})
    yield Row(
        f"recovery of {count:,} records after kill -9",
        {**dict.fromkeys(PEERS, NOT_INSTALLED), **seconds},
        (Goal.at_most(2),),
        unit="s",
        details={"records": count, **found},
    )


def lookup(setting: Setting) -> Iterator[Row]:
    """Warm: every record asked for has been asked for once before."""
    count = _large(setting)
    asked = random.Random(SEED).sample(range(count), setting.size(20_000, 200))

    def run(store: Any) -> None:
        expect(store.random_lookup(asked), len(asked))

    stores: dict[str, Any] = {}
    for name, path in _killed(setting).items():
        stores[name] = STORES[name](path)
        run(stores[name])
    seconds = round_robin(
        setting.size(5, 2),
        {name: Contender(partial(stores.get, name), run) for name in stores},
    )
    for name, store in stores.items():
        store.close()
        setting.drop(setting.kept.pop(name))
    yield Row(
        f"random lookup in {count:,} records, warm",
        per(len(asked), {**dict.fromkeys(COLUMNS, NOT_INSTALLED), **seconds}, US),
        (Goal.at_most(15),),
        unit="µs",
        details={"records": count, "lookups": len(asked)},
    )


def _large(setting: Setting) -> int:
    return setting.size(10_000_000, 20_000)


def _killed(setting: Setting) -> dict[str, Path]:
    """Stores whose writers were killed behind their last append. Made once, all at a time."""
    if setting.kept:
        return setting.kept
    count = _large(setting)
    setting.say(f"  {count:,} records in each store, by processes that are then killed")
    spawn = multiprocessing.get_context("spawn")
    paths, writers = {}, {}
    for name in filter(available, COLUMNS):
        paths[name] = setting.fresh(f"killed-{name}")
        writers[name] = spawn.Process(target=_write_and_die, args=(name, paths[name], count))
        writers[name].start()
    for name, writer in writers.items():
        writer.join()
        if writer.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"the writer of {name} ended with {writer.exitcode}, not by a kill")
    for path in paths.values():
        _sync_tree(path)
    setting.kept.update(paths)
    return setting.kept


def _write_and_die(name: str, path: Path, count: int) -> None:
    """In a process of its own. What is sealed and synced when it dies is the store's affair."""
    batches = in_batches(random_values(min(count, 100 * BATCH)), BATCH)
    store = STORES[name](path)
    for left in range(count // BATCH, 0, -len(batches)):
        store.append_many(batches[:left])
    os.kill(os.getpid(), signal.SIGKILL)


def _sync_tree(path: Path) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def clean_open(setting: Setting) -> Iterator[Row]:
    """Many small segments: it is their number that could cost."""
    segments = setting.size(1_000, 20)
    records = segments * SMALL_SEGMENT
    batches = in_batches(random_values(records), SMALL_SEGMENT)
    paths: dict[str, Path] = {}
    for name in filter(available, (Esker.name, *PEERS)):
        paths[name] = setting.fresh(f"segments-{name}")
        options: dict[str, Any] = {}
        if name == Esker.name:
            options["segment_records"] = SMALL_SEGMENT
        with closing(STORES[name](paths[name], **options)) as store:
            store.append_many(batches)
    made = sum(1 for file in paths[Esker.name].rglob("*") if file.suffix in (".seg", ".log"))
    if made != segments:
        raise RuntimeError(f"made {made} segments instead of {segments}")

    def contender(name: str, path: Path) -> Contender[Opening]:
        return Contender(lambda: Opening(name, path, [0, records - 1]), Opening.run, Opening.close)

    seconds = round_robin(
        setting.size(7, 2), {name: contender(name, path) for name, path in paths.items()}
    )
    details = _opened_bare(paths[Esker.name])
    for path in paths.values():
        setting.drop(path)
    yield Row(
        f"open of {segments:,} segments, first and last record read",
        per(1, {**dict.fromkeys(PEERS, NOT_INSTALLED), **seconds}, MS),
        (Goal.at_most(200),),
        unit="ms",
        details={"records": records, **details},
    )


def _opened_bare(path: Path) -> dict[str, float]:
    """What of the opening is for opening alone, and what the first append costs on top."""
    start = time.perf_counter()
    with closing(Esker(path)) as store:
        opened = time.perf_counter()
        store.append_committed([b""])
        appended = time.perf_counter()
    return {
        "open_alone_ms": round((opened - start) / MS, 3),
        "first_append_ms": round((appended - opened) / MS, 3),
    }
