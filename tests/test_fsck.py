"""fsck itself: it reads what the engine reads, and finds every kind of damage it claims to find."""

from __future__ import annotations

import ast
import fnmatch
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import esker
from esker.engine import attach
from esker.format.offsets import home_of
from esker.format.tags import encode as encode_tags
from esker.storage.tags import index_of
from esker.testing import Fate, ManualClock, SimulatedDisk
from tests import fsck, fsck_bytes
from tests.fsck_bytes import (
    CATALOG,
    CONFIG,
    DATA,
    FOOTER,
    FRAME,
    MARK,
    PLACE,
    SEGMENT,
    STATE,
    SUMMARY,
    TRAILER,
    xxh3,
)
from tests.golden import make
from tests.helpers import FixedFiles, HandClock

Files = dict[str, bytes]


def engine_view(store: esker.Store) -> dict[tuple[str, int], list[Any]]:
    """What the engine reads, in the words of fsck."""
    found: dict[tuple[str, int], list[Any]] = {}
    for name in store:
        topic = store[name]
        for shard in range(topic.shards):
            found[name, shard] = [
                fsck.Gap(item.first, item.last, item.reason)
                if isinstance(item, esker.Gap)
                else fsck.Record(
                    item.offset, item.timestamp, bytes(item.value), item.key, item.tag, item.node,
                    tuple((item.headers or {}).items()),
                )
                for item in topic.read(0, shard=shard, gaps="yield")
            ]  # fmt: skip
    return found


def fsck_view(found: fsck.Judge) -> dict[tuple[str, int], list[Any]]:
    """Records and gaps in the order of their offsets."""
    return {
        key: sorted([*shard.records, *shard.gaps], key=lambda item: item[0])
        for key, shard in found.shards.items()
    }


def same(mine: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    """Shards without records may be missing on either side."""
    for key in {*mine, *theirs}:
        assert mine.get(key, []) == theirs.get(key, []), key


# ---- golden files ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["closed", "erased", "mended", "killed"])
def test_golden_files_hold_what_they_say(name: str) -> None:
    found = fsck.judge(make.VERSION / name, clean=name != "killed")
    assert found.problems == []
    told: dict[tuple[str, int], list[Any]] = {}
    for topic, shard, *rest in json.loads((make.VERSION / f"{name}.json").read_text("utf-8")):
        told.setdefault((topic, shard), []).append(rest)
    written: dict[tuple[str, int], list[Any]] = {}
    for key, items in fsck_view(found).items():
        for item in items:
            if isinstance(item, fsck.Gap):
                written.setdefault(key, []).append(["gap", item.first, item.last, item.reason])
            else:
                written.setdefault(key, []).append(as_golden(item))
    told.pop(("ephemeral", 0), None)
    assert written == told


def as_golden(record: Any) -> list[Any]:
    offset, timestamp, value, key, tag, node, headers = record
    pairs = {name: text.hex() for name, text in headers} if headers else None
    shown = value.hex() if len(value) < 1000 else f"xxh3 {xxh3(value):016x}"
    return [offset, timestamp, shown, None if key is None else key.hex(), tag, node, pairs]


# ---- whatever the engine writes --------------------------------------------------------------

texts = st.none() | st.text("ab/é", max_size=3)
records = st.builds(
    esker.Record,
    st.binary(max_size=40) | st.integers(0, 2000).map(bytes),
    key=st.none() | st.binary(max_size=5),
    tag=texts,
    node=texts,
    headers=st.none() | st.dictionaries(st.text("xy", max_size=2), st.binary(max_size=3)),
    timestamp=st.none() | st.integers(-(10**15), 2 * 10**15),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("many"), st.integers(0, 2), st.lists(records, min_size=1, max_size=6)),
    st.tuples(st.just("one"), st.integers(0, 2), records),
    st.tuples(st.just("forget"), st.integers(0, 2), st.integers(0, 12)),
    st.tuples(st.just("erase"), st.integers(0, 2), st.sampled_from(["a", "b", "ab", "é"])),
    st.sampled_from([("sync",), ("tick",), ("tick",), ("reopen",), ("kill",), ("drop",)]),
    st.tuples(st.just("power"), st.integers(0, 2**20)),
    st.tuples(st.sampled_from(["cold", "cold", "hot"]), st.integers(0, 2)),
)
options = st.fixed_dictionaries(
    {
        "durability": st.sampled_from(["fsync", "disk", "memory", "ephemeral"]),
        "shards": st.sampled_from([1, 1, 3, 6]),
        "compression": st.sampled_from(["none", "zstd"]),
        "compress_at": st.sampled_from(["seal", "commit"]),
        "segment_records": st.sampled_from([0, 1, 5, 20]),
    }
)


class Life:
    """A store on a disk that dies now and then. fsck looks at everything that is left."""

    def __init__(self, topics: list[dict[str, Any]]) -> None:
        self.disk, self.clock = SimulatedDisk(1), ManualClock()
        self.cut = False  # whether power was ever lost
        self.open()
        for number, kind in enumerate(topics):
            self.store.create(f"t{number}", compress_min_bytes=64, **kind)

    def open(self) -> None:
        self.store = esker.open(
            "/s", files=self.disk, clock=self.clock, background=False, journals=1,
            journal_bytes="64KiB", cold="/cold",
        )  # fmt: skip

    def run(self, name: str, *rest: Any) -> None:
        if name in ("sync", "tick"):
            self.clock.forward(1.0)
            getattr(self.store, name)()
        elif name == "reopen":
            self.close()
            self.open()
        elif name in ("kill", "power"):
            self.die(*rest)
        elif name == "drop":
            if len(self.store) > 1:
                self.store.delete(list(self.store)[-1])
        elif name in ("cold", "hot"):
            self.topic(rest[0]).tier(name)
        elif name == "erase":
            self.topic(rest[0]).delete(tag_prefix=rest[1])
        elif name == "forget":
            self.topic(rest[0]).delete(rest[1], shard=0)
        else:
            topic = self.topic(rest[0])
            with suppress(esker.BatchTooLarge):
                if name == "one":
                    topic.append_many([rest[1]], wait=True)
                else:
                    topic.append_many(rest[1])

    def topic(self, number: int) -> Any:
        return self.store[list(self.store)[number % len(self.store)]]

    def die(self, seed: int | None = None) -> None:
        self.store._context.forked = True  # such a handle closes without touching the disk
        self.store.close()
        self.disk = self.disk.kill() if seed is None else self.disk.crash(Fate(seed))
        self.cut |= seed is not None
        before = fsck.judge(self.disk)
        assert before.problems == []
        self.open()
        told = engine_view(self.store)
        records = {
            key: [item for item in items if isinstance(item, fsck.Record)]
            for key, items in told.items()
        }
        same({key: shard.records for key, shard in before.shards.items()}, records)

    def close(self) -> None:
        self.store.close()
        mine = fsck_view(fsck.judge_clean(self.disk, pages=not self.cut))
        with esker.open("/s", files=self.disk, mode="r", background=False) as store:
            told = engine_view(store)
            for name in store:
                if store[name].options.durability == "ephemeral":
                    told = {key: items for key, items in told.items() if key[0] != name}
        same(mine, told)


@settings(max_examples=80)
@given(topics=st.lists(options, min_size=1, max_size=3), plan=st.lists(steps, max_size=12))
def test_it_reads_what_the_engine_reads(topics: list[Any], plan: list[Any]) -> None:
    life = Life(topics)
    for step in plan:
        life.run(*step)
    life.close()


@pytest.mark.parametrize("death", [("kill",), ("power", 1), ("power", 2), ("power", 3)])
def test_it_cuts_where_the_engine_cuts_a_batch_of_several_frames(death: tuple[Any, ...]) -> None:
    life = Life([{"durability": "disk"}])
    batch = [bytes([number]) * 600_000 for number in range(3)]
    for step in (("many", 0, batch), ("sync",), ("many", 0, batch), death, ("many", 0, batch)):
        life.run(*step)
    life.close()


def test_it_reads_around_a_hole(path: Path) -> None:
    sealed = next(path.rglob("*.seg"))
    data = bytearray(sealed.read_bytes())
    found = fsck_bytes.segment(bytes(data))
    data[found.frames[1].position + 70] ^= 1
    sealed.write_bytes(data)
    assert [problem.what for problem in fsck.judge(path, clean=True).problems] == [
        "frame body checksum", "hash of the file",
    ]  # fmt: skip
    esker.repair(path)
    found = fsck.judge_clean(path)
    with esker.open(path, mode="r") as store:
        same(fsck_view(found), engine_view(store))
    assert found.shards["t", 0].gaps == [fsck.Gap(0, 29, "corrupt")]


# ---- every check -----------------------------------------------------------------------------


class Patient:
    """The files of a healthy store, and ways to make them ill without breaking more than meant."""

    def __init__(self, files: Files) -> None:
        self.files = dict(files)

    def path(self, pattern: str) -> str:
        (found,) = (path for path in self.files if fnmatch.fnmatch(path, pattern))
        return found

    def put(self, pattern: str, at: int, data: bytes) -> None:
        path = self.path(pattern)
        old = self.files[path]
        self.files[path] = old[:at] + data + old[at + len(data) :]

    def flip(self, pattern: str, at: int) -> None:
        old = self.files[self.path(pattern)]
        self.put(pattern, at % len(old), bytes([old[at] ^ 1]))

    def cut(self, pattern: str, size: int) -> None:
        self.files[self.path(pattern)] = self.files[self.path(pattern)][:size]

    def rename(self, pattern: str, old: str, new: str) -> None:
        path = self.path(pattern)
        self.files[path.replace(old, new)] = self.files.pop(path)

    def _changed(
        self, layout: Any, pattern: str, at: int, fields: dict[str, Any], seed: int
    ) -> None:
        """Change fields and make the checksum in the last eight bytes right again."""
        there = layout.at(self.files[self.path(pattern)], at)
        packed = layout.struct.pack(*there._replace(**fields))[:-8]
        self.put(pattern, at, packed + xxh3(packed, seed).to_bytes(8, "little"))

    def identity(self, **fields: Any) -> None:
        self._changed(fsck_bytes.IDENTITY, "esker.store", 0, fields, 0)

    def catalog(self, edit: Callable[[Any], None] | None = None, **fields: Any) -> None:
        newest = max(path for path in self.files if path.startswith("catalog-"))
        if edit:
            told = json.loads(self.files[newest][64:])
            edit(told)
            body = json.dumps(told).encode()
            self.files[newest] = self.files[newest][:64] + body
            fields |= {"size": len(body), "body": xxh3(body)}
        self._changed(fsck_bytes.CATALOG, newest, 0, fields, 0)

    def state(self, at: int = 4096, **fields: Any) -> None:
        self._changed(STATE, T + "state", at, fields, 0)

    def once(self, body: Any = None, **fields: Any) -> None:
        """Change the table of keys, and make its checksums right again."""
        if body is not None:
            data, path = msgspec.msgpack.encode(body), self.path("topics/*/once")
            self.files[path] = self.files[path][:64] + data
            fields |= {"size": len(data), "body": xxh3(data)}
        self._changed(fsck_bytes.ONCE, "topics/*/once", 0, fields, 0)

    def header(self, pattern: str, **fields: Any) -> None:
        self._changed(SEGMENT, pattern, 0, fields, 0)
        self.trailer(pattern)

    def frame(self, pattern: str, which: int, content: bytes | None = None, **fields: Any) -> None:
        """Change the last frame of a kind."""
        data = self.files[self.path(pattern)]
        found = fsck_bytes.segment(data)
        at = [each.position for each in found.frames if each.head.kind == which][-1]
        salt = found.header.salt
        if content is not None:
            self.put(pattern, at + 64, content)
            fields["body"] = xxh3(content, salt)
        self._changed(FRAME, pattern, at, fields, (salt + at) % 2**64)
        self.trailer(pattern)

    def body(self, pattern: str, kind: int = DATA) -> bytes:
        data = self.files[self.path(pattern)]
        at, head = [
            (each.position, each.head)
            for each in fsck_bytes.segment(data).frames
            if each.head.kind == kind
        ][-1]
        return data[at + 64 : at + 64 + head.size]

    def columns(self, at: int, data: bytes) -> None:
        """Change the body of the frame with all columns."""
        body = self.body(ALL)
        self.frame(ALL, DATA, body[:at] + data + body[at + len(data) :])

    def footer(self, at: int = 0, data: bytes = b"", **fields: Any) -> None:
        body = self.body(SEG, FOOTER)
        body = body[:at] + data + body[at + len(data) :]
        told = SUMMARY.at(body)._replace(**fields)
        self.frame(SEG, FOOTER, SUMMARY.struct.pack(*told) + body[64:])

    def trailer(self, pattern: str, **fields: Any) -> None:
        data = self.files[self.path(pattern)]
        if self.path(pattern).endswith(".seg"):
            fields = {"whole": xxh3(data[:-32]), **fields}
            self._changed(TRAILER, pattern, len(data) - 32, fields, 0)

    def place(self, old: bytes, new: bytes) -> None:
        """Change what a stub says of where its segment lies."""
        body = self.body(STUB, PLACE)
        assert len(old) == len(new)
        assert body.count(old) == 1
        self.frame(STUB, PLACE, body.replace(old, new))

    def stub(self, **fields: Any) -> None:
        """Change the summary in the footer of a stub."""
        body = self.body(STUB, FOOTER)
        told = SUMMARY.at(body)._replace(**fields)
        self.frame(STUB, FOOTER, SUMMARY.struct.pack(*told) + body[64:])

    def twice(self) -> None:
        """A stub whose place is there a second time."""
        data = self.files[self.path(STUB)]
        found = fsck_bytes.segment(data)
        salt, place, footer = found.header.salt, *found.frames[-2:]
        made = data[: place.end]
        for each in (place, footer):
            head = each.head._replace(synced=len(made))
            packed = FRAME.struct.pack(*head)[:-8]
            made += packed + xxh3(packed, (salt + len(made)) % 2**64).to_bytes(8, "little")
            made += data[each.position + 64 : each.end]
        self.files[self.path(STUB)] = made + data[-32:]
        self.trailer(STUB, footer=len(made) - (footer.end - footer.position))

    def counter(self, word: int, value: int) -> None:
        self.put(T + "counters", word * 8, value.to_bytes(8, "little"))

    def batch(self, **fields: Any) -> None:
        """Change the only ticket of a commit."""
        data = self.files[self.path(COMMIT)]
        told = json.loads(data[64:])
        told["tickets"][0].update(fields)
        body = json.dumps(told).encode()
        self.files[self.path(COMMIT)] = data[:64] + body
        self._changed(fsck_bytes.CATALOG, COMMIT, 0, {"size": len(body), "body": xxh3(body)}, 0)

    def entry(self, **fields: Any) -> None:
        """Change the last entry of the journal."""
        data = self.files[self.path(JOURNAL)]
        header, entries, _, _ = fsck_bytes.journal(data)
        at = entries[-1][0]
        self._changed(fsck_bytes.ENTRY, JOURNAL, at, fields, (header.salt + at) % 2**64)

    def deletion(self, which: int, content: bytes | None = None, **fields: Any) -> None:
        """Change a frame of the file of deletions."""
        data = self.files[self.path(ERASED_BY)]
        salt, at = fsck_bytes.DELETIONS.at(data).salt, 64
        for _ in range(which):
            at += 64 + fsck_bytes.padded(FRAME.at(data, at).size)
        if content is not None:
            self.put(ERASED_BY, at + 64, content)
            fields["body"] = xxh3(content, salt)
        self._changed(FRAME, ERASED_BY, at, fields, (salt + at) % 2**64)

    def deletions(self, **fields: Any) -> None:
        self._changed(fsck_bytes.DELETIONS, ERASED_BY, 0, fields, 0)


T = "topics/00000001/0000/"  # a merged segment, one sealed in place, a log
MERGED, SEG, LOG = T + "00000001-*.seg", T + "00000002-*.seg", T + "00000003-*.log"
ALL = "topics/00000002/0000/00000001-*.log"  # one frame with two records and all columns
PACKED = "topics/00000003/0000/00000001-*.log"
EPHEMERAL = "topics/00000004/0000/"
JOURNAL = "journal/*.journal"
ERASED_BY = T + "deletions-*"
COMMIT, STAGED = "staging/*.commit", T + "*.staged"
TORN = "topics/00000002/0000/00000001-*.log"  # in the store that was killed


def healthy() -> Files:
    """A store that was closed, with every kind of file."""
    files, clock = FixedFiles(), HandClock()
    with esker.open(
        "/s", files=files, clock=clock, background=False, journals=1, journal_bytes="64KiB"
    ) as store:
        topic = store.create("t", segment_records=3)
        for number in range(3):
            topic.append(b"%d" % number, wait=True)
            clock.forward(1.0)
        topic.append_many([b"three", b"four", b"five"])
        topic.append(b"six", wait=True)
        store.create("all", durability="fsync").append_many(
            [
                esker.Record(b"hello", key=b"key", node="eu-1", headers={"h": b"v"},
                             timestamp=clock.now_us() + 5),
                esker.Record(b"world!", tag="t1"),
            ]
        )  # fmt: skip
        packed = store.create(
            "packed", compression="zstd", compress_at="commit", compress_min_bytes=64
        )
        packed.append_many([bytes(500)])
        store.create("ephemeral", durability="ephemeral").append(b"gone", wait=True)
        store.tick()
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def left() -> Files:
    """A store that was killed, with a journal."""
    return fsck.in_directory(str(make.VERSION / "killed"))


def committed() -> Files:
    """A store that was killed between the commit of a batch and its attachment."""
    files = FixedFiles()
    store = esker.open("/s", files=files, clock=HandClock(), background=False)
    store.create("t")
    with store.stage("t") as staged:
        staged.append_many([b"one", b"two"])
    assert attach.commit(store._context, "nightly", 7, staged.tickets)
    store.close()
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def erased() -> Files:
    """A store that was closed, in which single records were deleted: a plain and a packed frame."""
    files = FixedFiles()
    with esker.open("/s", files=files, clock=HandClock(), background=False) as store:
        topic = store.create("t", durability="fsync")
        tags = {1: "a", 3: "b", 4998: "b"}
        topic.append_many([esker.Record(b"%d" % n, tag=tags.get(n)) for n in range(5000)])
        topic.sync()
        assert topic.delete(tag="a") + topic.delete(tag="b") == 3
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def moved() -> Files:
    """A closed store of two segments in a cold store, and a log."""
    files = FixedFiles()
    how: Any = {"files": files, "clock": HandClock(), "background": False, "cold": "/cold"}
    with esker.open("/s", **how) as store:
        topic = store.create("t", segment_records=4)
        for first in (0, 4, 8):
            topic.append_many([b"%d " % n * 100 for n in range(first, first + 4)])
        store.tick()
        assert store.tier("t", "cold").segments == 2
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def grouped() -> Files:
    """A closed store with a group that has acked some of it."""
    files = FixedFiles()
    with esker.open("/s", files=files, clock=HandClock(), background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append_many([b"%d" % n for n in range(10)], wait=True)
        with topic.group("g") as group:
            for batch in group.poll():
                batch.ack(upto=6)
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def kept() -> Files:
    """A closed store with a key, and with a producer."""
    files = FixedFiles()
    with esker.open("/s", files=files, clock=HandClock(), background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append_many([b"a", b"b"], idempotency_key=b"k")
        topic.producer("p").append(b"c")
        topic.append(b"d", idempotency_key=b"l")
    contents = {**files.files, **files.pages}
    return {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}


def routed() -> Files:
    """The golden store with routes."""
    root = make.VERSION / "routed"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


HEALTHY, LEFT, COMMITTED, ERASED = healthy(), left(), committed(), erased()
GROUPED, MOVED, KEPT, ROUTED = grouped(), moved(), kept(), routed()
STUB, OBJECT = "topics/*/00000002-*.seg", "/cold/*/00000002-*.seg-*"
Damage = Callable[[Patient], Any]


def both(*damages: Damage) -> Damage:
    return lambda patient: [damage(patient) for damage in damages]


def i32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def base(offset: int) -> str:
    return f"{offset:020d}"


def _topic(**fields: Any) -> Damage:
    return lambda p: p.catalog(lambda told: told["topics"][-1].update(fields))


CLEAN: list[tuple[str, Damage]] = [
    # names
    ("a stranger", lambda p: p.files.update({T + "note.txt": b"x"})),
    ("a stranger", lambda p: p.rename(LOG, "/00000003-", "/0000000003-")),
    ("a temporary file", lambda p: p.files.update({T + f"00000009-{base(9)}.seg.tmp": b""})),
    ("a lock that does not say", lambda p: p.files.update({T + "lock": b"4711"})),
    ("a journal", lambda p: p.files.update({JOURNAL.replace("*", "00000001"): b""})),
    # identity
    ("the store has no identity", lambda p: p.files.pop("esker.store")),
    ("48 bytes", lambda p: p.cut("esker.store", 47)),
    ("identity checksum", lambda p: p.flip("esker.store", 20)),
    ("identity header", lambda p: p.identity(zeros=1)),
    # catalog
    ("catalog is too short", lambda p: p.cut("catalog-00000004", 63)),
    ("catalog header checksum", lambda p: p.flip("catalog-00000003", 30)),
    ("catalog header", lambda p: p.catalog(more=1)),
    ("catalog body", lambda p: p.flip("catalog-00000004", 100)),
    ("catalog: ", lambda p: p.catalog(lambda told: told.pop("next_id"))),
    ("two topics with one id", _topic(id=1)),
    ("two topics with one id", _topic(name="t")),
    ("next_id is not above", lambda p: p.catalog(lambda told: told.update(next_id=4))),
    ("next_id is not above a deleted", lambda p: p.catalog(
        lambda told: told.update(former=[{"id": 99, "name": "t", "ends": []}]))),
    ("a topic is listed and deleted", lambda p: p.catalog(
        lambda told: told.update(former=[{"id": 1, "name": "t", "ends": []}]))),
    ("topic name", _topic(name="../t")),
    ("options", _topic(options={"shards": 0, "durability": "disk"})),
    ("another generation or store", lambda p: p.catalog(generation=9)),
    ("another generation or store", lambda p: p.catalog(store=bytes(16))),
    ("no catalog lists", lambda p: p.catalog(lambda told: told["topics"].pop(0))),
    ("not the catalog's entry", lambda p: p.catalog(
        lambda told: told["topics"][0].update(name="u"))),
    # segments in their places
    ("segment is shorter", lambda p: p.cut(LOG, 100)),
    ("segment header checksum", lambda p: p.flip(SEG, 64)),
    ("segment header", lambda p: p.header(SEG, zeros=1)),
    ("of another shard", lambda p: p.header(SEG, topic=2)),
    ("of another shard", lambda p: p.header(SEG, store=bytes(16))),
    ("of another shard", lambda p: p.header(SEG, epoch=2)),
    ("under another's name", lambda p: p.rename(LOG, base(6), base(7))),
    ("does not follow", lambda p: p.files.pop(p.path(SEG))),
    ("does not follow", lambda p: p.files.pop(p.path(MERGED))),
    ("does not follow", lambda p: p.header(LOG, previous_end=5)),
    ("previous (", lambda p: p.header(LOG, previous_chain=1)),
    ("previous (", lambda p: p.header(LOG, previous_salt=1)),
    ("previous (", lambda p: p.header(LOG, previous_high=1)),
    ("gap 1 from", lambda p: p.header(LOG, gap=1)),
    ("gap 9 from", both(lambda p: p.header(LOG, base=9, gap=9),
                                  lambda p: p.rename(LOG, base(6), base(9)))),
    ("beside its sealed", lambda p: p.files.update(
        {p.path(SEG).replace(".seg", ".log"): b""})),
    ("not the last segment", lambda p: p.rename(SEG, ".seg", ".log")),
    ("made way for", both(
        lambda p: p.files.update(
            {p.path(LOG).replace(base(6), base(9)): p.files[p.path(LOG)]}),
        lambda p: p.cut(T + f"*{base(6)}.log", 440),
        lambda p: p.header(T + f"*{base(9)}.log", base=9, gap=1))),
    ("behind the end that the next one", lambda p: p.header(SEG, previous_end=2, base=3, gap=1)),
    ("segments of a topic that has none", lambda p: p.files.update(
        {EPHEMERAL + f"00000001-{base(0)}.log": b""})),
    # frames
    ("no frame", lambda p: p.flip(LOG, p.files[p.path(LOG)].index(b"ESKF", 300))),
    ("frame header", lambda p: p.frame(LOG, DATA, version=2)),
    ("frame header", lambda p: p.frame(LOG, DATA, flags=2)),
    ("codec", lambda p: p.frame(LOG, DATA, codec=2)),
    ("codec", lambda p: p.frame(LOG, DATA, raw_size=1)),
    ("ends inside a frame", lambda p: p.frame(LOG, MARK, size=100, raw_size=100)),
    ("frame body checksum", lambda p: p.flip(MERGED, p.files[p.path(MERGED)].rindex(b"2\0"))),
    ("frame body checksum", lambda p: p.frame(LOG, MARK, body=1)),
    ("frame padding", lambda p: p.flip(LOG, 128 + 64 + len(p.body(LOG, CONFIG)))),
    ("durable before it was written", lambda p: p.frame(LOG, DATA, synced=4000)),
    ("columns or flags without data", lambda p: p.frame(LOG, MARK, flags=1)),
    ("CONFIG with rows", lambda p: p.frame(LOG, CONFIG, row=1)),
    ("frame body: ", lambda p: p.frame(LOG, CONFIG, b"x" * len(p.body(LOG, CONFIG)))),
    ("MARK", lambda p: p.frame(LOG, MARK, synced=8)),
    ("HOLE", lambda p: p.frame(LOG, DATA, kind=5, columns=0)),
    ("FOOTER", lambda p: p.frame(LOG, MARK, kind=FOOTER)),
    ("a deletion in a segment", lambda p: p.frame(
        LOG, DATA, kind=6, size=0, raw_size=0, count=0, low=0, high=0, body=0, synced=0)),
    ("row 5 where 0", lambda p: p.frame(LOG, DATA, row=5)),
    ("the only CONFIG", lambda p: p.frame(LOG, CONFIG, kind=MARK, synced=128, size=0, raw_size=0,
                                          body=0)),
    ("an unfinished batch", both(lambda p: p.frame(LOG, DATA, flags=1),
                                           lambda p: p.cut(LOG, -64))),
    ("something else inside a batch", lambda p: p.frame(LOG, DATA, flags=1)),
    ("something behind the last frame", lambda p: p.put(LOG, 2000, b"")
        or p.files.update({p.path(LOG): p.files[p.path(LOG)] + bytes(64)})),
    ("frames that do not count", both(lambda p: p.frame(LOG, DATA, flags=1),
                                                lambda p: p.cut(LOG, -64))),
    # columns
    ("a frame without records", lambda p: p.frame(ALL, DATA, columns=63)),
    ("a frame without records", lambda p: p.frame(ALL, DATA, count=0)),
    ("length or padding", lambda p: p.columns(12, b"\1")),
    ("length or padding", lambda p: p.columns(8, i32(2**30))),
    ("offsets that fall", lambda p: p.columns(4, i32(12))),
    ("offsets that fall", lambda p: p.columns(0, i32(1))),
    ("smallest or largest", lambda p: p.columns(16, bytes(8))),
    ("smallest or largest", lambda p: p.frame(LOG, DATA, high=2**61)),
    ("validity behind", lambda p: p.columns(32, b"\5")),
    ("frame body: 'utf-8'", lambda p: p.columns(88, b"\xff\xff")),
    ("frame body: 'utf-8'", lambda p: p.columns(120, b"\xff")),
    ("frame body: 'utf-8'", lambda p: p.columns(152, b"\xff")),
    ("bytes behind the last", lambda p: p.columns(8, i32(5)) or p.columns(181, bytes(11))),
    ("zstd", lambda p: p.frame(PACKED, DATA, bytes(len(p.body(PACKED))))),
    ("zstd", lambda p: p.frame(PACKED, DATA, raw_size=100)),
    # footers and trailers
    ("no footer", lambda p: p.flip(SEG, p.files[p.path(SEG)].rindex(b"ESKF") + 20)),
    ("no trailer", lambda p: p.cut(SEG, -1)),
    ("trailer", lambda p: p.trailer(SEG, magic=b"ESKEREND"[::-1])),
    ("trailer checksum", lambda p: p.flip(SEG, -1)),
    ("trailer points elsewhere", lambda p: p.trailer(SEG, footer=8)),
    ("hash of the file", lambda p: p.trailer(SEG, whole=8)),
    ("size of the directory", lambda p: p.footer(sections=1)),
    ("size of the directory", lambda p: p.footer(frames=2)),
    ("number of records", lambda p: p.footer(records=2)),
    ("footer: records", both(lambda p: p.footer(records=2),
                                       lambda p: p.frame(SEG, FOOTER, row=2))),
    ("number of frames, or", lambda p: p.footer(end=8)),
    ("smallest time", lambda p: p.footer(low=8)),
    ("largest time", lambda p: p.footer(high=8)),
    ("directory: positions", lambda p: p.footer(64, i32(8))),
    ("directory: rows", lambda p: p.footer(72, i32(8))),
    ("directory: smallest times", lambda p: p.footer(80, i32(8))),
    ("directory: largest times", lambda p: p.footer(88, i32(8))),
    ("footer: chain hash", lambda p: p.footer(chain=8)),
    ("bytes of bodies", lambda p: p.footer(raw=8)),
    # state
    ("4608 bytes", lambda p: p.cut(T + "state", 4607)),
    ("state slot checksum", lambda p: p.flip(T + "state", 20)),
    ("state slot header", lambda p: p.state(flags=3)),
    ("losses", lambda p: p.state(lost=b"x".ljust(352, b"\0"))),
    ("losses", lambda p: p.state(losses=1, lost=pack("<qq", 3, 3).ljust(352, b"\0"))),
    ("losses", lambda p: p.state(losses=1, evicted=3, lost=pack("<qq", 2, 3).ljust(352, b"\0"))),
    ("begins at", lambda p: p.state(earliest=8)),
    ("losses", lambda p: p.state(evicted=1)),
    ("deletions of a state slot", lambda p: p.state(marks=1)),
    ("deletions of a state slot", lambda p: p.state(marks_end=64)),
    ("deletions of a state slot", lambda p: p.state(zeros=b"x")),
    ("not written in turn", lambda p: p.state(generation=4)),
    ("state of another shard", lambda p: p.state(shard=1)),
    ("not closed", lambda p: p.state(flags=0)),
    ("not closed", lambda p: p.files.pop(T + "state")),
    ("offsets up to", lambda p: p.state(ceiling=5)),
    ("the log ends at", lambda p: p.state(position=5)),
    ("the log ends at", lambda p: p.state(segment=2)),
    ("closed at 5, and", lambda p: p.state(end=5)),
    ("with a ceiling of", lambda p: p.state(ceiling=9)),
    # counters
    ("1024 bytes", lambda p: p.cut(T + "counters", 1000)),
    ("counters page header", lambda p: p.counter(7, 1)),
    ("an empty line", lambda p: p.counter(127, 1)),
    ("while it was being written", lambda p: p.counter(104, 3)),
    ("visible 8", lambda p: p.counter(105, 8)),
    ("durable 8", lambda p: p.counter(108, 8)),
]  # fmt: skip

IMAGE: list[tuple[str, Damage]] = [
    ("journal is shorter", lambda p: p.cut(JOURNAL, 63)),
    ("journal header checksum", lambda p: p.flip(JOURNAL, 20)),
    ("journal header", lambda p: p._changed(fsck_bytes.JOURNAL, JOURNAL, 0, {"version": 2}, 0)),
    ("journal of another store", lambda p: p.rename(JOURNAL, "00000001", "00000002")),
    ("no journal entry", lambda p: p.flip(JOURNAL, 100)),
    ("no journal entry", lambda p: p.flip(JOURNAL, 140)),
    ("no journal entry", lambda p: p.entry(synced=2**30)),
    ("lacks what the journal has", lambda p: p.flip("topics/00000001/0001/*.log", 450)),
    ("no frame", lambda p: p.flip(TORN, p.files[p.path(TORN)].index(b"ESKF", 300))),
]


@pytest.mark.parametrize(("what", "damage"), CLEAN, ids=[what for what, _ in CLEAN])
def test_damage_is_found(what: str, damage: Damage) -> None:
    patient = Patient(HEALTHY)
    damage(patient)
    found = fsck.judge(patient.files, clean=True).problems
    assert any(what in problem.what for problem in found), found


BATCH: list[tuple[str, Damage]] = [
    ("commit is too short", lambda p: p.cut(COMMIT, 63)),
    ("commit header checksum", lambda p: p.flip(COMMIT, 20)),
    ("commit header", lambda p: p._changed(fsck_bytes.CATALOG, COMMIT, 0, {"version": 2}, 0)),
    ("commit body", lambda p: p.flip(COMMIT, 70)),
    ("sequence", lambda p: p._changed(fsck_bytes.CATALOG, COMMIT, 0, {"generation": 8}, 0)),
    ("commit of another store", lambda p: p.rename(COMMIT, "7.commit", "8.commit")),
    ("a staged segment of another size", lambda p: p.cut(STAGED, 400)),
    ("a staged segment with other bytes", lambda p: p.flip(STAGED, 300)),
    ("a staged segment with other records", lambda p: p.batch(rows=3)),
]


@pytest.mark.parametrize(("what", "damage"), BATCH, ids=[what for what, _ in BATCH])
def test_damage_to_what_was_committed_is_found(what: str, damage: Damage) -> None:
    patient = Patient(COMMITTED)
    damage(patient)
    found = fsck.judge(patient.files)
    assert any(what in problem.what for problem in found.problems), found.problems


def test_a_batch_that_was_committed_and_not_attached_is_read_too() -> None:
    found = fsck.judge(COMMITTED)
    assert found.problems == []
    assert found.pending == {("t", 0): [b"one", b"two"]}
    said = fsck.judge(COMMITTED, clean=True).problems
    assert [problem.what for problem in said] == ["committed, and not attached"]


MARKED: list[tuple[str, Damage]] = [
    ("the file of deletions is missing", lambda p: p.files.pop(p.path(ERASED_BY))),
    ("the file of deletions is missing", lambda p: p.rename(ERASED_BY, "00000001", "00000002")),
    ("shorter than the page says", lambda p: p.cut(ERASED_BY, -1)),
    ("shorter than the page says", lambda p: p.cut(ERASED_BY, 648)),
    ("file of deletions is shorter than its header", lambda p: p.cut(ERASED_BY, 63)),
    ("deletions header checksum", lambda p: p.flip(ERASED_BY, 20)),
    ("deletions header", lambda p: p.deletions(version=2)),
    ("deletions header", lambda p: p.deletions(zeros=1)),
    ("the deletions of another shard", lambda p: p.deletions(shard=1)),
    ("the deletions of another shard", lambda p: p.deletions(topic=2)),
    ("the deletions of another shard", lambda p: p.deletions(store=bytes(16))),
    ("the deletions of another shard", lambda p: p.deletions(number=2)),
    ("no frame of deletions", lambda p: p.flip(ERASED_BY, 70)),
    ("frame body checksum", lambda p: p.flip(ERASED_BY, 140)),
    ("the file ends inside a frame", lambda p: [p.state(at=at, marks_end=720) for at in (0, 4096)]),
    ("no frame of deletions", lambda p: [p.state(at=at, marks_end=656) for at in (0, 4096)]),
    ("not a deletion", lambda p: p.deletion(0, bytes(520), kind=5)),
    ("columns without data", lambda p: p.deletion(0, columns=1)),
    ("size of the bitmaps", lambda p: p.deletion(0, count=2)),
    ("zstd", lambda p: p.deletion(1, raw_size=520)),
    ("blocks that do not ascend", lambda p: p.deletion(0, pack("<q512x", -1))),
    ("blocks that do not ascend", lambda p: p.deletion(0, pack("<q512x", 2**50))),
    ("DELETION", lambda p: p.deletion(0, row=1)),
    ("DELETION", lambda p: p.deletion(0, synced=64)),
    ("offset 5001 is deleted", lambda p: p.deletion(0, pack("<q113xB398x", 1, 2))),
    ("in the middle of a deletion", lambda p: p.deletion(1, flags=1)),
]


@pytest.mark.parametrize(("what", "damage"), MARKED, ids=[what for what, _ in MARKED])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "left"])
def test_damage_to_what_was_deleted_is_found(what: str, damage: Damage, clean: bool) -> None:
    """It is never what a crash has left: the file was synced before the page said so."""
    patient = Patient(ERASED)
    damage(patient)
    found = fsck.judge(patient.files, clean=clean).problems
    assert any(what in problem.what for problem in found), found


OFFSETS = T + "offsets"
SLOT = 128 + 128 * home_of("g")
CURSORS: list[tuple[str, Damage]] = [
    ("page of offsets does not have", lambda p: p.cut(OFFSETS, -8)),
    ("header of a page of offsets", lambda p: p.flip(OFFSETS, 20)),
    ("header of a page of offsets", lambda p: p.flip(OFFSETS, 100)),
    ("a slot without a whole term", lambda p: p.flip(OFFSETS, SLOT)),
    ("a cell that does not match its checksum", lambda p: p.flip(OFFSETS, SLOT + 80 + 8 * 3)),
]


@pytest.mark.parametrize(("what", "damage"), CURSORS, ids=[what for what, _ in CURSORS])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "left"])
def test_damage_to_the_cursors_of_groups_is_found(what: str, damage: Damage, clean: bool) -> None:
    patient = Patient(GROUPED)
    whole = fsck.judge(patient.files, clean=clean)
    assert (whole.problems, whole.cursors) == ([], {(1, 0, "g"): 7})
    damage(patient)
    found = fsck.judge(patient.files, clean=clean).problems
    assert any(what in problem.what for problem in found), found


ONCE = "topics/*/once"
KEYED: list[tuple[str, Damage]] = [
    ("table of keys is shorter than its header", lambda p: p.cut(ONCE, 63)),
    ("header checksum of a table of keys", lambda p: p.flip(ONCE, 20)),
    ("header of a table of keys", lambda p: p.once(version=2)),
    ("header of a table of keys", lambda p: p.once(zero=1)),
    ("keys checksum", lambda p: p.flip(ONCE, -1)),
    ("keys checksum", lambda p: p.cut(ONCE, -1)),
    ("the keys of another shard", lambda p: p.once(shard=1)),
    ("the keys of another shard", lambda p: p.once(topic=2)),
    ("the keys of another shard", lambda p: p.once(store=bytes(16))),
    ("keys up to 5, and the end is 4", lambda p: p.once(upto=5)),
    ("places of keys", lambda p: p.once([[[b"k", 0, 9]], []])),
    ("places of keys", lambda p: p.once([[], [["p", 0, 2, 0]]])),
    ("keys that do not ascend", lambda p: p.once([[[b"l", 3, 1], [b"k", 0, 2]], []])),
    (" is not at offset 2", lambda p: p.once([[[b"k", 2, 1]], []])),
    (" is not at offset 0", lambda p: p.once([[[b"k", 0, 1]], []])),
    (" is not at offset 2", lambda p: p.once([[], [["p", 1, 2, 1]]])),
]


@pytest.mark.parametrize(("what", "damage"), KEYED, ids=[what for what, _ in KEYED])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "left"])
def test_damage_to_saved_keys_is_found(what: str, damage: Damage, clean: bool) -> None:
    """It is never what a crash has left: the file is replaced as a whole."""
    patient = Patient(KEPT)
    damage(patient)
    found = fsck.judge(patient.files, clean=clean).problems
    assert any(what in problem.what for problem in found), found


ROUTES: list[tuple[str, Damage]] = [
    ("header of the routes", lambda p: p.cut("routes", 63)),
    ("header of the routes", lambda p: p.flip("routes", 20)),
    ("body of the routes", lambda p: p.flip("routes", 70)),
    (
        "routes of another store",
        lambda p: p._changed(CATALOG, "routes", 0, {"store": b"x" * 16}, 0),
    ),
]


@pytest.mark.parametrize(("what", "damage"), ROUTES, ids=[what for what, _ in ROUTES])
def test_damage_to_the_routes_is_found(what: str, damage: Damage) -> None:
    patient = Patient(ROUTED)
    assert fsck.judge(patient.files, clean=True).problems == []
    damage(patient)
    found = fsck.judge(patient.files, clean=True).problems
    assert any(what in problem.what for problem in found), found


COLD: list[tuple[str, Damage]] = [
    ("what was moved is not where the stub says", lambda p: p.files.pop(p.path(OBJECT))),
    ("what was moved is not where the stub says", lambda p: p.place(b"/cold", b"/cord")),
    ("a segment of another size was moved", lambda p: p.place(b'"size":1', b'"size":2')),
    ("another segment was moved", lambda p: p._changed(
        TRAILER, OBJECT, len(p.files[p.path(OBJECT)]) - 32, {"whole": 1}, 0)),
    ("hash of the file", lambda p: p.flip(OBJECT, 700)),
    ("segment header checksum", lambda p: p.flip(OBJECT, 20)),
    ("segment is shorter", lambda p: p.cut(OBJECT, 100)),
    ("no trailer", lambda p: p.cut(OBJECT, -1)),
    ("header of a stub", lambda p: p.header(STUB, created=5)),
    ("CONFIG of a stub", lambda p: p.frame(STUB, CONFIG, p.body(STUB, CONFIG)[:-2] + b" }")),
    ("footer of a stub", lambda p: p.stub(raw=5)),
    ("records of a stub", lambda p: p.frame(STUB, FOOTER, row=9)),
    ("hash of a stub", lambda p: p.trailer(STUB, whole=1)),
    ("trailer of a stub", lambda p: p.trailer(STUB, magic=b"ESKERENE")),
    ("trailer checksum of a stub", lambda p: p.flip(STUB, -1)),
    ("trailer of a stub points elsewhere", lambda p: p.trailer(STUB, footer=128)),
    ("a stub without footer or trailer", lambda p: p.cut(STUB, -1)),
    ("a stub with more than its place", lambda p: p.twice()),
    ("a key that is not made of what it stands for", both(
        lambda p: p.rename(OBJECT, "/0000/", "/0001/"), lambda p: p.place(b"/0000/", b"/0001/"))),
    ("PLACE", lambda p: p.place(b'"root"', b'"boot"')),
    ("PLACE with rows", lambda p: p.frame(STUB, PLACE, row=1)),
    ("a place behind other frames", lambda p: p.twice()),
    ("a place in a log", lambda p: p.rename(STUB, ".seg", ".log")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "damage"), COLD, ids=[what for what, _ in COLD])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "left"])
def test_damage_to_what_was_moved_is_found(what: str, damage: Damage, clean: bool) -> None:
    patient = Patient(MOVED)
    damage(patient)
    found = fsck.judge(patient.files, clean=clean).problems
    assert any(what in problem.what for problem in found), found


def test_what_was_moved_is_read_where_it_lies() -> None:
    found = fsck.judge_clean(MOVED)
    assert [record.value for record in found.shards["t", 0].records] == [
        b"%d " % n * 100 for n in range(12)
    ]
    there = make.MOVED / "store"
    found = fsck.judge_clean(there, cold=str(make.MOVED / "cold"))
    assert len(found.shards["moved", 0].records) == 14
    assert {problem.what for problem in fsck.judge(there).problems} >= {
        "what was moved is not where the stub says"
    }


def indexed() -> tuple[Files, str]:
    """A store with an index of the tags of its first segment, and the path of that."""
    files = FixedFiles()
    with esker.open("/s", files=files, clock=HandClock(), background=False) as store:
        topic = store.create("t", segment_records=4)
        topic.append_many([esker.Record(b"%d" % n, tag="ab"[n % 2]) for n in range(4)])
        topic.append_many([b"plain"])
        store.tick()
        shard = topic._shards[0]
        index_of(shard.files, shard.maps, shard.sealed[0])
    contents = {**files.files, **files.pages}
    made = {path.removeprefix("/s/"): bytes(data) for path, data in contents.items()}
    (path,) = (path for path in made if path.endswith(".tags"))
    return made, path


def test_an_index_of_tags_is_right_or_not_believed() -> None:
    files, path = indexed()
    data = files[path]
    assert fsck.judge_clean(files).problems == []
    for at in range(len(data)):
        files[path] = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        assert fsck.judge_clean(files).problems == []
    files[path] = data[:40]
    assert fsck.judge_clean(files).problems == []


WRONG: list[tuple[str, Any]] = [("an index of other tags", ["a", "b", "a", "a"])]


@pytest.mark.parametrize(("what", "tags"), WRONG)
def test_an_index_of_other_tags_is_found(what: str, tags: Any) -> None:
    files, path = indexed()
    number, salt, rows = unpack_from("<QQI", files[path], 8)
    assert rows == len(tags)
    files[path] = b"".join(map(bytes, encode_tags(pa.array(tags), number, salt)))
    assert [problem.what for problem in fsck.judge(files).problems] == [what]


def test_deleted_records_are_left_out() -> None:
    found = fsck.judge_clean(ERASED)
    there = [record.offset for record in found.shards["t", 0].records]
    assert there == [n for n in range(5000) if n not in (1, 3, 4998)]


def test_a_file_of_deletions_that_no_page_names_is_a_leftover() -> None:
    patient = Patient(ERASED)
    patient.files[T + "deletions-00000002"] = b"half of a"
    patient.files[T + "deletions-00000003"] = patient.files[patient.path(T + "deletions-*1")]
    found = fsck.judge_clean(patient.files)
    assert len(found.shards["t", 0].records) == 4997
    patient = Patient(ERASED)
    patient.files[patient.path(ERASED_BY)] += b"never acknowledged"
    assert len(fsck.judge_clean(patient.files).shards["t", 0].records) == 4997


def loses_a_page(both: bool) -> Damage:
    def lose(patient: Patient) -> None:
        slots = [(STATE.at(patient.files[T + "state"], at).generation, at) for at in (0, 4096)]
        for _, at in slots if both else [max(slots)]:
            patient.flip(T + "state", at + 100)

    return lose


LOSSES: list[tuple[str, Damage, set[int] | None]] = [  # None: nobody knows what is deleted
    ("nothing", lambda p: None, {1, 3, 4998}),
    ("a slot", loses_a_page(both=False), {1, 3, 4998}),
    ("the page", loses_a_page(both=True), {1, 3, 4998}),
    ("the page's file", lambda p: p.files.pop(T + "state"), {1, 3, 4998}),
    ("the page and the last deletion", both(
        loses_a_page(both=True), lambda p: p.cut(ERASED_BY, -1)), None),
    ("the page's file and the last deletion", both(
        lambda p: p.files.pop(T + "state"), lambda p: p.cut(ERASED_BY, -1)), None),
    ("the page, while a new file was made", both(
        loses_a_page(both=True),
        lambda p: p.files.update({T + "deletions-00000002": p.files[p.path(ERASED_BY)][:640]})),
        None),
    ("the page's file, while a new file was made", both(
        lambda p: p.files.pop(T + "state"),
        lambda p: p.files.update({T + "deletions-00000002": p.files[p.path(ERASED_BY)][:640]})),
        None),
    ("the page, beside the file of another", both(
        loses_a_page(both=True),
        lambda p: p.files.update({T + "deletions-00000002": p.files[p.path(ERASED_BY)]})),
        None),
    ("the page and all deletions", both(
        loses_a_page(both=True), lambda p: p.files.pop(p.path(ERASED_BY))), set()),
]  # fmt: skip


@pytest.mark.parametrize(("what", "damage", "gone"), LOSSES, ids=[what for what, *_ in LOSSES])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_it_and_the_engine_agree_on_what_is_deleted_where_a_page_is_lost(
    what: str, damage: Damage, gone: set[int] | None, mode: Any
) -> None:
    patient = Patient(ERASED)
    damage(patient)
    there = [n for n in range(5000) if gone is None or n not in gone]
    found = fsck.judge(patient.files)
    if gone is None:
        assert found.problems
        assert all("deletions-" in problem.path for problem in found.problems)
    else:
        assert [problem.what for problem in found.problems] == []
        assert [record.offset for record in found.shards["t", 0].records] == there
    files = FixedFiles(seed=9)
    for path, data in patient.files.items():
        parts = f"/s/{path}".split("/")
        files.dirs |= {"/".join(parts[:depth]) for depth in range(2, len(parts))}
        if not path.endswith("counters"):
            files.files[f"/s/{path}"] = bytearray(data)
    for _ in range(2):
        with esker.open("/s", files=files, mode=mode, background=False) as store:
            if gone is None:
                with pytest.raises(esker.Corruption, match="which records were deleted"):
                    list(store["t"].read(gaps="skip"))
                continue
            assert [item.offset for item in store["t"].read(gaps="skip")] == there


@pytest.mark.parametrize(("what", "damage"), IMAGE, ids=[what for what, _ in IMAGE])
def test_damage_to_what_a_crash_left_is_found(what: str, damage: Damage) -> None:
    patient = Patient(LEFT)
    damage(patient)
    found = fsck.judge(patient.files)
    assert any(what in problem.what for problem in found.problems + found.torn), found.problems


def test_healthy_stores_have_no_problems() -> None:
    assert fsck.judge_clean(HEALTHY).torn == []
    assert fsck.judge_clean(KEPT).torn == []
    assert fsck.judge(LEFT).problems == []


def test_every_check_is_tried() -> None:
    """Whatever fsck can say is in one of the lists above."""
    said = set()
    texts = [Path(module.__file__).read_text("utf-8") for module in (fsck, fsck_bytes)]
    for node in [part for text in texts for top in ast.parse(text).body
                 if not isinstance(top, ast.Assign) for part in ast.walk(top)]:  # fmt: skip
        if isinstance(node, ast.Tuple) and len(node.elts) in (2, 3):
            items = node.elts[-1:]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(SAYING):
            items = node.args[1:3] if ast.unparse(node.func) == "need" else node.args
        else:
            continue
        for item in items:
            if isinstance(item, ast.JoinedStr):
                item = next(part for part in item.values if isinstance(part, ast.Constant))
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                said.add(item.value)
    said -= {"seg", "log", "esker.store"}
    assert len(said) > 80
    untried = [text for text in said if not any(tried(what, text) for what, _ in TRIED)]
    untried.remove("committed, and not attached")  # see above
    assert untried == []


TRIED = CLEAN + IMAGE + BATCH + MARKED + WRONG + COLD + CURSORS + KEYED + ROUTES
SAYING = ("need", "problem", "crash", "say", "Flaw")


def tried(what: str, text: str) -> bool:
    return what in text or text.strip() in what


COVERED = [name for name in sorted(HEALTHY) if not name.endswith(("counters", "lock"))]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        *((HEALTHY, name) for name in COVERED),
        (ERASED, T + "deletions-00000001"),
        *((MOVED, name) for name in sorted(MOVED) if ".seg" in name),
    ],
    ids=[*COVERED, "deletions", *(name for name in sorted(MOVED) if ".seg" in name)],
)
def test_no_flipped_bit_goes_unnoticed(files: Files, name: str) -> None:
    """Every byte of a store counts, but for lock files, counts, and what a slot was before."""
    chance = random.Random(name)
    data = files[name]
    for at in chance.sample(range(len(data)), min(len(data), 150)):
        if name.endswith("state") and (
            512 <= at < 4096 or not data[at - at % 4096 :][:512].strip(b"\0")
        ):
            continue  # between the slots
        damaged = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        assert fsck.judge({**files, name: damaged}, clean=True).problems, (name, at)


def test_a_link_is_not_followed(path: Path) -> None:
    log = next(path.rglob("*.log"))
    log.rename(path.parent / "elsewhere")
    log.symlink_to(path.parent / "elsewhere")
    found = fsck.judge(path, clean=True).problems
    assert "a stranger, or a link" in [problem.what for problem in found]
