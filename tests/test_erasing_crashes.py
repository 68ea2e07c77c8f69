"""Deletion by tag where something goes wrong: each as short as it can be shown.

The suites in tests/crash look at everything that can happen; what they, or a reader of the code,
have found stands here by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

import esker
from esker.engine.shard import Shard
from esker.testing import KEPT, LOST, Fault, ManualClock, SimulatedDisk
from tests.crash.explorer import Explorer
from tests.helpers import abandon

ROOT = "/store"


def opened(disk: SimulatedDisk, mode: Any = "rw") -> esker.Store:
    return esker.open(ROOT, mode, files=disk, clock=ManualClock(), background=False)


def filled(disk: SimulatedDisk) -> esker.Store:
    """A store whose topic t has four records, the second and the fourth of them with a tag."""
    store = opened(disk)
    topic = store.create("t", durability="disk")
    for number in range(4):
        topic.append(b"%d" % number, tag="x" if number % 2 else None)
    topic.sync()
    return store


def values(store: esker.Store, gaps: Any = "raise") -> list[bytes]:
    return [record.value for record in store["t"].read(0, gaps=gaps)]


class Interfering:
    """A lock that somebody else takes as soon as it is free."""

    def __init__(self, lock: Any, then: Callable[[], None]) -> None:
        self._lock, self._then = lock, then

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        then, self._then = self._then, lambda: None
        then()


@pytest.mark.parametrize("by", ["tag", "offset"])
def test_a_deletion_outlives_the_background_which_sets_offsets_aside_at_that_moment(
    by: str,
) -> None:
    """It writes the same page, and does not wait for the lock of the shard."""
    disk = SimulatedDisk()
    store = filled(disk)
    shard = store["t"]._shards[0]
    page = shard.page
    page.lock = Interfering(  # type: ignore[assignment]
        page.lock, lambda: page.reserve(page.ceiling + 1)
    )
    gone = store["t"].delete(tag="x") if by == "tag" else store["t"].delete(2)
    assert gone == 2
    left = [b"0", b"2"] if by == "tag" else [b"2", b"3"]
    assert values(store) == left
    abandon(store)
    with opened(disk.crash(LOST)) as after:
        assert values(after, gaps="skip") == left
    with opened(disk.crash(KEPT), "r") as after:
        assert values(after, gaps="skip") == left


def test_who_reads_on_sees_a_deletion_whose_writer_died_before_it_could_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page has it, so it has happened; the next writer leaves these records out."""
    disk = SimulatedDisk()
    store = filled(disk)
    reader = opened(disk, "r")
    assert values(reader) == [b"0", b"1", b"2", b"3"]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "_count", die)
        with pytest.raises(KeyboardInterrupt):
            store["t"].delete(tag="x")
    for shard in store._context.shards:
        shard._release_writer_lock()  # as the kernel does
    abandon(store)
    with opened(disk) as later:
        later["t"].append(b"4", wait=True)
        assert values(later) == [b"0", b"2", b"4"]
        assert values(reader) == [b"0", b"2", b"4"]
    reader.close()


def lose_page(disk: SimulatedDisk) -> SimulatedDisk:
    """Both slots of the state page rot."""
    disk = disk.kill()
    path = next(path for path in disk.contents() if path.endswith("/state"))
    for slot in (0, 4096):
        disk.poke(path, slot + 20, b"\xff\xff\xff")
    return disk


def file_of(disk: SimulatedDisk, number: int) -> str:
    shard = next(path for path in disk.contents() if path.endswith("/state")).removesuffix("state")
    return f"{shard}deletions-{number:08d}"


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_what_was_deleted_stays_deleted_when_the_page_is_lost(mode: str) -> None:
    """Also for who only reads, and recovers nothing."""
    disk = SimulatedDisk()
    with filled(disk) as store:
        store["t"].delete(tag="x")
    with opened(lose_page(disk), mode) as after:
        assert values(after, gaps="skip") == [b"0", b"2"]


@pytest.mark.parametrize("size", [0, 30, 64, 100])
def test_a_file_that_was_being_made_does_not_stand_for_the_one_before_it(size: int) -> None:
    """A crash left a beginning of the next file; then the page is lost, which named the last.

    What is in the newest file counts then, or nobody knows; nothing comes back in silence.
    """
    disk = SimulatedDisk()
    with filled(disk) as store:
        store["t"].delete(tag="x")
        made = store["t"]._shards[0]._marks
        made.spent = True
        made.append({0: bytes(512)}, store["t"]._shards[0].marks, 7)  # and the page is not told
        made.close()
    disk = lose_page(disk)
    content = disk.contents()[file_of(disk, 2)]
    file = disk.open(file_of(disk, 2), "rw")
    file.truncate(size)
    file.close()
    assert len(content) > 100
    with opened(disk) as after, pytest.raises(esker.Corruption, match="deletions"):
        values(after, gaps="skip")


def test_a_newer_file_that_nobody_named_never_stands_for_one_that_was_written_on() -> None:
    """A death between file and page left it; a power cut undoes what nobody synced; then the page
    is lost."""
    disk = SimulatedDisk()
    store = filled(disk)
    store["t"].append(b"4", tag="y", wait=True)
    store["t"].delete(tag="x")
    shard = store["t"]._shards[0]
    shard._marks.spent = True
    shard._marks.append({}, shard.marks, 7)  # here it dies
    abandon(store)
    disk = disk.kill()
    assert file_of(disk, 2) in disk.contents()
    with opened(disk) as store:
        store["t"].delete(tag="y")
    with opened(lose_page(disk.crash(LOST))) as after:
        assert values(after, gaps="skip") == [b"0", b"2"]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_death_anywhere_leaves_every_deletion_done_or_undone(durability: str) -> None:
    """The first makes a file, the next is written behind it; recovery dies, too."""
    explorer = Explorer(most=24, nested=6)
    steps: list[Any] = [
        ("create", "t", durability), ("wait", "t", 1), ("reopen",), ("many", "t", 4, 100),
        ("erase", "t"), ("many", "t", 4, 900), ("erase", "t", "x-"), ("wait", "t", 500), ("tick",),
        ("erase", "t", "x-a"),
    ]  # fmt: skip
    explorer.explore(steps, seed=3, skip=4)
    assert explorer.states >= 90
    assert explorer.double >= 100
    assert explorer.also["read only"]


def test_a_file_on_which_a_deletion_failed_is_not_written_to_again() -> None:
    """The page may name what it has, though nobody could sync the page."""
    disk = SimulatedDisk()
    with filled(disk) as store:
        topic = store["t"]
        topic.delete(tag="x")
        topic.append(b"4", tag="y", wait=True)
        disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside="/state"))
        with pytest.raises(esker.EskerError):
            topic.delete(tag="y")
        disk.heal()
        before = disk.contents()[file_of(disk, 1)]
        seen = []

        def watch(call: Any, when: str) -> None:
            seen.append(disk.contents().get(file_of(disk, 1), before))

        disk.watch = watch
        assert topic.delete(tag="y") == 1
        disk.watch = None
        assert set(seen) == {before}
        assert file_of(disk, 2) in disk.contents()
        assert values(store) == [b"0", b"2"]
    with opened(disk) as store:
        assert values(store) == [b"0", b"2"]
