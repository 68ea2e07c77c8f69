"""Rewriting where something goes wrong: a whole segment is there, and nothing deleted comes back.

The suites in tests/crash rewrite, too, whenever their programs delete by tag; here every call of a
rewriting is looked at by itself.
"""

from __future__ import annotations

from typing import Any

import pytest

import esker
from esker.engine import erasing, rewriting
from esker.storage import marks
from esker.testing import KEPT, LOST, ManualClock, SimulatedDisk
from tests import fsck
from tests.crash.driver import little_is_enough
from tests.crash.explorer import Explorer
from tests.suites import slowly

ROOT = "/store"


def opened(disk: SimulatedDisk, mode: Any = "rw") -> esker.Store:
    return esker.open(ROOT, mode, files=disk, clock=ManualClock(), background=False)


def filled(disk: SimulatedDisk) -> esker.Store:
    """A store with a sealed segment of which every other record is deleted."""
    store = opened(disk)
    topic = store.create("t", durability="disk", segment_records=10)
    topic.append_many(
        [esker.Record(b"%d " % n + b"v" * 100, tag="x" if n % 2 else None) for n in range(10)]
    )
    topic.append(b"last", wait=True)
    store.tick()
    topic.delete(tag="x")
    return store


def values(store: esker.Store) -> list[bytes]:
    return [record.value[:1] for record in store["t"].read(0, gaps="skip")]


def abandon(store: esker.Store) -> None:
    """Forget a store whose process is gone."""
    store._context.forked = True  # such a handle closes without touching the disk
    store.close()


LEFT = [b"0", b"2", b"4", b"6", b"8", b"l"]


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "scanned"])
@pytest.mark.parametrize("durability", ["disk", *slowly("fsync")])
def test_a_death_anywhere_leaves_the_old_segment_or_the_new_one(
    durability: str, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the background and by hand, again where more was deleted; recovery dies, too."""
    monkeypatch.setattr(erasing, "INDEX_ROWS_MIN", 0 if indexed else 1 << 30)
    explorer = Explorer(most=16, nested=4)
    steps: list[Any] = [
        ("create", "t", durability), ("many", "t", 8, 200), ("many", "t", 8, 200),
        ("wait", "t", 900), ("tick",), ("erase", "t", "x-a"), ("tick",), ("many", "t", 3, 900),
        ("erase", "t", "x-b"), ("reclaim", "t"), ("wait", "t", 40), ("tick",),
    ]  # fmt: skip
    made: list[int] = []
    real = rewriting.copy_blank

    def counted(*arguments: Any) -> int:
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(rewriting, "copy_blank", counted)
    explorer.explore(steps, seed=5, skip=5)
    assert len(made) >= 3, "in the background, by hand, and the log that was ended for it"
    assert explorer.states >= 60
    assert explorer.double >= 60
    assert explorer.also["read only"]


@pytest.mark.parametrize("slot", [0, 4096])
def test_a_lost_slot_of_the_state_page_shows_no_blank_record(
    slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second slot could not be told of the deletion; it is before anything is blank."""
    disk = SimulatedDisk()
    store = filled(disk)
    topic = store["t"]
    topic.append_many([esker.Record(b"more", tag="y")] * 3, wait=True)
    shard = topic._shards[0]
    real, told = shard.page.store, []

    def once(**how: Any) -> None:
        told.append(how)
        if len(told) == 1:
            real(**how)
        else:
            raise esker.StorageError("no more", path="state")

    with monkeypatch.context() as patched:
        patched.setattr(shard.page, "store", once)
        assert topic.delete(tag="y") == 3
    assert topic.reclaim() > 0
    wanted = values(store)
    abandon(store)
    after = disk.kill()
    path = next(path for path in after.contents() if path.endswith("/state"))
    after.poke(path, slot + 20, b"\xff\xff\xff")
    with opened(after, "r") as beside:
        assert values(beside) == wanted == LEFT
    with opened(after) as store:
        assert values(store) == wanted


def test_the_copy_is_whole_before_it_has_a_name_and_its_name_is_durable() -> None:
    disk = SimulatedDisk()
    store = filled(disk)
    before = disk.contents()
    (old,) = (path for path in before if path.endswith(".seg"))
    calls: list[tuple[str, str]] = []

    def watch(call: Any, when: str) -> None:
        if when == "before":
            calls.append((call.name, call.path))
        for image in (disk.crash(LOST), disk.crash(KEPT)):
            assert not fsck.judge(image, pages=False).problems, (call, when)

    disk.watch = watch
    with little_is_enough():
        store.tick()
    disk.watch = None
    kinds = [name for name, path in calls if path.startswith(old) or name == "sync_dir"]
    assert kinds[0] == "create"
    assert kinds[-3:] == ["sync", "rename", "sync_dir"]
    assert len(disk.crash(LOST).contents()[old]) < len(before[old])
    assert values(store) == LEFT
    abandon(store)


def test_what_a_dead_rewriting_left_is_cleared_away() -> None:
    disk = SimulatedDisk()
    store = filled(disk)
    (old,) = (path for path in disk.contents() if path.endswith(".seg"))
    file = disk.open(old + ".tmp", "create")
    file.write(0, [b"half a copy"])
    file.close()
    killed = disk.kill()
    assert store["t"].reclaim() > 0, "it is no obstacle"
    assert old + ".tmp" not in disk.contents()
    abandon(store)
    with opened(killed) as after:
        assert values(after) == LEFT
        assert old + ".tmp" not in killed.contents()


def test_a_damaged_copy_is_never_made() -> None:
    """What the disk gives is held against the file's own hash before it is copied."""
    disk = SimulatedDisk()
    with filled(disk):
        (old,) = (path for path in disk.contents() if path.endswith(".seg"))
    disk.poke(old, 700, b"\xff")
    rotten = disk.contents()[old]
    with opened(disk) as store:
        store["t"].append(b"more", wait=True)
        with little_is_enough():
            store.tick()
        assert store["t"].reclaim() == 0
        assert disk.contents()[old] == rotten


def test_a_new_file_of_deletions_still_knows_what_is_blank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr(marks, "REWRITE_BYTES", 0)
    store = filled(disk)
    assert store["t"].reclaim() > 0
    for n in range(4):
        store["t"].append(b"y", tag=f"y{n}", wait=True)
        store["t"].delete(tag=f"y{n}")
        assert values(store) == LEFT
    assert rewriting.reclaim(store["t"]._shards[0]) > 0
    abandon(store)
    with opened(disk.crash(LOST)) as after:
        assert values(after) == LEFT
