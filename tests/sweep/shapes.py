"""Small stores with every kind of file, as a close, a kill or a power cut leaves them.

A `Shape` is a disk full of bytes and the truth about it: every record that was written, by topic,
shard and offset. Shapes are made on a simulated disk, once, and then live on a `Platter`, a disk in
memory that is cheap to copy and to damage. All of them together have each kind of file that there
is: identity, catalogs, state pages, counters, locks, journals, logs with a synced and an unsynced
part, rolled logs, sealed segments of one frame and of many, compressed and not, with a hole, in a
cold store, files of deletions, and what lies in quarantine.

They are small on purpose. The sweep damages every byte, and what it costs to look at one damage is
what it costs to open and read the store.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import esker
from esker.errors import UnsafePath
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.storage.files import Holder, told
from esker.storage.memory import MemoryFile, MemoryFiles, MemoryLock
from esker.testing import LOST, Fate, Fault, ManualClock, SimulatedDisk
from tests.helpers import abandon

ROOT: Final = "/store"
COLD: Final = "/cold"
OPTIONS: Final[dict[str, Any]] = {
    "background": False, "journals": 1, "journal_bytes": 64 << 10, "sync_interval": "50ms",
}  # fmt: skip
T0: Final = 1_700_000_000_000_000

Shard = tuple[str, int]
Truth = dict[Shard, dict[int, esker.Record]]


# ---- the disk --------------------------------------------------------------------------------


class Platter(MemoryFiles):
    """A disk in memory on which a counters page is a file like any other, and nothing is chance."""

    def __init__(self, files: dict[str, bytearray], dirs: set[str], boot: bytes) -> None:
        super().__init__()
        self.files, self.dirs, self._boot = files, dirs, boot
        self._drawn = 0

    def copy(self) -> Platter:
        files = {name: bytearray(data) for name, data in self.files.items()}
        return Platter(files, set(self.dirs), self._boot)

    def open(self, path: str, mode: Any) -> MemoryFile:
        if path in self.dirs:
            raise told(IsADirectoryError(errno.EISDIR, "Is a directory"), "open", path)
        return super().open(path, mode)

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        if path in self.dirs:
            raise told(IsADirectoryError(errno.EISDIR, "Is a directory"), "map", path)
        known = self.pages.get(path)
        if known is not None:
            return known
        data = self.files.get(path)
        if data is None:
            if not writable:
                raise told(FileNotFoundError(errno.ENOENT, "No such file"), "map", path)
            data = self.files[path] = bytearray(size)
        if len(data) < size:
            if not writable:
                raise told(OSError(errno.EINVAL, "the page is too short"), "map", path)
            data[:] = bytes(size)
        if not writable:
            return memoryview(data).toreadonly()[:size].cast("Q")
        page = self.pages[path] = memoryview(data)[:size].cast("Q")
        return page

    def make_dir(self, path: str) -> None:
        if path in self.files:
            raise UnsafePath(f"cannot use {path}: it is not a directory", path=path)
        super().make_dir(path)

    def list(self, path: str) -> list[str]:
        return sorted(_entries(frozenset(self.files), frozenset(self.dirs)).get(path, ()))

    def lock(self, path: str, note: str, *, wait: bool = False) -> MemoryLock | Holder:
        if path in self.dirs:
            raise told(IsADirectoryError(errno.EISDIR, "Is a directory"), "lock", path)
        self.files.setdefault(path, bytearray())
        assert not (wait and path in self.held), f"nobody is left to release {path}"
        return super().lock(path, note, wait=wait)

    def random(self, size: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(size, "little") if size < 16 else bytes(size - 1) + b"r"

    def boot_id(self) -> bytes:
        return self._boot

    def pid(self) -> int:
        return 4242


@lru_cache(maxsize=256)
def _entries(files: frozenset[str], dirs: frozenset[str]) -> dict[str, set[str]]:
    """The names in every directory: of what lies in it, or somewhere below."""
    found: dict[str, set[str]] = {}
    for name in files | dirs:
        while name != "/":
            above, _, own = name.rpartition("/")
            name = above or "/"
            found.setdefault(name, set()).add(own)
    return found


# ---- the truth about a store -----------------------------------------------------------------


class Frame(NamedTuple):
    """A frame of records, where it lies in the undamaged store."""

    path: str
    position: int
    end: int
    first: int  # offset of its first record
    last: int
    body: bytes  # as stored


class Shape(NamedTuple):
    """A store to damage."""

    name: str
    disk: Platter
    older: Platter  # the same store some time before: where stale sectors come from
    truth: Truth
    gaps: dict[Shard, list[tuple[int, int]]]  # losses that are there without any damage
    frames: dict[Shard, list[Frame]]
    salts: dict[str, int]  # of each segment, by path
    weak: frozenset[str]  # topics of class disk: they go on above a ceiling
    unclosed: bool
    deleted: Truth  # records that were deleted one by one: they must not come back
    pending: frozenset[int]  # offsets whose deletion was interrupted

    def shard_of(self, path: str) -> Shard | None:
        """The shard whose directory a path lies in."""
        return next(
            (shard for shard, folder in self.folders().items() if path.startswith(folder + "/")),
            None,
        )

    def folders(self) -> dict[Shard, str]:
        return _folders(self.disk, tuple(self.truth))

    def stub_of(self, path: str) -> str:
        """The file of the shard that stands for an object in the cold store."""
        key = path.split("/")
        return "/".join([ROOT, names.TOPICS, *key[-3:-1], key[-1].partition(".seg")[0] + ".seg"])


@cache
def _folders(disk: Platter, shards: tuple[Shard, ...]) -> dict[Shard, str]:
    with opened(disk.copy(), "r") as store:
        return {
            (name, number): f"{ROOT}/topics/{names.topic(store[name]._existing().id)}"
            f"/{names.shard(number)}"
            for name, number in shards
        }


def opened(
    disk: Any, mode: Any = "rw", clock: ManualClock | None = None, **more: Any
) -> esker.Store:
    return esker.open(ROOT, mode, files=disk, clock=clock or ManualClock(), **OPTIONS, **more)


def contents(store: esker.Store) -> tuple[Truth, dict[Shard, list[tuple[int, int]]]]:
    """Every record by topic, shard and offset; and the gaps."""
    found: Truth = {}
    gaps: dict[Shard, list[tuple[int, int]]] = {}
    item: Any
    for name in store:
        for shard in range(store[name].shards):
            here = found.setdefault((name, shard), {})
            for item in store[name].read(0, shard=shard, gaps="yield"):
                if isinstance(item, esker.Gap):
                    gaps.setdefault((name, shard), []).append((item.first, item.last))
                else:
                    here[item.offset] = item
    return found, gaps


def _on_platter(disk: SimulatedDisk) -> Platter:
    files = {path: bytearray(data) for path, data in disk.contents().items()}
    return Platter(files, {"/", *disk.folders()}, disk.boot_id())


def _frames(disk: Platter, folders: dict[Shard, str]) -> tuple[dict[Shard, list[Frame]], Any]:
    """The data frames of all segments, and the salts, read with nothing but the format."""
    found: dict[Shard, list[Frame]] = {shard: [] for shard in folders}
    salts: dict[str, int] = {}
    for shard, folder in folders.items():
        for path, data in sorted(disk.files.items()):
            header = segment_format.decode_header(bytes(data[: segment_format.HEADER_SIZE]))
            ours = folder.replace(f"{ROOT}/{names.TOPICS}", f"{COLD}/{_owner(data)}")
            if not path.startswith((folder + "/", ours + "/")) or isinstance(header, str):
                continue
            salts[path] = header.salt
            at = segment_format.HEADER_SIZE
            while isinstance(
                head := frame.decode_header(bytes(data), at, at, header.salt), frame.Header
            ):
                if head.kind == frame.DATA:
                    first = header.base + head.first_row
                    body = bytes(data[at + frame.HEADER_SIZE :][: head.body_size])
                    found[shard].append(
                        Frame(path, at, at + head.size, first, first + head.count - 1, body)
                    )
                at += head.size
    return found, salts


def _owner(data: bytes) -> str:
    """The id of the store that a segment says it is of, as keys in a cold store begin."""
    return bytes(data[16:32]).hex()


def _shape(
    name: str, before: SimulatedDisk, after: SimulatedDisk, wrote: Truth,
    deleted: Truth | None = None, pending: frozenset[int] = frozenset(),
) -> Shape:  # fmt: skip
    """The shape of a disk; `wrote` has what may be there, and the engine may not add to it."""
    disk = _on_platter(after)
    with opened(disk.copy()) as store:
        truth, gaps = contents(store)
        weak = frozenset(n for n in store if store[n].options.durability == "disk")
    for shard, records in truth.items():
        assert records == {o: r for o, r in wrote[shard].items() if o in records}, shard
        assert not records.keys() & (deleted or {}).get(shard, {}).keys(), shard
    bare = Shape(
        name, disk, _on_platter(before), truth, gaps, {}, {}, weak, False, deleted or {}, pending
    )
    frames, salts = _frames(disk, bare.folders())
    with opened(disk.copy(), "r") as store:
        unclosed = not store.recovery.clean  # also where only a journal is left
    return bare._replace(frames=frames, salts=salts, unclosed=unclosed)


def _rich(batch: int, rows: int, size: int = 20) -> list[esker.Record]:
    """Records with every column."""
    return [
        esker.Record(
            b"event %d.%d " % (batch, row) + b"v" * (row * 7 % size),
            key=b"k%d" % row if row % 2 else None,
            tag=f"tag-{row}" if row % 3 else None,
            node="eu-1",
            headers={"h": b"%d" % row} if row % 4 == 0 else None,
            timestamp=T0 + batch * 100 + row,
        )
        for row in range(rows)
    ]


# ---- the shapes ------------------------------------------------------------------------------


def closed() -> Shape:
    """Closed cleanly, opened again, closed again: merged segments, a log that ends in a MARK."""
    disk = SimulatedDisk(1)
    with opened(disk) as store:
        topic = store.create("t", durability="fsync", segment_bytes=4096, segment_records=24)
        for batch in range(3):
            topic.append_many([b"plain %d.%d " % (batch, row) * 5 for row in range(4)], wait=True)
    before = disk.kill()
    with opened(disk) as store:
        topic = store["t"]
        for batch in range(3, 8):
            topic.append_many([b"plain %d.%d " % (batch, row) * 6 for row in range(6)], wait=True)
        store.tick()
        wrote, _ = contents(store)
    return _shape("closed", before, disk.kill(), wrote)


def rich() -> Shape:
    """Closed cleanly: class disk, compressed, every column, two segments and a log; one evicted."""
    disk = SimulatedDisk(6)
    with opened(disk) as store:
        store.create("none")  # without records, so that there are two catalogs
        topic = store.create(
            "t", durability="disk", segment_records=16, segment_bytes=8192,
            compression="zstd", compress_at="commit", compress_min_bytes=64, cap_records=40,
        )  # fmt: skip
        before = disk.kill()
        for batch in range(7):
            topic.append_many(_rich(batch, 8))
        store.tick()
        wrote, _ = contents(store)
    return _shape("rich", before, disk.kill(), wrote)


def sealed() -> Shape:
    """Closed cleanly with no log left; a segment of many frames, one with a hole, quarantine."""
    disk = SimulatedDisk(2)
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_records=12, segment_bytes=8192)
    for batch in range(3):
        topic.append_many(_rich(batch, 4), wait=True)
    before = disk.kill()
    topic.append_many(_rich(3, 4), wait=True)  # rolls; the kill leaves two logs
    folder = f"{ROOT}/topics/00000001/0000"
    abandon(store)
    disk = disk.kill()
    disk.open(f"{folder}/note.txt", "create").write(0, [b"somebody's"])
    with opened(disk) as store:  # seals the first without merging, and sets the note aside
        topic = store["t"]
        for batch in range(4, 8):
            topic.append_many(_rich(batch, 4), wait=True)
        store.tick()
        wrote, _ = contents(store)
    paths = [path for path in sorted(disk.contents()) if path.endswith((".seg", ".log"))]
    for path in (paths[0], paths[-1]):
        data, second = disk.contents()[path], segment_format.HEADER_SIZE
        header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
        assert not isinstance(header, str)
        for _ in range(2):  # CONFIG, DATA
            head = frame.decode_header(data, second, second, header.salt)
            assert isinstance(head, frame.Header)
            second += head.size
        disk.poke(path, second + 70, b"damaged")
    esker.repair(ROOT, files=disk)
    return _shape("sealed", before, disk.kill(), wrote)


def _weak(disk: SimulatedDisk) -> tuple[SimulatedDisk, esker.Store, Truth]:
    """Class disk at work: a sealed segment, a rolled log, a log half synced."""
    clock = ManualClock()
    store = opened(disk, clock=clock)
    topic = store.create("t", durability="disk", segment_records=8, segment_bytes=8192)
    topic.append_many([b"first %d " % row * 8 for row in range(8)])
    topic.append_many([b"second %d " % row * 6 for row in range(5)])
    topic.sync()
    store.tick()  # seals the first
    topic.append_many([b"second %d " % row * 6 for row in range(5, 8)])
    before = disk.kill()
    for batch in range(3):
        topic.append_many([b"third %d.%d " % (batch, row) * 5 for row in range(2)])
    topic.sync()
    for batch in range(2):  # all of the first two segments is proven; these are not synced
        topic.append_many([b"fourth %d.%d " % (batch, row) * 5 for row in range(1)])
    wrote, _ = contents(store)
    return before, store, wrote


def killed() -> Shape:
    """The process was killed: all is in the page cache, nothing was closed."""
    disk = SimulatedDisk(3)
    before, store, wrote = _weak(disk)
    after = disk.kill()
    abandon(store)
    return _shape("killed", before, after, wrote)


def cut_off() -> Shape:
    """The power went: what was not synced is there in part, and the machine was started again."""
    disk = SimulatedDisk(3)
    before, store, wrote = _weak(disk)
    after = disk.crash(Fate(11))
    abandon(store)
    return _shape("cut off", before, after, wrote)


def _journalled(disk: SimulatedDisk) -> tuple[SimulatedDisk, esker.Store, Truth]:
    """Topics of class fsync, committed together: their bytes are durable in the journal."""
    store = opened(disk)
    topics = [store.create(f"j{n}", durability="fsync", segment_bytes=4096) for n in range(2)]
    with patch("esker.engine.committer.JOURNAL_DIRTY_SHARDS", 1):  # two shards are many here
        for topic in topics:
            topic.append_many([b"first of %s " % topic.name.encode() * 4], wait=False)
        store.sync()
        before = disk.kill()
        for batch in range(2):
            for topic in topics:
                topic.append_many([b"more of %s %d " % (topic.name.encode(), batch) * 3] * 2)
            store.sync()
    wrote, _ = contents(store)
    return before, store, wrote


def journalled() -> Shape:
    """Killed with a journal in use: the logs have everything too."""
    disk = SimulatedDisk(4)
    before, store, wrote = _journalled(disk)
    after = disk.kill()
    abandon(store)
    return _shape("journalled", before, after, wrote)


def redone() -> Shape:
    """Power cut with a journal in use: it has bytes that the logs lack."""
    disk = SimulatedDisk(4)
    before, store, wrote = _journalled(disk)
    after = disk.crash(LOST)
    abandon(store)
    return _shape("redone", before, after, wrote)


def committed() -> Shape:
    """Killed in class fsync: every record was acknowledged as durable, in a log never closed."""
    disk = SimulatedDisk(5)
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_bytes=4096)
    before = disk.kill()
    for batch in range(9):
        topic.append_many([b"batch %d row %d " % (batch, row) * 5 for row in range(4)], wait=True)
        if batch == 4:
            before = disk.kill()
    store.create("e", durability="ephemeral").append(b"nothing on disk", wait=True)
    wrote, _ = contents(store)
    wrote["e", 0] = {}
    after = disk.kill()
    abandon(store)
    return _shape("committed", before, after, wrote)


def _with_tags(topic: esker.Topic, batches: range) -> None:
    for batch in batches:
        topic.append_many(_rich(batch, 4), wait=True)


def _marked(store: esker.Store, *tags: str) -> Truth:
    """The records with these tags."""
    return {
        shard: {offset: record for offset, record in records.items() if record.tag in tags}
        for shard, records in contents(store)[0].items()
    }


def deleted() -> Shape:
    """Closed cleanly, behind two deletions by tag: a file of two frames."""
    disk = SimulatedDisk(8)
    with opened(disk) as store:
        topic = store.create("t", durability="fsync", segment_bytes=4096)
        _with_tags(topic, range(3))
        wrote, gone = contents(store)[0], _marked(store, "tag-1", "tag-2")
        assert topic.delete(tag="tag-1") == 3
        before = disk.kill()
        assert topic.delete(tag_prefix="tag-2") == 3
    return _shape("deleted", before, disk.kill(), wrote, gone)


def erased() -> Shape:
    """Killed: the first file of deletions had made way for a second one, in which stands a deletion
    that the state page does not tell of, behind two that it does."""
    disk = SimulatedDisk(9)
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_bytes=4096)
    _with_tags(topic, range(2))
    topic.append(b"about to go", tag="last", wait=True)
    wrote, gone = contents(store)[0], _marked(store, "tag-1", "tag-2")
    disk.fail(Fault(errno.EIO, inside="deletions"))
    with suppress(esker.StorageError):
        topic.delete(tag="tag-1")
    disk.heal()
    assert topic.delete(tag="tag-1") == 2
    before = disk.kill()
    assert topic.delete(tag="tag-2") == 2
    dies = patch.object(topic._shards[0].page, "store", side_effect=KeyboardInterrupt)
    with suppress(KeyboardInterrupt), dies:
        topic.delete(tag="last")
    after = disk.kill()
    abandon(store)
    return _shape("erased", before, after, wrote, gone, frozenset({8}))


def moved() -> Shape:
    """Closed cleanly: two segments in a cold store, one that was brought back, and a log."""
    disk = SimulatedDisk(10)
    with opened(disk, cold=COLD) as store:
        topic = store.create("t", durability="fsync", segment_records=8, segment_bytes=8192)
        for batch in range(4):
            topic.append_many([b"moved %d.%d " % (batch, row) * 17 for row in range(8)], wait=True)
        store.tick()
        before = disk.kill()
        assert topic.tier("cold").segments == 3
        assert topic.tier("hot", before=8).segments == 1
        wrote, _ = contents(store)
    return _shape("moved", before, disk.kill(), wrote)


MAKERS: Final[dict[str, Callable[[], Shape]]] = {
    "closed": closed, "rich": rich, "sealed": sealed, "killed": killed, "cut off": cut_off,
    "journalled": journalled, "redone": redone, "committed": committed, "deleted": deleted,
    "erased": erased, "moved": moved,
}  # fmt: skip


@cache
def shape(name: str) -> Shape:
    return MAKERS[name]()
