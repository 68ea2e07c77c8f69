"""Topics as files: WAL and segments, what is deleted in them, and where they end."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

import esker
from esker import kin
from esker.errors import Corruption
from esker.format.columns import Columns
from esker.kin import topics
from esker.records import Gap
from tests.test_kin import filled, kinds_of, paths, seen, store

__all__ = ["store"]  # a fixture


@pytest.fixture
def engine(store: esker.Store, tmp_path: Path) -> Path:
    kin.export_topic(filled(store, 1_000), tmp_path / "there", "topics", segment_bytes=65536)
    return tmp_path / "there"


def appended(first: int, count: int, topic: int = 1) -> bytes:
    return b"".join(
        topics.frame(topics.Frame(1, topic, seq, 1_700, b"%d" % seq))
        for seq in range(first, first + count)
    )


def test_topics_layout_and_index(engine: Path) -> None:
    names = sorted(path.name for path in (engine / "topics" / "00000001").iterdir())
    assert names[:2] == ["seg-0000000000000001.data", "seg-0000000000000001.idx"]
    for data in paths(engine, "*.data"):
        index = data.with_suffix(".idx").read_bytes()
        assert index == topics.build_index(memoryview(data.read_bytes()))
        assert len(index) % 20 == 0
    assert (engine / "wal" / "CURRENT").read_text() == "wal-0000000000000000.log\n"
    assert list(kin.open_kin(engine, "topics")) == ["orders"]


def test_topics_a_segment_has_ten_thousand_events_at_most(
    store: esker.Store, tmp_path: Path
) -> None:
    kin.export_topic(filled(store, 20_001), tmp_path / "there", "topics")
    names = [path.name for path in paths(tmp_path, "*.data")]
    assert names == [f"seg-{first:016}.data" for first in (1, 10_001, 20_001)]


def test_topics_without_a_name_a_topic_is_called_by_its_number(engine: Path) -> None:
    (engine / "wal" / "wal-0000000000000000.log").unlink()
    assert list(kin.open_kin(engine, "topics")) == ["00000001"]


def test_topics_the_wal_goes_on_behind_the_segments_and_nothing_comes_twice(engine: Path) -> None:
    wal = engine / "wal" / "shard-00"
    wal.mkdir()
    mixed = appended(990, 15) + appended(1, 3, topic=2) + appended(1_005, 2)
    (wal / "wal-0000000000000990.log").write_bytes(mixed.ljust(1 << 16, b"\0"))
    (wal / "wal-0000000000001007.log").write_bytes(appended(1_007, 3))
    with kin.open_kin(engine, "topics") as opened:
        assert list(opened) == ["orders", "00000002"]
        found = opened["orders"]
        assert found.end() == 1_009
        assert [r.offset for r in found.read()] == list(range(1_009))
        assert found.get(1_008).value == b"1009"
        assert opened["00000002"][:].values == [b"1", b"2", b"3"]
    assert kin.verify(engine, "topics").records == 1_009 + 3


def test_topics_the_wal_ends_at_the_first_frame_that_is_not_whole(engine: Path) -> None:
    path = engine / "wal" / "wal-0000000000001001.log"
    data = bytearray(appended(1_001, 5))
    size = len(appended(1_001, 1))
    for damage in (slice(size * 3 + 20, size * 3 + 21), slice(size * 3, None)):
        harmed = bytearray(data)
        if damage.stop:
            harmed[damage] = b"\xff"
        else:
            harmed = harmed[: size * 3 + 10]
        path.write_bytes(harmed)
        found = seen(engine, "topics")
        assert found.end() == 1_003
        assert len(list(found.read())) == 1_003
        assert kinds_of(engine, "topics") == ["torn"]


def test_topics_a_checksum_that_is_wrong_in_a_segment_is_damage(engine: Path) -> None:
    first = paths(engine, "*.data")[0]
    data = bytearray(first.read_bytes())
    data[-12] ^= 1
    first.write_bytes(data)
    with pytest.raises(Corruption, match="checksum"):
        list(seen(engine, "topics").read())
    items = list(seen(engine, "topics").batches(gaps="yield"))
    (gap,) = [item for item in items if isinstance(item, Gap)]
    assert (gap.missed, gap.reason) == (1, "corrupt")
    assert kinds_of(engine, "topics") == ["corrupt"]


@pytest.mark.parametrize("damage", ["missing", "wrong"])
def test_topics_an_index_that_is_wrong_costs_time_only(engine: Path, damage: str) -> None:
    index = paths(engine, "*.idx")[0]
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes(bytes(len(index.read_bytes())))
    assert [seen(engine, "topics").get(n).offset for n in (0, 100, 999)] == [0, 100, 999]
    assert kinds_of(engine, "topics") == ["index"]


def test_topics_what_is_left_out_is_told(engine: Path) -> None:
    frames = [topics.Frame(kind, 1) for kind in (6, 6, 8, 10, 99)]
    (engine / "wal" / "wal-0000000000000001.log").write_bytes(b"".join(map(topics.frame, frames)))
    (engine / "meta").mkdir()
    (engine / "meta" / "snapshot.0007.bin").write_bytes(b"bincode")
    flaws = kin.verify(engine, "topics").flaws
    assert [flaw.kind for flaw in flaws] == ["unread"] * 4
    assert "2 frames of Delete" in str(flaws[0])
    assert "1 frames of Lease" in str(flaws[1])
    assert "type 99" in str(flaws[2])


def flagged(path: Path, *deleted: int) -> None:
    """Put the byte behind each frame of a segment that tells whether it is deleted."""
    data, made, index, at = path.read_bytes(), b"", b"", 0
    first = int(path.name[4:20])
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        (ts,) = struct.unpack_from("<Q", data, at + 13)
        index += topics.IDX.pack(len(made), size + 5, ts, data[at + 4])
        mark = b"\xd5" if first + len(index) // 20 - 1 in deleted else b"\0"
        made += struct.pack("<I", size + 1) + data[at + 4 : at + 4 + size] + mark
        at += 4 + size
    path.write_bytes(made)
    path.with_suffix(".idx").write_bytes(index)


def test_topics_a_byte_behind_a_frame_deletes_its_record(engine: Path) -> None:
    before = [(r.offset, r.value, r.timestamp) for r in seen(engine, "topics").read()]
    last = len(before)
    for path in paths(engine, "*.data"):
        flagged(path, 1, 5, 6, 300, last)
    found = seen(engine, "topics")
    assert (found.earliest(), found.end()) == (0, 1_000)
    gone = {0, 4, 5, 299, last - 1}
    assert [(r.offset, r.value, r.timestamp) for r in found.read()] == [
        record for record in before if record[0] not in gone
    ]
    assert not any(isinstance(item, Gap) for item in found.batches(gaps="yield"))
    assert [r.offset for r in found[3:8]] == [3, 6, 7]
    assert kin.verify(engine, "topics").flaws == ()
    assert kin.verify(engine, "topics").records == 995


def test_topics_a_segment_whose_records_are_all_deleted_is_no_gap(engine: Path) -> None:
    first = paths(engine, "*.data")[0]
    count = len(first.with_suffix(".idx").read_bytes()) // 20
    flagged(first, *range(1, count + 1))
    items = list(seen(engine, "topics").batches(gaps="yield"))
    assert items[0].offsets[0].as_py() == count
    assert sum(map(len, items)) == 1_000 - count


def deleting(before: int = 0, tag: bytes = b"", op: int = 0, seqs: tuple[int, ...] = (),
             bound: int = 0) -> bytes:  # fmt: skip
    body = b"\1" + struct.pack("<Q", before) if before else b"\0"
    body += b"\1" + bytes([op]) + struct.pack("<I", len(tag)) + tag if tag else b"\0"
    body += struct.pack(f"<I{len(seqs)}Q", len(seqs), *seqs)
    return body + (b"\1" + struct.pack("<Q", bound) if bound else b"\0")


@pytest.mark.parametrize(
    ("kind", "body", "gone"),
    [
        (6, deleting(before=4, bound=99), [1, 2, 3]),
        (6, deleting(before=99, bound=3), [1, 2]),
        (6, deleting(tag=b"eu", bound=99), [2, 6]),
        (6, deleting(tag=b"eu", op=1, bound=99), [2, 4, 6, 8]),
        (6, deleting(tag=b"eu", op=1, bound=6), [2, 4]),
        (6, deleting(before=5, tag=b"eu", bound=99), [2]),
        (6, deleting(seqs=(3, 8)), [3, 8]),
        (6, deleting(bound=99), []),
        (6, deleting(before=4, bound=99)[:-1], []),
        (6, deleting(before=4, bound=99) + b"x", []),
        (7, struct.pack("<QQQ", 2, 5, 0), [1, 2, 3, 4]),
        (7, b"short", []),
    ],
)
def test_topics_control_frames_delete(
    tmp_path: Path, kind: int, body: bytes, gone: list[int]
) -> None:
    tags = [None, b"eu", None, b"eu-1", None, b"eu", None, b"eu-2"]
    made = [topics.Frame(1, 1, n, 5, b"%d" % n, tag) for n, tag in enumerate(tags, 1)]
    made.insert(8, topics.Frame(kind, 1, data=body))
    (tmp_path / "wal").mkdir()
    data = b"".join(map(topics.frame, made))
    (tmp_path / "wal" / "wal-0000000000000001.log").write_bytes(data)
    values = [r.value for r in seen(tmp_path, "topics").read()]
    assert values == [b"%d" % n for n in range(1, 9) if n not in gone]
    unread = [flaw.kind for flaw in kin.verify(tmp_path, "topics").flaws]
    assert unread == ([] if gone or body == deleting(bound=99) else ["unread"])


def test_topics_every_record_of_a_wal_has_its_own_tag_and_node(tmp_path: Path) -> None:
    tags, nodes = [None, "eu", "us", None, "eu-1"] * 3, ["a", None, "bb", None, "c"] * 3
    made = [
        topics.Frame(1, 300 + n % 2, 1 + n // 2, 5, b"", *(it and it.encode() for it in pair))
        for n, pair in enumerate(zip(tags, nodes, strict=True))
    ]
    (tmp_path / "wal").mkdir()
    data = b"".join(map(topics.frame, made))
    (tmp_path / "wal" / "wal-0000000000000001.log").write_bytes(data)
    with kin.open_kin(tmp_path, "topics") as opened:
        for part in (0, 1):
            found = list(opened[f"{300 + part:08X}"].read())
            assert [(r.tag, r.node) for r in found] == [*zip(tags, nodes, strict=True)][part::2]


def test_topics_a_name_is_told_by_its_first_frame_or_by_a_later_one(tmp_path: Path) -> None:
    named = struct.pack("<I", 5) + b"night" + struct.pack("<I", 2) + b"{}"
    (tmp_path / "wal").mkdir()
    for kind in (2, 9):
        data = topics.frame(topics.Frame(kind, 1, data=named)) + appended(1, 2)
        (tmp_path / "wal" / "wal-0000000000000001.log").write_bytes(data)
        assert list(kin.open_kin(tmp_path, "topics")) == ["night"]


def test_topics_segments_in_a_cold_directory_are_a_log_of_their_own(
    store: esker.Store, engine: Path, tmp_path: Path
) -> None:
    cold = tmp_path / "cold" / "topics" / "00000001"
    cold.mkdir(parents=True)
    for path in sorted((engine / "topics" / "00000001").iterdir())[:4]:
        path.rename(cold / path.name)
    (engine / "topics" / "0000000A.deleted").mkdir()  # a topic that is being removed
    assert list(kin.open_kin(engine, "topics")) == ["orders"]
    kin.import_(tmp_path / "cold", store, "both", kind="topics")
    kin.import_(engine, store, "both", kind="topics")
    assert [r.value for r in store["both"][:]] == [r.value for r in store["orders"][:]]


def test_topics_a_deleted_topic_is_not_there(engine: Path) -> None:
    gone = topics.frame(topics.Frame(3, 2)) + appended(1, 1, topic=3)
    data = topics.frame(topics.Frame(2, 2, data=b"two")) + appended(1, 2, topic=2) + gone
    (engine / "wal" / "wal-0000000000000001.log").write_bytes(data)
    assert list(kin.open_kin(engine, "topics")) == ["orders", "00000003"]


def test_topics_a_tag_that_is_no_text_is_damage() -> None:
    columns = Columns(pa.array([b"a", b"b"], pa.binary()), 0, None, pa.array(["x", "y"]))
    data = bytearray(topics.encode(columns, 0)[0])
    size = len(data) // 2
    body = bytes(data[size + 4 : -8]).replace(b"y", b"\xff")
    frame = struct.pack("<I", len(body) + 8) + body
    frame += struct.pack("<Q", topics.xxh3_64_intdigest(body))
    found = topics.decode(memoryview(bytes(data[:size]) + frame))
    assert found is not None
    assert found.columns.tags.to_pylist() == ["x"]
    assert "not text" in found.problem
