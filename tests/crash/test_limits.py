"""The machine's own limits: a full disk, files that may not grow, no descriptors, no memory.

Not simulated: a tmpfs of one MiB where we may mount one, and the limits that the kernel puts on a
process, which need no permission. Each is reached while appending, in each class that has files.
What comes out is one of Esker's errors, by its name; what was acknowledged is there; and when the
limit is lifted the same open store goes on.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine.committer import JOURNAL_DIRTY_SHARDS
from tests.helpers import PATIENCE, Refusing, child

pytestmark = [pytest.mark.crash, pytest.mark.slow]

CLASSES = ["fsync", "disk", "memory"]
PAD = b"." * 700


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    if shutil.which("mount") is None or shutil.which("umount") is None:
        pytest.skip("there is no mount command")
    place = tmp_path / "small"
    place.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "esker-test", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {tried.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Filler:
    """Appends in one way until there is no room, and remembers what was acknowledged."""

    def __init__(self, topic: esker.Topic, way: str) -> None:
        self.topic = topic
        self.way = way
        self.serial = 0
        self.acked: dict[int, bytes] = {}
        self.pending: dict[int, bytes] = {}

    def value(self) -> bytes:
        self.serial += 1
        return b"%s/%d/" % (self.way.encode(), self.serial) + PAD

    def append(self) -> None:
        """Once; raises when there is no room."""
        if self.way == "many":
            values = [self.value() for _ in range(4)]
            span: Any = self.topic.append_many(values, wait=True)
            self.acked.update(enumerate(values, span.first))
        elif self.way == "wait":
            value = self.value()
            self.acked[self.topic.append(value, wait=True)] = value
        else:
            value = self.value()
            self.pending[self.topic.append(value)] = value
            if self.serial % 5 == 0:
                self.topic.flush()
                self.settle()

    def settle(self) -> None:
        """All that was pending has been written."""
        self.acked |= self.pending
        self.pending = {}

    def fill(self) -> esker.EskerError:
        """Until there is no room; returns what was said then."""
        for _ in range(20_000):
            try:
                self.append()
            except esker.EskerError as problem:
                return problem
        raise AssertionError("there is always room")

    def check(self, store: esker.Store) -> None:
        found = list(store[self.topic.name].read(0))
        assert [record.offset for record in found] == list(range(len(found))), "a hole"
        there = {record.offset: record.value for record in found}
        lost = self.acked.items() - there.items()
        assert not lost, f"{len(lost)} acknowledged records are gone, {min(lost)[0]} first"
        assert there.items() <= (self.acked | self.pending).items(), "a record that was refused"


def soon(call: Callable[[], Any], background: bool) -> None:
    """There is room: it works at once, or when the sealer, which tries too, gives its part back."""
    deadline = time.monotonic() + (PATIENCE if background else 0.0)
    while True:
        try:
            call()
            return
        except esker.DiskFull:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


# ---- a full disk -----------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True], ids=["no threads", "threads"])
@pytest.mark.parametrize("way", ["wait", "many", "buffer"])
@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_disk_costs_nothing_and_the_log_goes_on_when_there_is_room(
    small: Path, durability: str, way: str, background: bool
) -> None:
    ballast = small / "ballast"
    ballast.write_bytes(bytes(300 << 10))
    with esker.open(small / "data", background=background, sync_interval="1ms") as store:
        topic = store.create("t", durability=durability, segment_bytes="64KiB")
        filler = Filler(topic, way)
        for _ in range(3):  # full again and again, a little room in between
            assert isinstance(filler.fill(), esker.DiskFull)
            assert isinstance(filler.fill(), esker.DiskFull), "and again when it is still full"
            with pytest.raises(esker.EskerError):
                store.create("another").append(b"x" * 100_000, wait=True)
            size = ballast.stat().st_size
            os.truncate(ballast, size - (60 << 10))
            soon(topic.sync, background)  # what was pending is written now
            filler.settle()
            soon(filler.append, background)
            soon(topic.flush, background)
            filler.settle()
        ballast.unlink()
        soon(topic.sync, background)
    with esker.open(small / "data") as store:
        assert store.recovery.clean, str(store.recovery)
        filler.check(store)
        store["t"].append(b"more", wait=True)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_store_that_was_killed_on_a_full_disk_is_recovered_when_there_is_room(
    small: Path, durability: str
) -> None:
    program = """
        import os, signal, sys
        import esker
        store = esker.open(sys.argv[1])
        topic = store.create("t", durability=sys.argv[2], segment_bytes="64KiB")
        n = 0
        while True:
            try:
                topic.append(b"%d/" % n + b"." * 700, wait=True)
            except esker.DiskFull:
                break
            n += 1
        print(n)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ballast = small / "ballast"
    ballast.write_bytes(bytes(200 << 10))
    with child(program, small / "data", durability) as writer:
        acked = int(writer.line())
        writer.process.wait()
    problem = None
    try:
        esker.open(small / "data").close()  # it may manage without room, or say that it cannot
    except esker.DiskFull as said:
        problem = said
    ballast.unlink()
    with esker.open(small / "data") as store:
        values = [record.value for record in store["t"].read(0)]
        assert values[:acked] == [b"%d/" % n + PAD for n in range(acked)], problem
        store["t"].append(b"more", wait=True)


def test_a_seal_that_found_no_room_does_not_keep_that_of_a_deleted_log(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync", segment_records=3)
        files.refuse("write", errno.ENOSPC, ".seg.tmp")
        for n in range(8):
            topic.append(b"%d" % n, wait=True)
        store.tick()
        assert not list(tmp_path.rglob("*.seg*")), "something is left of the attempt"
        files.allow()
        for n in range(8):
            topic.append(b"%d" % n, wait=True)
        store.tick()
        assert len(list(tmp_path.rglob("*.seg"))) > 2
        assert held_though_deleted(tmp_path) == []


def held_though_deleted(root: Path) -> list[str]:
    """Files of this process below a directory that are open and have no name any more."""
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")]  # fmt: skip
    return [path for path in held if str(root) in path and "(deleted)" in path]


@pytest.mark.parametrize("gone", ["sealed", "deleted"])
def test_a_journal_keeps_no_log_open_that_is_not_there_any_more(tmp_path: Path, gone: str) -> None:
    """Journals are emptied when they are full, which may be a day and a thousand segments later."""
    with esker.open(tmp_path / "data", background=False) as store:
        for at in range(JOURNAL_DIRTY_SHARDS + 4):
            store.create(f"t{at}", segment_records=2).append(b"1")
        store.sync()
        assert len(store._context.committer._journaled) > JOURNAL_DIRTY_SHARDS
        for topic in [store[name] for name in store]:
            if gone == "deleted":
                store.delete(topic.name)
            else:
                topic.append_many([b"2", b"3"], wait=True)
                topic.append(b"in the next one", wait=True)
        for _ in range(10):
            store.tick()
        del topic
        gc.collect()
        assert held_though_deleted(tmp_path) == []


# ---- what the kernel allows one process ------------------------------------------------------

LIMITED = """
    import json, os, resource, signal, sys
    import esker
    from tests.crash.test_limits import Filler

    path, durability, limit = sys.argv[1], sys.argv[2], sys.argv[3]
    which = getattr(resource, limit)
    _, hard = resource.getrlimit(which)

    def allow(amount):
        resource.setrlimit(which, (hard if amount is None else amount, hard))

    def said(call):
        try:
            return call() and "" or ""
        except esker.EskerError as problem:
            return problem.code
        except MemoryError:
            return "MemoryError"

    store = esker.open(path, background=sys.argv[4] == "threads")
    filler = Filler(store.create("t", durability=durability, segment_bytes="64KiB"), "wait")
    for _ in range(30):
        filler.append()
    codes = []
"""
FSIZE = """
    allow(40 << 10)
    codes.append(filler.fill().code)
    codes.append(said(filler.append))
    allow(None)
    for _ in range(100):
        filler.append()
"""
NOFILE = """
    taken = []
    allow(64)
    while True:  # every descriptor is somebody else's
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    codes.append(filler.fill().code)  # at the next roll
    codes.append(said(lambda: esker.open(path, mode="r")))
    for fd in taken:
        os.close(fd)
    allow(None)
    for _ in range(100):
        filler.append()
"""
MEMORY = """
    big = b"x" * (24 << 20)
    store.create("big", durability=durability, max_record_bytes="32MiB", segment_bytes="128MiB")
    store["big"].append(b"small", wait=True)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * 4096
    codes_of = []
    for spare in (2 << 20, 8 << 20, 20 << 20, 30 << 20, 60 << 20):
        allow(used + spare)
        codes_of.append(said(lambda: store["big"].append_many([big], wait=True)))
        codes_of.append(said(lambda: list(store["big"].read(0))))
        allow(None)
        filler.append()
    codes.append(sorted(set(codes_of)))
    filler.append()
"""
END = """
    store.close()
    with esker.open(path) as again:
        assert again.recovery.clean, str(again.recovery)
        filler.check(again)
        if "big" in again:
            values = [record.value for record in again["big"].read(0)]
            assert values[0] == b"small" and set(values[1:]) <= {big}, "a record that nobody wrote"
    print(json.dumps(codes))
"""


def limited(
    path: Path, durability: str, limit: str, work: str, threads: str = "no threads"
) -> list[Any]:
    """Codes of the errors that a process got under a limit."""
    with child(LIMITED + work + END, path / "data", durability, limit, threads) as process:
        line = process.line()
        process.end()
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.parametrize("threads", ["no threads", "threads"])
@pytest.mark.parametrize("durability", CLASSES)
def test_files_that_may_not_grow(tmp_path: Path, durability: str, threads: str) -> None:
    codes = limited(tmp_path, durability, "RLIMIT_FSIZE", FSIZE, threads)
    assert codes == ["disk_full", "disk_full"]


@pytest.mark.parametrize("durability", CLASSES)
def test_no_descriptor_left(tmp_path: Path, durability: str) -> None:
    codes = limited(tmp_path, durability, "RLIMIT_NOFILE", NOFILE)
    assert codes == ["too_many_files", "too_many_files"]


@pytest.mark.parametrize("durability", CLASSES)
def test_no_memory_left(tmp_path: Path, durability: str) -> None:
    """A record too large for the memory there is: refused or written, never half of it."""
    (codes,) = limited(tmp_path, durability, "RLIMIT_AS", MEMORY)
    assert "MemoryError" in codes, "the limit was never felt"
    assert set(codes) <= {"", "MemoryError", "storage", "poisoned"}, codes
