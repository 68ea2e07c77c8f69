"""The five formats as files: read, recovered as their documents say, checked, copied."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import esker
from esker import kin
from esker.engine.progress import Progress
from esker.errors import (
    Corruption,
    DataGap,
    InvalidOption,
    NotAStore,
    OffsetOutOfRange,
    ReadOnlyStore,
    RecordTooLarge,
    StoreClosed,
    TopicNotFound,
    UnsafePath,
)
from esker.kin import aof2, comet, comet_state, cursus, rustlog
from esker.kin.family import Part
from esker.records import Gap, Record
from esker.storage.files import SYSTEM_FILES

TIME = 1_700_000_000_000_000  # microseconds
KINDS = list(kin.KINDS)
TIMED = {"comet", "topics", "aof2"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[esker.Store]:
    with esker.open(tmp_path / "store") as opened:
        yield opened


def filled(
    store: esker.Store, count: int = 1_000, name: str = "orders", **options: int
) -> esker.Topic:
    topic = store.create(name, **options)
    for shard in range(topic.shards):
        records = [
            Record(b"%d %d " % (shard, n) * (n % 40), timestamp=TIME + n * 1_000)
            for n in range(count)
        ]
        with store.stage(name, shard) as staged:
            staged.append_many(records)
        store.attach(f"fill {name} {shard}", 1, staged.tickets)
    return topic


def only(opened: kin.KinStore) -> kin.KinTopic:
    (name,) = opened
    return opened[name]


def seen(path: Path, kind: str) -> kin.KinTopic:
    return only(esker.open(f"kin+{kind}://{path}"))


def paths(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def kinds_of(path: Path, kind: str) -> list[str]:
    return [flaw.kind for flaw in kin.verify(path, kind).flaws]


# ---- there and back ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_goes_there_and_back_unchanged(
    store: esker.Store, tmp_path: Path, kind: str
) -> None:
    topic = filled(store)
    done = kin.export_topic(topic, tmp_path / "there", kind, segment_bytes=4096)
    assert done.records == 1_000
    assert done.files > 3
    assert done.dropped == (() if kind in TIMED else ("timestamp",))
    assert not done.renumbered
    told = kin.verify(tmp_path / "there", kind)
    assert (told.flaws, told.records, told.ok) == ((), 1_000, True)
    wanted, found = topic[:].to_arrow(), seen(tmp_path / "there", kind).to_arrow()
    columns = ["offset", "value", *(["timestamp"] if kind in TIMED else [])]
    assert found.select(columns) == wanted.select(columns)
    assert kin.import_(f"kin+{kind}://{tmp_path}/there", store, "back").records == 1_000
    assert store["back"][:].to_arrow().select(columns) == wanted.select(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_of_a_log_can_be_read_by_itself(
    store: esker.Store, tmp_path: Path, kind: str
) -> None:
    topic = filled(store, 500)
    kin.export_topic(topic, tmp_path / "there", kind, segment_bytes=4096)
    found = seen(tmp_path / "there", kind)
    assert (found.earliest(), found.end(), len(found), found.shards) == (0, 500, 500, 1)
    for offset in (0, 1, 99, 100, 101, 250, 499):
        assert found.get(offset).value == topic.get(offset).value
        assert found[offset - 500].offset == offset
    assert found[120:140].values == topic[120:140].values
    assert len(found[490:]) == 10
    assert [record.offset for record in found.read(-3)] == [497, 498, 499]
    assert list(found.read("latest")) == []
    assert [len(batch) for batch in found.batches(10, 25, max_records=10)] == [10, 5]
    with pytest.raises(OffsetOutOfRange):
        found.get(500)
    if kind in TIMED:
        when = f"@2023-11-14T22:13:20.{400:03}"
        assert next(found.read(when)).offset == 400
        assert next(found.read(when)).timestamp == TIME + 400_000
    else:
        with pytest.raises(InvalidOption, match="no times"):
            list(found.read("@-1h"))


def test_a_batch_is_of_the_schema_of_esker(store: esker.Store, tmp_path: Path) -> None:
    kin.export_topic(filled(store, 10), tmp_path / "there", "comet")
    (batch,) = seen(tmp_path / "there", "comet").batches()
    assert batch.arrow.schema == esker.SCHEMA
    assert pa.table(seen(tmp_path / "there", "comet")[:]).num_rows == 10


@pytest.mark.parametrize("kind", ["rustlog", "cursus", "comet", "topics"])
def test_shards_go_there_and_back(store: esker.Store, tmp_path: Path, kind: str) -> None:
    topic = filled(store, 100, shards=3)
    kin.export_topic(topic, tmp_path / "there", kind)
    with kin.open_kin(tmp_path / "there", kind) as opened:
        if kind == "topics":  # one log each
            assert list(opened) == ["orders.0", "orders.1", "orders.2"]
            for shard in range(3):
                assert opened[f"orders.{shard}"][:].values == topic.slice(shard=shard).values
            with pytest.raises(InvalidOption, match=r"orders\.1"):
                kin.import_(tmp_path / "there", store, "back", kind=kind)
            return
        assert only(opened).shards == 3
        for shard in range(3):
            assert only(opened).slice(shard=shard).values == topic.slice(shard=shard).values
    assert kin.import_(tmp_path / "there", store, "back", kind=kind).records == 300
    assert store["back"].shards == 3
    assert store["back"][:].to_arrow()["value"] == topic[:].to_arrow()["value"]


def test_aof2_is_one_stream(store: esker.Store, tmp_path: Path) -> None:
    topic = filled(store, 10, shards=2)
    with pytest.raises(InvalidOption, match="one stream"):
        kin.export_topic(topic, tmp_path / "there", "aof2")
    kin.export_topic(topic, tmp_path / "there", "aof2", shard=1)
    assert seen(tmp_path / "there", "aof2")[:].values == topic.slice(shard=1).values


def test_tags_and_nodes_go_with_topics_and_with_nobody_else(
    store: esker.Store, tmp_path: Path
) -> None:
    topic = store.create("t")
    topic.append_many([Record(b"a", tag="eu", node="n1"), Record(b"b"), Record(b"c", tag="ü")])
    kin.export_topic(topic, tmp_path / "there", "topics")
    kin.import_(tmp_path / "there", store, "back", kind="topics")
    assert [(r.value, r.tag, r.node) for r in store["back"].read()] == [
        (b"a", "eu", "n1"), (b"b", None, None), (b"c", "ü", None),
    ]  # fmt: skip
    with pytest.raises(InvalidOption, match="no place for node, tag"):
        kin.export_topic(topic, tmp_path / "comet", "comet")
    assert not (tmp_path / "comet").exists()
    done = kin.export_topic(topic, tmp_path / "comet", "comet", drop=True)
    assert done.dropped == ("tag", "node")


def test_a_key_is_not_left_out_in_silence(store: esker.Store, tmp_path: Path) -> None:
    store["t"].append(b"v", key=b"k", headers={"h": b"1"})
    for kind in KINDS:
        with pytest.raises(InvalidOption, match="headers, key"):
            kin.export_topic(store["t"], tmp_path / kind, kind)
    assert "key" in kin.export_topic(store["t"], tmp_path / "x", "topics", drop=True).dropped


def test_microseconds_that_topics_cannot_keep_are_told(store: esker.Store, tmp_path: Path) -> None:
    store["t"].append_many([Record(b"v", timestamp=TIME + 1)])
    done = kin.export_topic(store["t"], tmp_path / "x", "topics")
    assert done.dropped == ("timestamp below 1 ms",)
    assert seen(tmp_path / "x", "topics").get(0).timestamp == TIME


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_deleted_leaves_a_hole_or_other_offsets(
    store: esker.Store, tmp_path: Path, kind: str
) -> None:
    topic = store.create("t")
    topic.append_many([Record(b"%d" % n, tag="x" if n in (3, 4, 8) else None) for n in range(12)])
    topic.delete(tag="x")
    done = kin.export_topic(topic, tmp_path / "there", kind)
    found = seen(tmp_path / "there", kind)
    left = [n for n in range(12) if n not in (3, 4, 8)]
    assert found[:].values == [b"%d" % n for n in left]
    assert done.renumbered == (kind != "rustlog")
    assert [r.offset for r in found.read()] == (left if kind == "rustlog" else list(range(9)))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_values_and_the_year_1970_survive(
    store: esker.Store, tmp_path: Path, kind: str
) -> None:
    topic = store.create("t")
    topic.append_many(
        [Record(b"", timestamp=0), Record(b"x", timestamp=0), Record(b"", timestamp=0)]
    )
    kin.export_topic(topic, tmp_path / "there", kind)
    found = seen(tmp_path / "there", kind)
    assert found[:].values == [b"", b"x", b""]
    assert kin.verify(tmp_path / "there", kind).flaws == ()
    if kind in TIMED:
        assert [r.timestamp for r in found.read()] == [0, 0, 0]


# ---- importing -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_that_was_stopped_goes_on_and_one_that_is_done_does_nothing(
    store: esker.Store, tmp_path: Path, kind: str
) -> None:
    topic = filled(store, 2_000)
    kin.export_topic(topic, tmp_path / "there", kind, segment_bytes=65536)
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            raise KeyboardInterrupt

    source = f"kin+{kind}://{tmp_path}/there"
    with pytest.raises(KeyboardInterrupt):
        kin.import_(source, store, "back", progress=stop, chunk_bytes=4096)
    before = store["back"].end()
    assert 0 < before < 2_000
    again = kin.import_(source, store, "back", chunk_bytes=4096, progress=told.append)
    assert (again.known, again.records) == (before, 2_000 - before)
    assert (told[-1].done, told[-1].total) == (2_000, 2_000)
    assert store["back"][:].values == topic[:].values
    third = kin.import_(source, store, "back")
    assert (third.known, third.records) == (2_000, 0)
    assert store["back"].end() == 2_000


def test_an_import_goes_on_when_the_source_has_grown(store: esker.Store, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "orders"
    folder.mkdir(parents=True)
    (folder / "partition_0_segment_0.log").write_bytes(cursus.message(b"one"))
    assert kin.import_(tmp_path / "logs", store, "t", kind="cursus").records == 1
    (folder / "partition_0_segment_1.log").write_bytes(cursus.message(b"two"))
    done = kin.import_(tmp_path / "logs", store, "t", kind="cursus")
    assert (done.records, done.known) == (1, 1)
    assert store["t"][:].values == [b"one", b"two"]


def test_records_without_a_time_get_that_of_the_import(store: esker.Store, tmp_path: Path) -> None:
    kin.export_topic(filled(store, 3), tmp_path / "there", "rustlog")
    kin.import_(tmp_path / "there", store, "back", kind="rustlog")
    assert all(record.timestamp > TIME for record in store["back"].read())


def test_an_import_needs_as_many_shards(store: esker.Store, tmp_path: Path) -> None:
    kin.export_topic(filled(store, 3, shards=2), tmp_path / "there", "cursus")
    store.create("narrow")
    with pytest.raises(InvalidOption, match="shards"):
        kin.import_(tmp_path / "there", store, "narrow", kind="cursus")
    with pytest.raises(TopicNotFound):
        kin.import_(tmp_path / "there", store, "x", kind="cursus", source="nothing")


def test_an_import_of_a_damaged_log_stops_or_tells_what_it_lacks(
    store: esker.Store, tmp_path: Path
) -> None:
    topic = filled(store, 1_000)
    kin.export_topic(topic, tmp_path / "there", "rustlog", segment_bytes=16384)
    paths(tmp_path / "there", "*.log")[1].unlink()
    with pytest.raises(DataGap):
        kin.import_(tmp_path / "there", store, "back", kind="rustlog")
    done = kin.import_(tmp_path / "there", store, "rest", kind="rustlog", gaps="skip")
    assert done.gaps > 0
    assert done.records + done.gaps == 1_000


# ---- what cannot be ------------------------------------------------------------------------


def test_a_log_of_others_is_only_read(store: esker.Store, tmp_path: Path) -> None:
    kin.export_topic(filled(store, 3), tmp_path / "there", "comet")
    with esker.open(f"kin+comet://{tmp_path}/there", mode="r") as opened:
        assert list(opened) == ["log"]
        assert "log" in opened
        assert len(opened) == 1
        topic = opened["log"]
        for call in (topic.append, topic.append_many, topic.append_arrow):
            with pytest.raises(ReadOnlyStore):
                call([b"x"])
        for refused in (opened.create, opened.delete):
            with pytest.raises(ReadOnlyStore):
                refused("x")
        with pytest.raises(TopicNotFound):
            opened["nothing"]
        with pytest.raises(InvalidOption):
            topic.end(7)
        with pytest.raises(InvalidOption):
            topic[::2]
        with pytest.raises(InvalidOption):
            topic.get("1")  # type: ignore[arg-type]
    with pytest.raises(StoreClosed):
        topic.end()
    with pytest.raises(StoreClosed):
        opened["log"]


@pytest.mark.parametrize(
    "path", ["kin+nothing:///x", "kin+comet:/x", "kin+comet://", "kin+", "kin+comet:///x\0"]
)
def test_a_name_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidOption):
        esker.open(path)


def test_options_and_modes_of_a_store_are_not_for_kin(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="sync"):
        esker.open(f"kin+comet://{tmp_path}", sync="always")
    with pytest.raises(InvalidOption, match="mode"):
        esker.open(f"kin+comet://{tmp_path}", mode="w")
    with pytest.raises(InvalidOption):
        kin.open_kin(f"kin+comet://{tmp_path}", "rustlog")


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_without_such_a_log_is_no_store(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotAStore, match=kind):
        esker.open(f"kin+{kind}://{tmp_path}")
    assert kin.verify(tmp_path, kind).records == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_destroys_nothing(store: esker.Store, tmp_path: Path, kind: str) -> None:
    topic = filled(store, 3)
    kin.export_topic(topic, tmp_path / "there", kind)
    if kind != "topics":  # which gives the topic a new number, beside the old one
        with pytest.raises(InvalidOption, match="not empty"):
            kin.export_topic(topic, tmp_path / "there", kind)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnsafePath):
        kin.export_topic(topic, tmp_path / "file", kind)


def test_choices_of_an_export_are_checked(store: esker.Store, tmp_path: Path) -> None:
    topic = filled(store, 3)
    for kind, choices in (
        ("rustlog", {"compress_above": 5}), ("rustlog", {"segment_bytes": 5}),
        ("aof2", {"segment_bytes": 5000}), ("comet", {"segment_bytes": True}),
        ("comet", {"nothing": 1}),
    ):  # fmt: skip
        with pytest.raises(InvalidOption):
            kin.export_topic(topic, tmp_path / "x", kind, **choices)


def test_a_value_that_a_format_cannot_hold_is_refused(store: esker.Store, tmp_path: Path) -> None:
    topic = store.create("t", max_record_bytes=16 << 20)
    topic.append(bytes(rustlog.MAX_RECORD + 1))
    with pytest.raises(RecordTooLarge, match="RustLog"):
        kin.export_topic(topic, tmp_path / "a", "rustlog")
    with pytest.raises(RecordTooLarge, match="AOF2"):
        kin.export_topic(topic, tmp_path / "b", "aof2", segment_bytes=1 << 20)
    kin.export_topic(topic, tmp_path / "c", "cursus")  # a segment for itself
    assert len(seen(tmp_path / "c", "cursus").get(0).value) == rustlog.MAX_RECORD + 1


# ---- RustLog -------------------------------------------------------------------------------


@pytest.fixture
def rust(store: esker.Store, tmp_path: Path) -> Path:
    kin.export_topic(filled(store, 1_000), tmp_path / "there", "rustlog", segment_bytes=32768)
    return tmp_path / "there"


def test_rustlog_layout_and_names(rust: Path) -> None:
    folder = rust / "topics" / "orders" / "partition-0"
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "00000000000000000000.index"
    assert names[1] == "00000000000000000000.log"
    assert len(names) % 2 == 0
    for log in paths(rust, "*.log"):
        first = struct.unpack_from(">Q", log.read_bytes(), 4)[0]
        assert log.name == f"{first:020}.log"
        index = log.with_suffix(".index").read_bytes()
        assert index == rustlog.build_index(memoryview(log.read_bytes()))


def test_rustlog_partial_write_at_the_end_is_where_the_log_ends(rust: Path) -> None:
    last = paths(rust, "*.log")[-1]
    last.write_bytes(last.read_bytes() + struct.pack(">IQ", 100, 1_000) + b"y" * 60)
    found = seen(rust, "rustlog")
    assert found.end() == 1_000
    assert len(list(found.read())) == 1_000
    assert [flaw.kind for flaw in found.flaws] == ["torn"]
    assert kinds_of(rust, "rustlog") == ["torn"]
    assert kin.verify(rust, "rustlog").ok


def test_rustlog_partial_write_in_a_sealed_segment_is_damage(rust: Path) -> None:
    first = paths(rust, "*.log")[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(Corruption, match="not whole"):
        list(seen(rust, "rustlog").read())
    items = list(seen(rust, "rustlog").batches(gaps="yield"))
    (gap,) = [item for item in items if isinstance(item, Gap)]
    assert (gap.missed, gap.reason) == (1, "corrupt")
    assert sum(len(item) for item in items if not isinstance(item, Gap)) == 999
    assert kinds_of(rust, "rustlog") == ["corrupt"]
    assert not kin.verify(rust, "rustlog").ok


@pytest.mark.parametrize("damage", ["missing", "wrong", "half", "elsewhere"])
def test_rustlog_a_missing_or_damaged_index_costs_time_only(rust: Path, damage: str) -> None:
    index = paths(rust, "*.index")[0]
    if damage == "missing":
        index.unlink()
    elif damage == "wrong":
        index.write_bytes(rustlog.ENTRY.pack(7, 99_999_999))
    elif damage == "half":
        index.write_bytes(index.read_bytes()[:-3])
    else:
        index.write_bytes(rustlog.ENTRY.pack(0, 0) + rustlog.ENTRY.pack(100, 13))
    assert [seen(rust, "rustlog").get(n).offset for n in (0, 100, 150, 999)] == [0, 100, 150, 999]
    assert kinds_of(rust, "rustlog") == ["index"]


def test_rustlog_offsets_that_go_back_are_damage(rust: Path) -> None:
    last = paths(rust, "*.log")[-1]
    last.write_bytes(last.read_bytes() + rustlog.record(5, b"again"))
    with pytest.raises(Corruption, match="does not rise"):
        list(seen(rust, "rustlog").read())
    assert len(list(seen(rust, "rustlog").read(gaps="skip"))) == 1_000


def test_rustlog_a_file_that_begins_before_its_name_is_damage(rust: Path) -> None:
    folder = rust / "topics" / "orders" / "partition-0"
    (folder / f"{1000:020}.log").write_bytes(rustlog.record(999, b"again"))
    with pytest.raises(Corruption, match="999, which does not rise"):
        list(seen(rust, "rustlog").read())


def test_rustlog_a_length_above_the_limit_is_damage(rust: Path) -> None:
    last = paths(rust, "*.log")[-1]
    last.write_bytes(last.read_bytes() + struct.pack(">IQ", rustlog.MAX_RECORD + 1, 1_000))
    with pytest.raises(Corruption, match="the most"):
        list(seen(rust, "rustlog").read())


def test_rustlog_a_missing_segment_is_a_gap(rust: Path) -> None:
    paths(rust, "*.log")[0].unlink()
    found = seen(rust, "rustlog")
    first = found.earliest()
    assert first > 0  # as retention does
    assert next(found.read()).offset == first
    paths(rust, "*.log")[1].unlink()
    with pytest.raises(DataGap):
        list(seen(rust, "rustlog").read())


def test_rustlog_a_stranger_in_the_folder_is_told(rust: Path) -> None:
    (rust / "topics" / "orders" / "partition-0" / "notes.txt").write_text("hi")
    (rust / "topics" / "orders" / "partition-x").mkdir()
    assert kinds_of(rust, "rustlog") == ["name"]


def test_rustlog_the_folder_of_topics_may_be_given_itself(rust: Path) -> None:
    assert seen(rust / "topics", "rustlog").end() == 1_000


def test_rustlog_an_empty_active_segment_is_no_flaw(rust: Path) -> None:
    (rust / "topics" / "orders" / "partition-0" / f"{1000:020}.log").write_bytes(b"")
    found = seen(rust, "rustlog")
    assert (found.end(), len(list(found.read()))) == (1_000, 1_000)
    assert kin.verify(rust, "rustlog").flaws == ()


# ---- cursus --------------------------------------------------------------------------------


def test_cursus_layout_and_rotation(store: esker.Store, tmp_path: Path) -> None:
    topic = store.create("t")
    topic.append_many([b"x" * 300_000] * 7)
    kin.export_topic(topic, tmp_path / "logs", "cursus")
    sizes = [path.stat().st_size for path in paths(tmp_path, "partition_0_segment_*.log")]
    assert paths(tmp_path / "logs", "*.log")[0].name == "partition_0_segment_0.log"
    assert sizes == [900_012, 900_012, 300_004]  # a fourth would exceed 1,048,576


def test_cursus_segments_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(12):
        (folder / f"partition_0_segment_{number}.log").write_bytes(cursus.message(b"%d" % number))
    assert seen(tmp_path, "cursus")[:].values == [b"%d" % n for n in range(12)]


def test_cursus_torn_end_missing_segment_and_strangers(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(3):
        (folder / f"partition_0_segment_{number}.log").write_bytes(cursus.message(b"%d" % number))
    (folder / "partition_0_segment_2.log").write_bytes(cursus.message(b"2") + b"\0\0\0\x09abc")
    assert seen(tmp_path, "cursus")[:].values == [b"0", b"1", b"2"]
    assert kinds_of(tmp_path, "cursus") == ["torn"]
    (folder / "partition_0_segment_1.log").unlink()
    (folder / "other").write_bytes(b"")
    with pytest.raises(Corruption, match="segment 1 is missing"):
        list(seen(tmp_path, "cursus").read())
    assert kinds_of(tmp_path, "cursus") == ["name", "corrupt"]


def test_cursus_a_torn_segment_before_others_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "partition_0_segment_0.log").write_bytes(cursus.message(b"0") + b"\0\0")
    (folder / "partition_0_segment_1.log").write_bytes(cursus.message(b"1"))
    with pytest.raises(Corruption, match="other segments follow"):
        list(seen(tmp_path, "cursus").read())


# ---- Comet ---------------------------------------------------------------------------------


@pytest.fixture
def edge(store: esker.Store, tmp_path: Path) -> Path:
    kin.export_topic(filled(store, 1_000), tmp_path / "there", "comet", segment_bytes=65536)
    return tmp_path / "there"


def test_comet_layout_and_index(edge: Path) -> None:
    shard = edge / "shard-0000"
    names = sorted(path.name for path in shard.iterdir())
    assert names[0] == "comet.state"
    assert names[-1] == "offsets.state"
    assert "log-0000000000000000.comet" in names
    index = comet_state.decode_index((shard / "index.bin").read_bytes())
    assert isinstance(index, comet_state.Index)
    again = comet.rebuild_index(SYSTEM_FILES, str(shard))
    assert again == index
    assert index.current_entry == 1_000
    state = comet_state.decode_state((shard / "comet.state").read_bytes())
    assert isinstance(state, dict)
    assert state["TotalEntries"] == 1_000


def test_comet_what_is_not_synced_is_not_shown(edge: Path) -> None:
    last = paths(edge, "*.comet")[-1]
    last.write_bytes(last.read_bytes() + comet.entry(b"pending", 1))
    assert seen(edge, "comet").end() == 1_000
    assert len(list(seen(edge, "comet").read())) == 1_000
    (flaw,) = kin.verify(edge, "comet").flaws
    assert flaw.kind == "torn"
    assert "synced" in flaw.text
    (edge / "shard-0000" / "log-0000000000000099.comet").write_bytes(comet.entry(b"later", 1))
    assert seen(edge, "comet").end() == 1_000


@pytest.mark.parametrize("damage", ["missing", "corrupt", "other files"])
def test_comet_without_an_index_all_files_are_scanned(edge: Path, damage: str) -> None:
    index = edge / "shard-0000" / "index.bin"
    if damage == "missing":
        index.unlink()
    elif damage == "corrupt":
        index.write_bytes(b"garbage" * 10)
    else:
        found = comet_state.decode_index(index.read_bytes())
        assert isinstance(found, comet_state.Index)
        info = comet_state.FileInfo("/x/log-0000000000000077.comet", 0, 1, 0, 1, 0, 0)
        index.write_bytes(comet_state.encode_index(found._replace(files=[info])))
    last = paths(edge, "*.comet")[-1]
    last.write_bytes(last.read_bytes() + comet.entry(b"pending", 1_000))
    found = seen(edge, "comet")
    assert found.end() == 1_001
    assert found[-1].value == b"pending"
    assert found[500].offset == 500
    assert "index" in kinds_of(edge, "comet")


def test_comet_a_crash_during_a_write_ends_the_log_there(edge: Path) -> None:
    (edge / "shard-0000" / "index.bin").unlink()
    last = paths(edge, "*.comet")[-1]
    whole = last.read_bytes()
    for rest in (comet.entry(b"half of it", 1)[:-4], b"\1\0", bytes(500)):
        last.write_bytes(whole + rest)
        found = seen(edge, "comet")
        assert len(list(found.read())) == 1_000
        assert [flaw.kind for flaw in found.flaws] == ["torn"]


def test_comet_a_corrupt_file_is_skipped_and_the_rest_is_kept(edge: Path) -> None:
    first = paths(edge, "*.comet")[0]
    data = bytearray(first.read_bytes())
    index = comet_state.decode_index((edge / "shard-0000" / "index.bin").read_bytes())
    assert isinstance(index, comet_state.Index)
    at = index.nodes[1].position
    data[at : at + 4] = b"\xff\xff\xff\x7f"
    first.write_bytes(data)
    with pytest.raises(Corruption, match="the most"):
        list(seen(edge, "comet").read())
    found = seen(edge, "comet")
    items = list(found.batches(gaps="yield"))
    (gap,) = [item for item in items if isinstance(item, Gap)]
    assert (gap.first, gap.last, gap.reason) == (100, index.files[0].entries - 1, "corrupt")
    left = sum(len(item) for item in items if not isinstance(item, Gap))
    assert left == 1_000 - gap.missed
    assert [flaw.kind for flaw in found.flaws] == ["corrupt"]


@pytest.mark.parametrize("between_entries", [True, False])
def test_comet_a_file_that_lost_its_end_is_damage(edge: Path, between_entries: bool) -> None:
    index = comet_state.decode_index((edge / "shard-0000" / "index.bin").read_bytes())
    assert isinstance(index, comet_state.Index)
    last = paths(edge, "*.comet")[-1]
    node = index.nodes[-1]
    assert node.file == len(index.files) - 1
    last.write_bytes(last.read_bytes()[: node.position + (0 if between_entries else 5)])
    with pytest.raises(Corruption, match="ends before" if between_entries else "not whole"):
        list(seen(edge, "comet").read())
    assert "corrupt" in kinds_of(edge, "comet")


def test_an_import_tells_of_a_torn_end(store: esker.Store, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "orders"
    folder.mkdir(parents=True)
    torn = cursus.message(b"one") + b"\0\0\0\x09half"
    (folder / "partition_0_segment_0.log").write_bytes(torn)
    done = kin.import_(tmp_path / "logs", store, "t", kind="cursus")
    assert [flaw.kind for flaw in done.flaws] == ["torn"]
    assert "not whole" in str(done)


def test_comet_state_and_offsets_that_are_damaged_cost_no_record(edge: Path) -> None:
    (edge / "shard-0000" / "comet.state").write_bytes(b"\xff" * 1024)
    (edge / "shard-0000" / "offsets.state").write_bytes(b"short")
    assert len(list(seen(edge, "comet").read())) == 1_000
    assert kinds_of(edge, "comet") == ["state", "state"]
    assert kin.verify(edge, "comet").ok


def test_comet_a_node_that_leads_nowhere_is_told_and_not_followed(edge: Path) -> None:
    path = edge / "shard-0000" / "index.bin"
    index = comet_state.decode_index(path.read_bytes())
    assert isinstance(index, comet_state.Index)
    nodes = [comet_state.Node(50, 0, 10**9), comet_state.Node(60, 99, 0)]
    path.write_bytes(comet_state.encode_index(index._replace(nodes=nodes)))
    assert seen(edge, "comet").get(70).offset == 70
    assert kinds_of(edge, "comet") == ["index"]


def test_comet_rebuilding_keeps_the_offsets_of_consumers(edge: Path) -> None:
    page = comet_state.encode_offsets({"billing": comet_state.Consumer(42)})
    (edge / "shard-0000" / "offsets.state").write_bytes(page)
    assert comet.rebuild_index(SYSTEM_FILES, str(edge / "shard-0000")).consumers == {"billing": 42}


def test_comet_an_index_may_begin_behind_entries_that_were_retired(edge: Path) -> None:
    path = edge / "shard-0000" / "index.bin"
    index = comet_state.decode_index(path.read_bytes())
    assert isinstance(index, comet_state.Index)
    paths(edge, "*.comet")[0].unlink()
    kept = index._replace(files=index.files[1:], nodes=[])
    path.write_bytes(comet_state.encode_index(kept))
    found = seen(edge, "comet")
    assert found.earliest() == index.files[1].start_entry > 0
    assert next(found.read()).offset == found.earliest()


# ---- AOF2 ----------------------------------------------------------------------------------


@pytest.fixture
def aof(store: esker.Store, tmp_path: Path) -> Path:
    kin.export_topic(filled(store, 1_000), tmp_path / "there", "aof2", segment_bytes=65536)
    return tmp_path / "there"


def test_aof2_layout_and_counts(aof: Path) -> None:
    before = 0
    assert (aof / "archive").is_dir()
    for number, path in enumerate(paths(aof, "*.seg")):
        data = path.read_bytes()
        header = aof2.decode_header(data)
        assert isinstance(header, aof2.Header)
        footer = aof2.decode_footer(data, header)
        assert footer is not None
        assert len(data) == header.max_size == 65536
        assert (header.segment, header.records_before, header.bytes_before) == (
            number, before, number * 65536,
        )  # fmt: skip
        assert path.name == aof2.segment_name(number, number * 65536, header.created)
        found = aof2.scan(memoryview(data), header)
        assert (found.records, found.problem) == (footer.records, "")
        assert found.last_id == footer.last_id
        assert found.last_timestamp == footer.last_timestamp
        assert footer.durable == header.bytes_before + found.end
        before += footer.records
    assert before == 1_000


def test_aof2_a_segment_without_a_footer_is_scanned(aof: Path) -> None:
    for path in paths(aof, "*.seg"):
        data = bytearray(path.read_bytes())
        data[-64:] = bytes(64)
        path.write_bytes(data)
    found = seen(aof, "aof2")
    assert (found.end(), len(list(found.read()))) == (1_000, 1_000)
    assert set(kinds_of(aof, "aof2")) <= {"state"}


def test_aof2_a_torn_tail_ends_the_log_and_damage_before_a_footer_is_damage(aof: Path) -> None:
    last = paths(aof, "*.seg")[-1]
    data = bytearray(last.read_bytes())
    header = aof2.decode_header(data)
    assert isinstance(header, aof2.Header)
    found = aof2.scan(memoryview(data), header)
    data[found.end - 1] ^= 1
    last.write_bytes(data)
    with pytest.raises(Corruption, match="checksum"):
        list(seen(aof, "aof2").read())
    assert "corrupt" in kinds_of(aof, "aof2")
    data[-64:] = bytes(64)
    last.write_bytes(data)
    topic = seen(aof, "aof2")
    assert len(list(topic.read())) == topic.end() == 999
    assert [flaw.kind for flaw in topic.flaws] == ["torn"]
    assert kinds_of(aof, "aof2") == ["torn"]


def test_aof2_every_byte_of_a_tail_may_be_lost(aof: Path) -> None:
    last = paths(aof, "*.seg")[-1]
    data = last.read_bytes()
    header = aof2.decode_header(data)
    assert isinstance(header, aof2.Header)
    end = aof2.scan(memoryview(data), header).end
    ends = [end, aof2.parts_of(aof2.scan(memoryview(data), header).last_id)[1]]
    for cut in range(ends[1], end, 7):
        left = data[:cut].ljust(header.max_size, b"\0")
        scanned = aof2.scan(memoryview(left), header)
        assert scanned.end == ends[1]


def test_aof2_an_archived_segment_is_read_and_the_hot_copy_is_preferred(aof: Path) -> None:
    first, second, *_ = paths(aof, "*.seg")
    first.rename(aof / "archive" / aof2.archive_name(0, 77))
    (aof / "archive" / aof2.archive_name(1, 78)).write_bytes(b"not looked at")
    assert len(list(seen(aof, "aof2").read())) == 1_000
    second.unlink()
    with pytest.raises(Corruption, match="header"):
        list(seen(aof, "aof2").read())


def test_aof2_a_segment_made_in_advance_is_no_flaw(aof: Path) -> None:
    number = len(paths(aof, "*.seg"))
    name = aof2.segment_name(number, number * 65536, 5)
    (aof / "segments" / name).write_bytes(bytes(65536))
    found = seen(aof, "aof2")
    assert (found.end(), len(list(found.read()))) == (1_000, 1_000)
    assert kin.verify(aof, "aof2").flaws == ()


def test_aof2_wrong_names_counts_and_checksums_are_told(aof: Path) -> None:
    (aof / "segments" / "temporary").write_bytes(b"")
    first = paths(aof, "*.seg")[0]
    data = bytearray(first.read_bytes())
    header = aof2.decode_header(data)
    assert isinstance(header, aof2.Header)
    footer = aof2.decode_footer(data, header)
    assert footer is not None
    data[-64:] = aof2.encode_footer(footer._replace(records=footer.records + 1, checksum=1))
    first.write_bytes(data)
    assert kinds_of(aof, "aof2") == ["name", "corrupt", "state"]
    other = aof / "segments" / aof2.segment_name(99, 0, 0)
    first.rename(other)
    assert any(
        "it says that it is segment 0" in flaw.text for flaw in kin.verify(aof, "aof2").flaws
    )


def test_aof2_a_newer_version_is_not_guessed_at(aof: Path) -> None:
    first = paths(aof, "*.seg")[0]
    data = bytearray(first.read_bytes())
    data[4] = 2
    first.write_bytes(data)
    with pytest.raises(Corruption, match="version 2"):
        list(seen(aof, "aof2").read())


# ---- what verify says ----------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_told(rust: Path) -> None:
    log = paths(rust, "*.log")[0]
    log.unlink()
    log.symlink_to(paths(rust, "*.log")[0])
    told = kin.verify(f"kin+rustlog://{rust}")
    assert told.flaws[0].kind == "corrupt"
    assert "cannot be read" in str(told)


def test_a_part_that_is_asked_for_from_its_middle_says_the_same(rust: Path) -> None:
    log = paths(rust, "*.log")[0]
    data, kind = memoryview(log.read_bytes()), kin.KINDS["rustlog"]
    part = Part(str(log), 0, False)
    at, first = kind.seek(SYSTEM_FILES, part, data, 0, 150)
    assert first == 100
    (piece, *_) = kind.pieces(data, part, at, first)
    assert not isinstance(piece, kin.Flaw)
    assert piece.first == 100
