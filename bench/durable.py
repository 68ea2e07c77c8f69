"""Commits that somebody waits for: alone, by many threads at once, on many topics at once."""

from __future__ import annotations

import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import esker
from bench.measure import COLUMNS, NOT_INSTALLED, Contender, Figure, Goal, Row
from bench.peers import PEERS
from bench.setting import SEED, US, Setting, in_batches, per, random_values
from bench.subject import STORES, Esker, Raw, available
from esker.storage.files import File, Mode, RealFiles

ONE_THREAD = "1 thread"


def lone_disk(setting: Setting) -> Iterator[Row]:
    """In the page cache when the call returns, and alone there: nothing is buffered."""
    count = setting.size(20_000, 300)
    values = random_values(count)
    seconds = setting.compare(lambda store: store.append_committed(values), repeats=5)
    yield Row(
        "append(wait=True), class disk",
        per(count, seconds, US),
        (Goal.at_most(15),),
        unit="µs",
        details={"records": count},
    )


def lone_fsync(setting: Setting) -> Iterator[Row]:
    """Esker and the bare file in one loop, the peers in the next: medians, because disks hiccup.

    Two loops, because a peer in between empties the processor's caches for whoever comes next,
    and a bare write has next to nothing in them to lose.
    """
    count = setting.size(400, 10)
    frame_bytes = _frame_bytes(setting)
    figures: dict[str, Figure] = dict.fromkeys(COLUMNS, NOT_INSTALLED)
    for names in ((Esker.name, Raw.name), tuple(filter(available, PEERS))):
        figures |= _medians(setting, names, random_values(count), random_values(1, frame_bytes))
    yield Row(
        "append(wait=True), class fsync; raw: pwrite + fdatasync",
        figures,
        (Goal.times_slower(1.3, than=Raw.name),),
        unit="µs",
        details={"records": count, "bytes_per_write": frame_bytes},
    )


def _medians(
    setting: Setting, names: Sequence[str], values: Sequence[bytes], frame: Sequence[bytes]
) -> dict[str, Figure]:
    """Microseconds of one durable append. They alternate, in a new order each time round."""
    took: dict[str, list[float]] = {name: [] for name in names}
    paths = {name: setting.fresh(name) for name in names}
    order = list(names)
    shuffled = random.Random(SEED)
    with ExitStack() as stack:
        stores = {
            name: stack.enter_context(closing(STORES[name](paths[name], durable=True)))
            for name in names
        }
        for store in stores.values():
            store.append_committed(values[:1])  # the first append of a store makes files
        for value in values:
            shuffled.shuffle(order)
            for name in order:
                given = frame if name == Raw.name else [value]  # the same bytes for the disk
                start = time.perf_counter()
                stores[name].append_committed(given)
                took[name].append(time.perf_counter() - start)
    for path in paths.values():
        setting.drop(path)
    return {name: statistics.median(times) / US for name, times in took.items()}


def _frame_bytes(setting: Setting) -> int:
    """What one record of the benchmark becomes on disk."""
    path = setting.fresh("measured")
    with closing(Esker(path, durable=True)) as store:
        store.append_committed(random_values(1))
        written = store.topic.counters()["total_bytes"]
    setting.drop(path)
    return int(written)


class Crew:
    """Threads that append to one store, all from the same moment on."""

    def __init__(self, store: Any, parts: Sequence[Sequence[bytes]]) -> None:
        self._store = store
        self._errors: list[BaseException] = []
        self._start = threading.Barrier(len(parts) + 1)
        self._threads = [threading.Thread(target=self._work, args=(part,)) for part in parts]
        store.append_committed(parts[0][:1])  # the first append of a store makes files
        for thread in self._threads:
            thread.start()

    def _work(self, values: Sequence[bytes]) -> None:
        self._start.wait()
        try:
            self._store.append_committed(values)
        except BaseException as problem:
            self._errors.append(problem)

    def run(self) -> None:
        self._start.wait()
        for thread in self._threads:
            thread.join()
        for problem in self._errors:
            raise problem

    def close(self) -> None:
        self._store.close()


def threads(setting: Setting) -> Iterator[Row]:
    """The same number of appends by one thread and by many, in turns."""
    crew_size, each = setting.size(64, 8), setting.size(40, 2)
    count = crew_size * each
    alone = random_values(setting.size(400, 10))
    together = in_batches(random_values(count), each)

    def crew(name: str, parts: Sequence[Sequence[bytes]]) -> Contender[Crew]:
        made: Callable[..., Any] = partial(STORES[name], durable=True)
        return setting.contender(name, Crew.run, open_store=lambda path: Crew(made(path), parts))

    stores = [name for name in (Esker.name, *PEERS) if available(name)]
    contenders = {name: crew(name, together) for name in stores}
    contenders |= {f"{name}, {ONE_THREAD}": crew(name, [alone]) for name in stores}
    seconds = setting.compare(lambda store: None, repeats=3, columns=(), also=contenders)
    figures: dict[str, Figure] = dict.fromkeys(PEERS, NOT_INSTALLED)
    figures |= {
        name: figure / (len(alone) if name.endswith(ONE_THREAD) else count) / US
        for name, figure in seconds.items()
        if isinstance(figure, float)
    }
    figures[ONE_THREAD] = figures.pop(f"{Esker.name}, {ONE_THREAD}")
    yield Row(
        f"durable append, {crew_size} threads",
        figures,
        (Goal.times_faster(8, than=ONE_THREAD),),
        unit="µs",
        details={"records": count, "records_by_one_thread": len(alone)},
    )


class CountedFiles(RealFiles):
    """The real file system, counting what it is asked to sync. Independent of our statistics."""

    def __init__(self) -> None:
        self.file_syncs = 0
        self.directory_syncs = 0

    def open(self, path: str, mode: Mode) -> Any:
        return _Counted(super().open(path, mode), self)

    def sync_dir(self, path: str) -> None:
        self.directory_syncs += 1
        super().sync_dir(path)

    def taken(self) -> tuple[int, int]:
        """The counts since the last call."""
        counts = self.file_syncs, self.directory_syncs
        self.file_syncs = self.directory_syncs = 0
        return counts


class _Counted:
    """A file; everything but `sync` goes straight through."""

    def __init__(self, file: File, tally: CountedFiles) -> None:
        self._file = file
        self._tally = tally

    def sync(self) -> None:
        self._tally.file_syncs += 1
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def topics(setting: Setting) -> Iterator[Row]:
    """Append to each topic, then `store.sync()`. The very first round also creates every log."""
    count = _openable(setting.size(1_000, 30))
    path = setting.fresh("topics")
    files = CountedFiles()
    value = random_values(1)[0]
    rounds = []
    with esker.open(path, files=files) as store:
        made = [store.create(f"topic-{n}", durability="fsync") for n in range(count)]
        for _ in range(3):
            said = store.statistics()["syncs"]
            files.taken()
            start = time.perf_counter()
            for topic in made:
                topic.append(value)
            store.sync()
            seconds = time.perf_counter() - start
            file_syncs, directory_syncs = files.taken()
            said = store.statistics()["syncs"] - said
            rounds.append((file_syncs, directory_syncs, said, seconds))
            if any(topic.durable() != topic.end() for topic in made):
                raise RuntimeError("sync returned before every topic was durable")
    with esker.open(path) as store:
        if any(len(store[topic.name]) != len(rounds) for topic in made):
            raise RuntimeError("a record is missing")
    setting.drop(path)
    for label, (file_syncs, directory_syncs, said, seconds) in (
        ("first round", rounds[0]),
        ("later round", min(rounds[1:])),
    ):
        yield Row(
            f"{count:,} topics, 1 durable append each, {label}",
            {Esker.name: file_syncs + directory_syncs},
            (Goal.at_most(20),),
            unit="syncs",
            details={
                "file_syncs": file_syncs, "directory_syncs": directory_syncs,
                "syncs_by_statistics": said, "seconds": round(seconds, 4),
            },
        )  # fmt: skip


def _openable(topics: int) -> int:
    """As many topics as this process may keep open: a log, a lock and a state file each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = topics * 6 + 256
    if hard == resource.RLIM_INFINITY or soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 0), hard))
    return min(topics, max(1, (soft - 256) // 6))
