"""Arrow in, Arrow out: every column, every kind of input, every library that takes our streams."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import esker
from esker.format.columns import HEADER_TYPE
from tests.helpers import wait_until

EVERY_KIND = True  # of store: see tests/conftest.py

NOW = 1_794_736_800_000_000
FULL = {
    "value": pa.array([b"a", b"", b"c"], pa.binary()),
    "key": pa.array([b"k", None, b""], pa.binary()),
    "tag": pa.array([None, "t", ""], pa.string()),
    "node": pa.array(["n", None, None], pa.string()),
    "headers": pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "i", "value": b""}], None, []], HEADER_TYPE
    ),
    "timestamp": pa.array([NOW, NOW + 1, NOW - 5], pa.timestamp("us", "UTC")),
}
RECORDS = [
    esker.Record(b"a", b"k", None, "n", {"h": b"1", "i": b""}, NOW, 0),
    esker.Record(b"", None, "t", None, None, NOW + 1, 1),
    esker.Record(b"c", b"", "", None, None, NOW - 5, 2),
]


LARGE = b"x" * 300_000


def values(topic: esker.Topic) -> list[bytes]:
    return [record.value for record in topic.read()]


# ---- in --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pa.table(FULL),
        pa.record_batch(FULL),
        lambda: pa.table(FULL).to_reader(),  # which is read once
        pa.concat_tables([pa.table(FULL).slice(0, 1), pa.table(FULL).slice(1, 2)]),
        pa.table(FULL).select(["timestamp", "headers", "value", "tag", "key", "node"]),
        pl.DataFrame(pa.table(FULL)),
        pa.table(FULL).to_struct_array(),
        pa.concat_tables([pa.table(FULL)] * 3).slice(3, 3),
    ],
    ids=["table", "batch", "reader", "chunks", "other order", "polars", "structs", "slice"],
)
def test_all_columns_are_stored_whatever_holds_them(store: esker.Store, data: Any) -> None:
    span = store["t"].append_arrow(data() if callable(data) else data)
    assert (span.first, span.count) == (0, 3)
    assert list(store["t"].read()) == RECORDS


@pytest.mark.parametrize(
    "data",
    [
        pa.array([b"x", b"y"]),
        pa.array(["x", "y"]),
        pa.chunked_array([[b"x"], [], [b"y"]]),
        pa.table({"value": [b"x", b"y"]}),
        pa.table({"value": ["x", "y"]}),
        pl.DataFrame({"value": [b"x", b"y"]}),
        pl.DataFrame({"value": ["x", "y"]}),
        pl.Series("any", [b"x", b"y"]),
        pd.DataFrame({"value": [b"x", b"y"]}),
    ],
    ids=["array", "text", "chunks", "table", "text table", "polars", "polars text", "series",
         "pandas"],
)  # fmt: skip
def test_values_alone_are_enough(store: esker.Store, data: Any) -> None:
    store["t"].append_arrow(data)
    assert values(store["t"]) == [b"x", b"y"]
    assert store["t"][0].key is None


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(),
     pa.string_view(), pa.binary(2), pa.dictionary(pa.int32(), pa.string()),
     pa.dictionary(pa.int8(), pa.binary())],
    ids=str,
)  # fmt: skip
def test_every_kind_of_bytes_and_text_is_taken(store: esker.Store, kind: Any) -> None:
    base = pa.array([b"ab", b"cd", b"ab"] if kind == pa.binary(2) else ["ab", "cd", "ab"])
    if pa.types.is_dictionary(kind):
        column = base.cast(kind.value_type).dictionary_encode()
    else:
        column = base.cast(kind)
    nulled = pa.concat_arrays([column.slice(0, 2), pa.nulls(1, column.type)])
    store["t"].append_arrow(
        pa.table({"value": column, "key": nulled, "tag": nulled, "node": nulled})
    )
    assert [(r.value, r.key, r.tag, r.node) for r in store["t"].read()] == [
        (b"ab", b"ab", "ab", "ab"),
        (b"cd", b"cd", "cd", "cd"),
        (b"ab", None, None, None),
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOW, NOW + 1]),
        pa.array([NOW, NOW + 1], pa.uint64()),
        pa.array([NOW, NOW + 1], pa.timestamp("us")),
        pa.array([NOW, NOW + 1], pa.timestamp("us", "Europe/Vienna")),
        pa.array([NOW * 1000, NOW * 1000 + 1999], pa.timestamp("ns")),
        pa.array([NOW * 1000, NOW * 1000 + 1999], pa.timestamp("ns", "UTC")),
    ],
    ids=lambda column: str(column.type),
)
def test_timestamps_come_in_every_unit(store: esker.Store, column: Any) -> None:
    store["t"].append_arrow(pa.table({"value": [b"x", b"y"], "timestamp": column}))
    assert [record.timestamp for record in store["t"].read()] == [NOW, NOW + 1]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms"), pa.date32(), pa.date64()])
def test_coarser_times_are_widened(store: esker.Store, kind: Any) -> None:
    day = datetime(2026, 11, 15, tzinfo=UTC)
    column = pa.array([date(2026, 11, 15), None], pa.date32()).cast(kind)
    store["t"].append_arrow(pa.table({"value": [b"x", b"y"], "timestamp": column}))
    first, second = store["t"].read()
    assert first.time == day
    assert second.time > day, "a null is filled with the time of the append"


@pytest.mark.directory("looks at how columns are stored")
def test_columns_of_nulls_are_as_if_they_were_not_there(store: esker.Store) -> None:
    nulls = pa.nulls(2)
    table = pa.table({name: nulls for name in FULL if name != "value"} | {"value": [b"x", b"y"]})
    store["t"].append_arrow(table)
    (batch,) = store["t"].batches()
    assert batch.columns.bits == 0
    assert values(store["t"]) == [b"x", b"y"]


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", b"1")], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array([[("a", "1")], None, []], pa.map_(pa.large_string(), pa.string())),
        pl.Series([[{"key": "a", "value": b"1"}], None, []]).to_arrow(),
    ],
    ids=["map", "map of text", "polars"],
)
def test_headers_may_be_a_map_or_a_list_of_pairs(store: esker.Store, headers: Any) -> None:
    store["t"].append_arrow(pa.table({"value": [b"x", b"y", b"z"], "headers": headers}))
    assert [record.headers for record in store["t"].read()] == [{"a": b"1"}, None, None]


def test_what_was_read_can_be_appended_elsewhere(store: esker.Store) -> None:
    source = store.create("source", shards=2)
    source.append_arrow(pa.table(FULL))
    store["slice"].append_arrow(source[:])
    for batch in source.batches():
        store["batches"].append_arrow(batch)
        store["arrow"].append_arrow(batch.arrow)

    def fields(topic: esker.Topic) -> list[tuple[Any, ...]]:
        return [(r.value, r.key, r.tag, r.node, r.headers, r.timestamp) for r in topic.read()]

    for name in ("slice", "batches", "arrow"):
        assert fields(store[name]) == fields(source)


def test_a_large_table_is_written_in_parts_and_all_of_it(store: esker.Store) -> None:
    topic = store.create("t", segment_bytes="256KiB")
    table = pa.table({"value": [b"%d" % n + b"x" * 1000 for n in range(2000)]})
    span = topic.append_arrow(table, wait=True)
    assert (span.first, span.count) == (0, 2000)
    assert topic.counters()["segments_rolled"] >= 3
    assert values(topic) == table["value"].to_pylist()


def test_many_chunks_are_one_batch(store: esker.Store) -> None:
    chunks = pa.chunked_array([[b"%d" % n] * (n % 3) for n in range(100)], pa.binary())
    span = store["t"].append_arrow(pa.table({"value": chunks}))
    assert span.count == len(chunks)
    assert values(store["t"]) == chunks.to_pylist()


def test_an_empty_table_appends_nothing(store: esker.Store) -> None:
    for empty in (pa.table({"value": pa.array([], pa.binary())}), pa.array([], pa.binary())):
        assert store["t"].append_arrow(empty).count == 0
    assert list(store) == []


class NotArrow:
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return "nonsense"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"x", "append_arrow takes"),
        (["x"], "append_arrow takes"),
        ({"value": [b"x"]}, "append_arrow takes"),
        (None, "append_arrow takes"),
        (NotArrow(), "cannot be read"),
        (pa.table({"data": [b"x"]}), "no column 'value'"),
        (pa.table({"value": [b"x"], "colour": ["red"]}), "unknown column 'colour'"),
        (pa.table({"value": [b"x", None]}), "1 nulls"),
        (pa.array([b"x", None]), "1 nulls"),
        (pa.table({"value": [1]}), "encode it first"),
        (pa.array([1.5]), "encode it first"),
        (pa.table({"value": [b"x"], "key": [7]}), "column 'key'"),
        (pa.table({"value": [b"x"], "tag": [7]}), "column 'tag'"),
        (pa.table({"value": [b"x"], "tag": [b"\xff"]}), "column 'tag'"),
        (pa.table({"value": [b"x"], "node": [True]}), "column 'node'"),
        (pa.table({"value": [b"x"], "headers": ["h"]}), "column 'headers'"),
        (pa.table({"value": [b"x"], "timestamp": ["today"]}), "column 'timestamp'"),
        (pa.table({"value": [b"x"], "timestamp": [1.5]}), "column 'timestamp'"),
        (pa.table({"value": [b"x"], "timestamp": [True]}), "column 'timestamp'"),
        (pa.table({"value": [b"x"], "timestamp": pa.array([2**63], pa.uint64())}), "timestamp"),
        (pa.table([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"]), "two columns"),
        (
            pa.table({"value": [b"x"], "headers": pa.array([[{"key": None}]], HEADER_TYPE)}),
            "null name or value",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(
    store: esker.Store, data: Any, told: str
) -> None:
    with pytest.raises(esker.InvalidRecord, match=told):
        store["t"].append_arrow(data)
    assert list(store) == []


@pytest.mark.parametrize(
    "column",
    [
        {"value": [b"x" * 101]},
        {"value": [b""], "key": [b"k" * 70_000]},
        {"value": [b""], "tag": ["t" * 257]},
        {"value": [b""], "node": ["n" * 129]},
        {"value": [b""], "headers": pa.array([[{"key": "h", "value": b"x"}] * 65], HEADER_TYPE)},
        {"value": [b""], "headers": pa.array([[{"key": "h", "value": LARGE}]], HEADER_TYPE)},
    ],
    ids=["value", "key", "tag", "node", "too many headers", "large header"],
)
def test_limits_hold_for_arrow_as_for_python(store: esker.Store, column: Any) -> None:
    topic = store.create("t", max_record_bytes=100)
    with pytest.raises(esker.RecordTooLarge):
        topic.append_arrow(pa.table(column))
    assert len(topic) == 0


def test_one_bad_batch_of_a_table_refuses_the_table(store: esker.Store) -> None:
    chunks = pa.chunked_array([[b"good"], [None], [b"good"]], pa.binary())
    with pytest.raises(esker.InvalidRecord):
        store["t"].append_arrow(pa.table({"value": chunks}))
    assert list(store) == []


# ---- out -------------------------------------------------------------------------------------


@pytest.fixture
def topic(store: esker.Store) -> esker.Topic:
    """Three records with every column, then two without any; sealed and not."""
    made = store.create("topic", segment_records=3)
    made.append_arrow(pa.table(FULL))
    made.append_many([b"d", b"e"])
    return made


def test_a_slice_is_a_pyarrow_table(topic: esker.Topic) -> None:
    for table in (topic[:].to_arrow(), pa.table(topic[:]), topic[:].reader().read_all()):
        assert table.schema == esker.SCHEMA
        assert table["value"].to_pylist() == [b"a", b"", b"c", b"d", b"e"]
        assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
        assert table["shard"].to_pylist() == [0] * 5
        assert table["key"].to_pylist() == [b"k", None, b"", None, None]
        assert table["tag"].to_pylist()[:3] == [None, "t", ""]
        assert table["timestamp"][0].as_py() == datetime(2026, 11, 15, 10, tzinfo=UTC)
        assert table["headers"][0].as_py() == [
            {"key": "h", "value": b"1"},
            {"key": "i", "value": b""},
        ]
        table.validate(full=True)


def test_a_batch_is_a_pyarrow_batch(topic: esker.Topic) -> None:
    for batch in topic.batches():
        arrow = batch.arrow
        assert arrow.schema == esker.SCHEMA
        assert arrow["offset"].to_pylist() == list(range(batch.first, batch.next_offset))
        assert pa.record_batch(batch) == arrow
        assert pa.table(batch).to_batches() == [arrow]
        assert len(batch) == arrow.num_rows == len(batch.records()) == len(batch.values)
        arrow.validate(full=True)


def test_polars_takes_a_slice_and_a_batch(topic: esker.Topic) -> None:
    frame = pl.DataFrame(topic[1:4])
    assert frame["value"].to_list() == [b"", b"c", b"d"]
    assert frame["offset"].to_list() == [1, 2, 3]
    assert frame["tag"].to_list() == ["t", "", None]
    assert pl.DataFrame(next(topic.batches()))["value"].to_list()[0] == b"a"
    assert pl.from_arrow(topic[:].to_arrow()).height == 5  # type: ignore[union-attr]


def test_pandas_takes_a_slice(topic: esker.Topic) -> None:
    frame = topic[1:4].to_arrow().to_pandas()
    assert list(frame["value"]) == [b"", b"c", b"d"]
    assert isinstance(frame["timestamp"].dtype, pd.DatetimeTZDtype)
    if hasattr(pd.DataFrame, "from_arrow"):
        again = pd.DataFrame.from_arrow(topic[1:4])
        assert list(again["value"]) == [b"", b"c", b"d"]


def test_duckdb_takes_a_slice(topic: esker.Topic) -> None:
    part = topic[1:4].reader()
    found = duckdb.sql('select "offset", value, tag from part order by 1').fetchall()
    assert found == [(1, b"", "t"), (2, b"c", ""), (3, b"d", None)]
    del part
    lazy = topic[:]
    connection = duckdb.connect()
    try:
        assert connection.execute("select count(*), min(tag) from lazy").fetchall() == [(5, "")]
        assert connection.execute('select max("offset") from lazy').fetchall() == [(4,)]
    finally:
        connection.close()
    del lazy


def test_an_empty_slice_is_an_empty_table(topic: esker.Topic) -> None:
    assert topic[5:].to_arrow().num_rows == 0
    assert pl.DataFrame(topic[5:]).height == 0
    assert topic[5:].to_arrow().schema == esker.SCHEMA


def test_a_slice_over_shards_names_them(store: esker.Store) -> None:
    topic = store.create("t", shards=3)
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(30)])
    table = topic[:].to_arrow()
    for value, shard in zip(table["key"].to_pylist(), table["shard"].to_pylist(), strict=True):
        assert shard == topic.shard_of(value)
    assert topic.slice(shard=1).to_arrow()["shard"].unique().to_pylist() == [1]


def test_sealed_records_stand_on_the_mapped_file(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_bytes="1MiB")
        for _ in range(3):
            topic.append_arrow(pa.table({"value": [b"x" * 1000] * 600}))
        wait_until(lambda: topic.counters()["seals"] >= 1, "the sealer")
    with esker.open(tmp_path / "data", mode="r") as store:
        before = pa.total_allocated_bytes()
        batches = list(store["t"].batches(stop=600))
        assert sum(len(batch) for batch in batches) == 600
        assert pa.total_allocated_bytes() - before < 100_000, "values were copied"
        held = batches[0].columns.values
    assert held[0].as_py() == b"x" * 1000, "a batch outlives its store"


def test_batches_of_a_thousand_stand_on_the_mapped_file_each_by_itself(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=5000)
        for n in range(6):
            topic.append_many([b"%d" % n * 110] * 1000)
        store.tick()
    with esker.open(tmp_path / "data", mode="r") as store:
        before = pa.total_allocated_bytes()
        batches = list(store["t"].batches(stop=5000))
        assert [len(batch) for batch in batches] == [1000] * 5
        assert pa.total_allocated_bytes() - before < 10_000, "values were copied"


def test_a_batch_outlives_the_mapping_it_stands_on(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", mapped_bytes=0) as store:
        topic = store.create("t", segment_bytes="4KiB")
        for n in range(200):
            topic.append_many([b"%03d" % n * 10] * 5)
        topic.sync()
        wait_until(lambda: topic.counters()["seals"] > 3, "the sealer")
        batches = list(topic.batches())
        assert store.statistics()["map_evictions"] > 0
        found = [value for batch in batches for value in batch.values]
        assert found == [b"%03d" % n * 10 for n in range(200) for _ in range(5)]


def test_columns_that_are_not_there_take_little_room_in_a_stream(store: esker.Store) -> None:
    """Nulls of a list may have 64 KiB of nothing below them, which a stream would carry."""
    store["t"].append_many([b"x"] * 1_000, wait=True)
    (batch,) = store["t"].batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, esker.SCHEMA) as writer:
        writer.write_batch(batch.arrow)
    assert sink.getvalue().size < 50_000
    assert batch.arrow.column("headers").to_pylist() == [None] * 1_000
    batch.arrow.validate(full=True)


def test_a_buffer_of_offsets_may_end_with_a_part_of_a_number(tmp_path: Path) -> None:
    _, offsets, data = pa.array([b"a", b"bc"], pa.binary()).buffers()
    longer = pa.py_buffer(offsets.to_pybytes()[:12] + b"\0")
    values = pa.Array.from_buffers(pa.binary(), 2, [None, longer, data])
    with esker.open(tmp_path / "d") as store:
        store["t"].append_arrow(pa.table({"value": values}))
        store["t"].append_arrow(pa.table({"value": values.slice(1)}))
        assert [record.value for record in store["t"].read()] == [b"a", b"bc", b"bc"]
