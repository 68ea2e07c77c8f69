"""The monitor: each of its rules trips on a small misbehaviour, and a healthy engine on none."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import esker
from esker.engine.page import Page
from esker.engine.shard import Shard
from esker.format import catalog, columns, names
from esker.format.place import Place, stub_of
from esker.format.segment import SegmentHeader, decode_trailer
from esker.format.state import CLEAN, State
from esker.options import topic_options
from esker.storage import marks
from esker.storage.counters import Counters
from esker.storage.files import File, base_name
from esker.storage.journal import Journal, Redo
from esker.storage.log import LogSegment
from esker.storage.marks import MarksFile
from esker.storage.memory import MemoryFiles
from esker.storage.state import StateFile
from esker.testing import Fault, Monitor, SimulatedDisk
from esker.testing.monitor import MonitoredFile
from tests.crash.driver import OPTIONS, Driver, mixed

SHARD = "/s/topics/00000001/0000"
DELETIONS = f"{SHARD}/deletions-00000001"


class Shaky(MemoryFiles):
    """Refuses to sync when told to."""

    failing = False

    def open(self, path: str, mode: Any) -> Any:
        file: Any = super().open(path, mode)
        return ShakyFile(self, file)


class ShakyFile:
    def __init__(self, files: Shaky, file: Any) -> None:
        self._files, self._file, self.path = files, file, file.path

    def sync(self) -> None:
        if self._files.failing:
            raise OSError(errno.EIO, "no")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class World:
    """A shard of a store without an engine: files, a log, a state page and a journal."""

    def __init__(self, durability: str = "disk") -> None:
        self.inner = Shaky()
        for folder in ("/s", "/s/journal", "/s/topics", "/s/topics/00000001", SHARD):
            self.inner.make_dir(folder)
        self.files = Monitor(self.inner)
        self.entry = catalog.TopicEntry(1, "t", 1, 0, topic_options(durability=durability))
        self.page = StateFile(self.files, SHARD)
        self.journal = Journal(self.files, "/s/journal", bytes(16), 1 << 16, "")
        self.counters = Counters.open(self.files, SHARD, writable=True)
        self.log = self.make(1)

    def make(self, number: int) -> LogSegment:
        header = SegmentHeader(bytes(16), 1, 0, 1, number, base=0, created=1, salt=number)
        return LogSegment.create(self.files, SHARD, header, catalog.encode_config(self.entry))

    def append(self, count: int = 1) -> None:
        self.log.append([columns.from_lists([b"x"] * count, {}, 1)])

    def ready(self) -> None:
        """The log and its name are durable, and one record is in it that is not."""
        self.state(ceiling=100)
        self.log.sync(self.log.end)
        self.files.sync_dir(SHARD)
        self.append()

    def state(self, ceiling: int, **fields: Any) -> None:
        self.page.store(State(0, 0, 1, 0, 1, ceiling)._replace(**fields))

    def publish(self, durable: int) -> None:
        assert self.counters is not None
        self.counters.publish(durable, 1, self.log.end, durable)

    def redo(self) -> None:
        data = self.log.file.read(0, self.log.end)
        self.journal.append([Redo(1, 0, 1, 0, 1, data)], 1)

    def put(self, path: str, data: bytes = b"x", *, sync: bool = True) -> File:
        file = self.files.open(path, "create")
        file.write(0, [data])
        if sync:
            file.sync()
        return file

    def deletions(self) -> File:
        """A file of two bytes that a durable page names."""
        file = self.put(DELETIONS, b"xx")
        self.files.sync_dir(SHARD)
        self.state(ceiling=1, marks=1, marks_end=2)
        return file


def rename(world: World) -> None:
    world.put("/s/catalog-00000001.tmp", sync=False)
    world.files.rename("/s/catalog-00000001.tmp", "/s/catalog-00000001")


def seal_unnamed(world: World) -> None:
    world.ready()
    world.log.sync(world.log.end)
    target = world.log.path.replace(".log", ".seg")
    world.put(target + ".tmp")
    world.files.rename(target + ".tmp", target)
    world.files.unlink(world.log.path)  # and a power cut takes both names


def seal_without(world: World) -> None:
    world.ready()
    world.files.unlink(world.log.path)


def checkpoint(world: World) -> None:
    world.ready()
    world.redo()
    world.journal.sync()
    world.journal.drop()  # the log itself was not synced


def drop_catalog(world: World) -> None:
    world.put("/s/catalog-00000001")
    world.files.sync_dir("/s")
    world.put("/s/catalog-00000002")
    world.files.unlink("/s/catalog-00000001")


def write_sealed(world: World) -> None:
    world.put(world.log.path.replace(".log", ".seg")).write(0, [b"y"])


def above_floor(world: World) -> None:
    world.ready()
    world.files.unlink(world.log.seal(world.files).path)


def above_unsynced_floor(world: World) -> None:
    world.ready()
    path = world.log.seal(world.files).path
    world.inner.failing = True
    with suppress(OSError):
        world.state(ceiling=100, earliest=1)
    world.files.unlink(path)


def delete_topic_unsynced(world: World) -> None:
    world.ready()
    world.log.seal(world.files)
    world.files.rename("/s/topics/00000001", "/s/topics/00000001.deleted")
    world.files.unlink(world.log.path.replace("01/", "01.deleted/").replace(".log", ".seg"))


def write_mapped(world: World) -> None:
    file = world.put("/s/mapped")
    file.map()
    file.write(0, [b"y"])


def cut_mapped(world: World) -> None:
    file = world.put("/s/mapped")
    file.map()
    file.truncate(0)


def close_unsynced(world: World) -> None:
    world.ready()
    world.state(ceiling=1, flags=CLEAN, segment=1, end_position=world.log.end)


def close_untrimmed(world: World) -> None:
    world.ready()
    world.log.sync(world.log.end)
    world.log.file.truncate(world.log.end)
    world.state(ceiling=1, flags=CLEAN, segment=1, end_position=world.log.end)


def close_unnamed(world: World) -> None:
    world.state(ceiling=100)
    world.append()
    world.log.sync(world.log.end)
    world.files._node(world.log.path).named = False  # the state page has synced it by the way
    world.state(ceiling=1, flags=CLEAN, segment=1, end_position=world.log.end)


def both_slots(world: World) -> None:
    world.inner.failing = True
    with suppress(OSError):
        world.state(ceiling=100)
    world.page._turn = 1
    with suppress(OSError):
        world.state(ceiling=200)


def above_ceiling(world: World) -> None:
    world.state(ceiling=1)
    world.append(2)


def above_unsynced_ceiling(world: World) -> None:
    world.state(ceiling=1)
    world.inner.failing = True
    with suppress(OSError):
        world.state(ceiling=100)
    world.append(2)


def false_watermark(world: World) -> None:
    world.ready()
    world.log.synced = world.log.end
    world.append()


def false_journal_watermark(world: World) -> None:
    world.redo()
    world.journal._synced = world.journal._end
    world.redo()


def ack_unsynced(world: World) -> None:
    world.ready()
    world.publish(1)


def ack_synced_before(world: World) -> None:
    world.ready()
    world.log.sync(world.log.end)
    world.append()
    world.publish(2)


def ack_unnamed(world: World) -> None:
    world.state(ceiling=100)
    world.log = world.make(2)
    world.append()
    world.log.sync(world.log.end)
    world.publish(1)


def ack_in_unnamed_folder(world: World) -> None:
    world.files._folders["/s/topics/00000001"] = False
    world.ready()
    world.log.sync(world.log.end)
    world.publish(1)


def ack_unsynced_journal(world: World) -> None:
    world.ready()
    world.redo()
    world.publish(1)


def ack_after_failure(world: World) -> None:
    world.ready()
    world.inner.failing = True
    with suppress(OSError):
        world.log.sync(world.log.end)
    world.inner.failing = False
    world.files.open(world.log.path, "rw").sync()
    world.publish(1)


def retry(world: World) -> None:
    world.ready()
    world.inner.failing = True
    with suppress(OSError):
        world.log.file.sync()
    world.inner.failing = False
    world.log.file.sync()


def name_unsynced_deletions(world: World) -> None:
    world.put(DELETIONS, sync=False)
    world.files.sync_dir(SHARD)
    world.state(ceiling=1, marks=1, marks_end=1)


def name_deletions_synced_before(world: World) -> None:
    world.put(DELETIONS).write(1, [b"y"])
    world.files.sync_dir(SHARD)
    world.state(ceiling=1, marks=1, marks_end=2)


def name_unnamed_deletions(world: World) -> None:
    world.put(DELETIONS)
    world.state(ceiling=1, marks=1, marks_end=1)


def name_deletions_after_failure(world: World) -> None:
    file = world.put(DELETIONS, sync=False)
    world.files.sync_dir(SHARD)
    world.inner.failing = True
    with suppress(OSError):
        file.sync()
    world.inner.failing = False
    world.state(ceiling=1, marks=1, marks_end=1)


def change_deletions(world: World) -> None:
    world.deletions().write(1, [b"y"])


def change_deletions_of_an_unsynced_page(world: World) -> None:
    file = world.put(DELETIONS, b"xx")
    world.files.sync_dir(SHARD)
    world.inner.failing = True
    with suppress(OSError):
        world.state(ceiling=1, marks=1, marks_end=2)
    file.write(1, [b"y"])  # and the page may be on the disk all the same


def cut_deletions(world: World) -> None:
    world.deletions().truncate(1)


def delete_deletions(world: World) -> None:
    world.deletions()
    world.files.unlink(DELETIONS)


def delete_deletions_too_early(world: World) -> None:
    world.deletions()
    world.put(f"{SHARD}/deletions-00000002")
    world.files.sync_dir(SHARD)
    world.inner.failing = True
    with suppress(OSError):
        world.state(ceiling=1, marks=2, marks_end=1)
    world.files.unlink(DELETIONS)


def delete_deletions_from_before(world: World) -> None:
    world.deletions()
    again = Monitor(world.inner)
    StateFile(again, SHARD).load()
    again.unlink(DELETIONS)
    world.files = again


def delete_deletions_of_a_replaced_page(world: World) -> None:
    world.deletions()
    page = bytes(world.inner.files[f"{SHARD}/state"])
    world.state(ceiling=1)
    world.put(f"{SHARD}/state.tmp", page)
    world.state(ceiling=1)
    world.files.rename(f"{SHARD}/state.tmp", f"{SHARD}/state")
    world.files.unlink(DELETIONS)


def moved(world: World, *, sync: bool = True) -> str:
    """A segment that was put into a cold store, perhaps not durably; its stub has its name."""
    world.ready()
    sealed = world.log.seal(world.files)
    whole = bytes(world.inner.files[sealed.path])
    trailer = decode_trailer(whole[-32:])
    assert not isinstance(trailer, str)
    prefix = names.cold_prefix(bytes(16), 1, 0)
    key = names.cold(prefix, base_name(sealed.path), trailer[1], bytes(8))
    for folder in ("/cold", *(f"/cold/{key}"[:at] for at in (38, 47, 52))):
        world.inner.make_dir(folder)
    world.put(f"/cold/{key}", whole, sync=sync)
    world.files.sync_dir(f"/cold/{prefix}".rstrip("/"))
    world.put(f"{sealed.path}.tmp", stub_of(whole, Place("/cold", key, len(whole), trailer[1])))
    world.files.rename(f"{sealed.path}.tmp", sealed.path)
    return f"/cold/{key}"


def move_unsynced(world: World) -> None:
    moved(world, sync=False)


def delete_what_a_stub_names(world: World) -> None:
    world.files.unlink(moved(world))


MISBEHAVIOURS: list[tuple[str, Callable[[World], None]]] = [
    ("rename", rename),
    ("seal", seal_unnamed),
    ("seal", seal_without),
    ("checkpoint", checkpoint),
    ("catalog", drop_catalog),
    ("immutable", write_sealed),
    ("floor", above_floor),
    ("floor", above_unsynced_floor),
    ("floor", delete_topic_unsynced),
    ("immutable", write_mapped),
    ("immutable", cut_mapped),
    ("state", close_unsynced),
    ("state", close_untrimmed),
    ("state", close_unnamed),
    ("state", both_slots),
    ("deletions", name_unsynced_deletions),
    ("deletions", name_deletions_synced_before),
    ("deletions", name_unnamed_deletions),
    ("deletions", name_deletions_after_failure),
    ("deletions", change_deletions),
    ("deletions", change_deletions_of_an_unsynced_page),
    ("deletions", cut_deletions),
    ("deletions", delete_deletions),
    ("deletions", delete_deletions_too_early),
    ("deletions", delete_deletions_from_before),
    ("deletions", delete_deletions_of_a_replaced_page),
    ("ceiling", above_ceiling),
    ("ceiling", above_unsynced_ceiling),
    ("watermark", false_watermark),
    ("watermark", false_journal_watermark),
    ("ack", ack_unsynced),
    ("ack", ack_synced_before),
    ("ack", ack_unnamed),
    ("ack", ack_in_unnamed_folder),
    ("ack", ack_unsynced_journal),
    ("ack", ack_after_failure),
    ("moved", move_unsynced),
    ("moved", delete_what_a_stub_names),
    ("retry", retry),
]


@pytest.mark.parametrize(
    ("rule", "act"), MISBEHAVIOURS, ids=[act.__name__ for _, act in MISBEHAVIOURS]
)
def test_a_rule_trips(rule: str, act: Callable[[World], None]) -> None:
    world = World()
    act(world)
    assert {line.split(":")[0] for line in world.files.violations} == {rule}
    with pytest.raises(AssertionError, match=rule):
        world.files.check()


def test_every_rule_is_tried() -> None:
    import esker.testing.monitor as module

    assert module.__doc__ is not None
    table = module.__doc__.split("a violation is\n")[1].split("\n\n")[0].splitlines()
    rules = {line.split()[0] for line in table if line[4:5].strip()}
    assert rules == {rule for rule, _ in MISBEHAVIOURS}


def test_the_right_order_trips_nothing() -> None:
    world = World("fsync")
    world.ready()
    world.redo()
    world.journal.sync()
    world.publish(1)  # by the journal
    world.append()
    world.log.sync(world.log.end)
    world.publish(2)  # by itself
    world.journal.drop()
    world.log.mark()
    world.log.sync(world.log.end)
    world.state(ceiling=2, flags=CLEAN, segment=1, end_position=world.log.end)
    path = world.log.seal(world.files).path
    world.state(ceiling=2, earliest=2)
    world.files.unlink(path)
    file = world.deletions()
    file.write(2, [b"more"])
    file.truncate(2)
    file.write(2, [b"else"])
    file.sync()
    world.state(ceiling=2, marks=1, marks_end=6)
    world.put(f"{SHARD}/deletions-00000002")
    world.files.sync_dir(SHARD)
    world.state(ceiling=2, marks=2, marks_end=1)
    world.files.unlink(DELETIONS)
    world.files.check()


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_engine_trips_nothing(seed: int) -> None:
    driver = Driver(SimulatedDisk(seed), seed=seed)
    monitor = Monitor(driver.disk)
    driver.disk = monitor  # type: ignore[assignment]
    driver.open()
    driver.run(mixed(random.Random(seed), 40, wide=seed % 2 == 1))
    driver.close()
    monitor.check()
    assert monitor._told  # it did look


@pytest.mark.parametrize("seed", range(8))
def test_an_engine_that_deletes_trips_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "REWRITE_BYTES", 1500)  # so that files are replaced
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    monitor = Monitor(disk)
    deleted = files = 0
    for _ in range(3):
        store = esker.open("/s", files=monitor, **OPTIONS)
        topic = store.create("t", durability="fsync", exist_ok=True)
        for number in range(12):
            topic.append(b"x", tag=f"{number}", wait=True)
            call = chance.choice(["write", "sync", "sync_dir", "unlink"])
            place = chance.choice(["deletions", "state", ""])
            if chance.random() < 0.4:
                disk.fail(Fault(errno.EIO, calls=frozenset({call}), inside=place))
            with suppress(esker.EskerError):
                deleted += topic.delete(tag=f"{number}")
            disk.heal()
            files = max(files, topic._shards[0]._marks.number)
        with suppress(esker.EskerError):
            store.close()
    monitor.check()
    assert deleted > 10
    assert files > 1


def without_sync(file: MarksFile, *args: Any) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MonitoredFile, "sync", lambda _: None)
        return APPEND(file, *args)


def without_name(file: MarksFile, *args: Any) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Monitor, "sync_dir", lambda *_: None)
        return APPEND(file, *args)


def from_its_start(file: MarksFile, *args: Any) -> tuple[int, int]:
    file.end = min(file.end, 64)
    return APPEND(file, *args)


def swept_at_once(file: MarksFile, *args: Any) -> tuple[int, int]:
    file.spent = True
    number, end = APPEND(file, *args)
    before, file.number = file.number, number
    file.sweep()
    file.number = before
    return number, end


APPEND = MarksFile.append


@pytest.mark.parametrize("append", [without_sync, without_name, from_its_start, swept_at_once])
def test_a_broken_deletion_trips_it(append: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarksFile, "append", append)
    monitor = Monitor(SimulatedDisk(1))
    with esker.open("/s", files=monitor, **OPTIONS) as store:
        topic = store.create("t", durability="fsync")
        for tag in "ab":
            topic.append(b"x", tag=tag, wait=True)
            topic.delete(tag=tag)
    assert {line.split(":")[0] for line in monitor.violations} == {"deletions"}


def keep_ceiling(page: Page, end: int) -> None:
    page.ceiling = page.enough = end + 1000


def skip_sync(_shard: Shard, log: LogSegment, end: int) -> None:
    log.synced = max(log.synced, end)


@pytest.mark.parametrize(
    ("rule", "owner", "name", "replacement"),
    [
        ("ack", Shard, "sync_directly", skip_sync),
        ("ack", Journal, "sync", lambda journal: None),
        ("ceiling", Page, "reserve", keep_ceiling),
        ("checkpoint", Shard, "sync_directly", skip_sync),
        ("state", Shard, "sync_directly", skip_sync),
    ],
)
def test_a_broken_engine_trips_it(
    rule: str, owner: type, name: str, replacement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, replacement)
    monitor = Monitor(SimulatedDisk(1))
    store = esker.open("/s", files=monitor, **OPTIONS)
    topics = [store.create(f"t{number}", durability="disk") for number in range(12)]
    for topic in topics:
        topic.append(b"one", wait=True)
    store.sync()  # so many at once go through a journal
    topics[0].append(b"two", wait=True)
    topics[0].sync()
    store.close()
    assert any(line.startswith(rule) for line in monitor.violations)


def test_sealing_is_tried_again_without_writing_to_the_sealed_file() -> None:
    """Found by the monitor: a failed sync of the directory made the footer be written twice."""
    disk = SimulatedDisk(1)
    monitor = Monitor(disk)
    store = esker.open("/s", files=monitor, **OPTIONS)
    topic = store.create("t", durability="disk", segment_records=1)
    topic.append_many([b"one"])
    topic.append_many([b"two"])
    store.sync()
    fault = disk.fail(Fault(errno.EIO, calls=frozenset({"sync_dir"})))
    store.tick()
    assert fault.hits == 1
    disk.heal()
    store.tick()
    store.close()
    monitor.check()
