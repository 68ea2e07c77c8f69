"""`export` and `import`: a topic as files, and files as a topic."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import esker
from esker.errors import InvalidOption, InvalidRecord, TopicNotFound
from esker.spark.jobs import Progress, export, exporting, import_
from esker.spark.sink import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000_000
COUNT = 3_000


def fill(path: Path, *, binary: bool = False, count: int = COUNT) -> None:
    """A topic of three shards whose records have everything, and odd texts."""
    chance = random.Random(5)
    odd = [
        "",
        "plain",
        'quo"te',
        "a,b",
        "line\nbreak",
        "cr\r\nlf",
        "ünïcödé ☃",
        "null",
        "\\",
        "\t ",
    ]
    with esker.open(path) as store:
        topic = store.create("t", shards=3)
        for first in range(0, count, 100):
            topic.append_many([
                esker.Record(
                    chance.randbytes(number % 50) if binary else odd[number % 10].encode(),
                    key=None if number % 4 == 0 else b"key %d" % (number % 17),
                    tag=odd[number % 10] if number % 3 else None,
                    node="eu" if number % 5 else None,
                    headers={"h": b"%d" % number, odd[number % 9]: b""} if number % 2 else None,
                    timestamp=T0 + number * 1_000_003,
                )
                for number in range(first, first + 100)
            ])  # fmt: skip


def contents(path: Path, topic: str = "t") -> list[list[tuple[Any, ...]]]:
    """The records of each shard, in order, without their offsets."""
    with esker.open(path, "r") as store:
        return [
            [
                (r.value, r.key, r.tag, r.node, dict(r.headers or {}), r.timestamp)
                for r in store[topic].read(shard=shard)
            ]
            for shard in range(store[topic].shards)
        ]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "data"
    fill(path)
    return path


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blobs") / "data"
    fill(path, binary=True)
    return path


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("kind", ["texts", "blobs"])
def test_a_topic_comes_back_from_files_as_it_was(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, format: str, kind: str
) -> None:
    data: Path = request.getfixturevalue(kind)
    coded = "base64" if kind == "blobs" and format in ("jsonl", "csv") else None
    to = tmp_path / f"t.{format}"
    found = export(spark, str(data), "t", str(to), files=5, value_format=coded)
    assert (found.rows, found.format, found.gaps) == (COUNT, format, [])
    assert found.files >= 5
    assert parts(to) == ["_SUCCESS", *(f"part-{n:05d}.{format}" for n in range(found.files))]
    assert found.bytes == sum(p.stat().st_size for p in to.glob("part-*"))
    back = import_(spark, str(to), str(tmp_path / "copy"), "t")
    assert (back.rows, back.bad, back.files, back.done_before) == (COUNT, 0, found.files, False)
    assert contents(tmp_path / "copy") == contents(data)
    assert parts(tmp_path) == ["copy", to.name]


def test_the_marker_tells_what_is_in_the_files(
    spark: SparkSession, texts: Path, tmp_path: Path
) -> None:
    export(spark, str(texts), "t", str(tmp_path / "t.parquet"), files=3)
    marker = json.loads((tmp_path / "t.parquet" / "_SUCCESS").read_text())
    assert (marker["rows"], marker["topic"], marker["shards"]) == (COUNT, "t", 3)
    with esker.open(texts, "r") as store:
        ends = {str(shard): store["t"].end(shard) for shard in range(3)}
    assert {shard: each["last"] + 1 for shard, each in marker["ranges"].items()} == ends
    assert {shard: each["rows"] for shard, each in marker["ranges"].items()} == ends
    frame = spark.read.parquet(str(tmp_path / "t.parquet"))
    assert frame.select("partition", "offset").distinct().count() == COUNT


def test_json_values_are_part_of_the_line(spark: SparkSession, tmp_path: Path) -> None:
    values = [b'{"a": 1, "b": [1.50, null]}', b'"text"', b"17", b'{\n  "c": "x\\ny"\n}', b"null"]
    with esker.open(tmp_path / "data") as store:
        store.create("t")
        store["t"].append_many([esker.Record(v, timestamp=T0 + n) for n, v in enumerate(values)])
    to = tmp_path / "t.jsonl"
    export(spark, str(tmp_path / "data"), "t", str(to), value_format="json")
    (file,) = to.glob("part-*")
    lines = file.read_text().splitlines()
    assert lines[0] == (
        '{"partition":0,"offset":0,"timestamp":"2023-11-14T22:13:20.000000Z",'
        '"value":{"a": 1, "b": [1.50, null]}}'
    )
    assert json.loads(lines[3])["value"] == {"c": "x\ny"}
    import_(spark, str(to), str(tmp_path / "copy"), "t")
    back = [each[0] for each in contents(tmp_path / "copy")[0]]
    assert back[:3] == values[:3]
    assert [json.loads(each) for each in back] == [json.loads(each) for each in values]


def test_bytes_that_are_no_text_are_never_bent_into_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"fine"] * 7 + [b"\xff\xfe"] + [b"fine"])
        store["k"].append(b"fine", key=b"\xff")
        store["h"].append(b"fine", headers={"h": b"\xff"})
        store["j"].append(b"{")
    for topic, format, coded, told in [
        ("t", "jsonl", None, "the value at offset 7 of shard 0 is not UTF-8"),
        ("t", "csv", None, "the value at offset 7 of shard 0 is not UTF-8"),
        ("t", "jsonl", "json", "the value at offset 7 of shard 0 is not UTF-8"),
        ("k", "csv", None, "the key at offset 0 of shard 0 is not UTF-8"),
        ("h", "csv", None, "the header at offset 0 of shard 0 is not UTF-8"),
        ("j", "jsonl", "json", "the value at offset 0 of shard 0 is not JSON"),
    ]:
        with pytest.raises(InvalidRecord, match=told):
            export(
                spark, str(tmp_path / "data"), topic, str(tmp_path / f"x.{format}"),
                value_format=coded,
            )  # fmt: skip
        assert parts(tmp_path) == ["data"]


# ---- which records -----------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_condition_chooses_records(
    spark: SparkSession, texts: Path, tmp_path: Path, format: str
) -> None:
    found = export(
        spark, str(texts), "t", str(tmp_path / f"t.{format}"), files=4,
        where="node = 'eu' AND cast(value AS string) = 'plain'",
    )  # fmt: skip
    import_(spark, str(tmp_path / f"t.{format}"), str(tmp_path / "copy"), "t")
    wanted = [
        [row for row in shard if row[3] == "eu" and row[0] == b"plain"] for shard in contents(texts)
    ]
    assert contents(tmp_path / "copy") == wanted
    assert found.rows == sum(map(len, wanted)) > 0
    nothing = export(spark, str(texts), "t", str(tmp_path / "no.csv"), where="offset < 0")
    assert (nothing.rows, nothing.files) == (0, 0)
    with pytest.raises(InvalidOption, match=r"where='nodes = 1'.*Columns: partition, offset"):
        export(spark, str(texts), "t", str(tmp_path / "x.csv"), where="nodes = 1")


def test_what_fails_behind_a_condition_is_told_too(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"fine", b"\xff"])
    with pytest.raises(InvalidRecord, match="offset 1 of shard 0 is not UTF-8"):
        export(spark, str(tmp_path / "data"), "t", str(tmp_path / "x.csv"), where="offset >= 0")
    assert parts(tmp_path) == ["data"]
    export(spark, str(tmp_path / "data"), "t", str(tmp_path / "x.csv"), where="offset < 1")


def test_start_end_and_columns_narrow_what_is_written(
    spark: SparkSession, texts: Path, tmp_path: Path
) -> None:
    found = export(
        spark, str(texts), "t", str(tmp_path / "t.parquet"), start="100", end="300",
        columns="offset, value",
    )  # fmt: skip
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.schema == pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    assert sorted(table["offset"].to_pylist()) == sorted([*range(100, 300)] * 3)
    assert [(r.shard, r.first, r.last, r.rows) for r in found.ranges] == [
        (shard, 100, 299, 200) for shard in range(3)
    ]
    found = export(spark, str(texts), "t", str(tmp_path / "u.csv"), start="-10")
    assert found.rows == 30
    at = "@2023-11-14T22:13:20.000000Z"
    assert export(spark, str(texts), "t", str(tmp_path / "v.csv"), start=at).rows == COUNT


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"to": "t"}, "which format"),
        ({"format": "xml"}, "format=xml"),
        ({"columns": "vlaue"}, "did you mean 'value'"),
        ({"value_format": "hex"}, "value_format=hex"),
        ({"to": "t.parquet", "value_format": "base64"}, "holds bytes as is"),
        ({"files": 0}, "files=0"),
        ({"start": "sometime"}, "startingOffsets"),
    ],
)
def test_what_cannot_be_exported_is_told(
    spark: SparkSession, texts: Path, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    to = tmp_path / given.pop("to", "t.jsonl")
    with pytest.raises(InvalidOption, match=told):
        export(spark, str(texts), "t", str(to), **given)
    assert parts(tmp_path) == []


def test_an_unknown_topic_and_a_target_that_is_there_are_refused(
    spark: SparkSession, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(TopicNotFound):
        export(spark, str(texts), "u", str(tmp_path / "t.csv"))
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InvalidOption, match="is there already"):
        export(spark, str(texts), "t", str(tmp_path / "t.csv"))


def test_gaps_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_bytes=4096)
        for number in range(300):
            topic.append(b"record %03d " % number * 5, wait=True)
            store.tick()
    victim = sorted((tmp_path / "data").rglob("*.seg"))[2]
    content = bytearray(victim.read_bytes())
    content[700] ^= 1
    victim.write_bytes(content)
    esker.repair(tmp_path / "data")
    for where in (None, "offset >= 0"):
        to = tmp_path / f"{where}.jsonl"
        found = export(spark, str(tmp_path / "data"), "t", str(to), where=where)
        (gap,) = found.gaps
        assert (gap.topic, gap.shard, gap.reason) == ("t", 0, "corrupt")
        assert found.rows == 300 - gap.missed < 300
        assert json.loads((to / "_SUCCESS").read_text())["gaps"][0]["first"] == gap.first
        assert f"missing: topic 't' shard 0: offsets {gap.first}" in str(found)


@pytest.mark.damages
@pytest.mark.parametrize("where", [None, "offset >= 0"])
def test_damage_that_nobody_has_repaired_ends_it(
    spark: SparkSession, tmp_path: Path, where: str | None
) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"record %d" % number for number in range(100)])
    (log,) = (tmp_path / "data").rglob("*.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"record 50")] ^= 1
    log.write_bytes(content)
    with pytest.raises(esker.EskerError, match=r"esker\.verify"):
        export(spark, str(tmp_path / "data"), "t", str(tmp_path / "t.csv"), where=where)
    assert parts(tmp_path) == ["data"]


# ---- what is interrupted -----------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_an_export_that_is_stopped_leaves_nothing_that_looks_whole(
    spark: SparkSession, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if killed:  # nobody cleans up behind a process that is killed
            patched.setattr(exporting, "_discard", lambda folder: None)
        with pytest.raises(KeyboardInterrupt):
            export(spark, str(texts), "t", str(tmp_path / "t.csv"), files=12, progress=stop)
    assert not (tmp_path / "t.csv").exists()
    assert not list(tmp_path.rglob("_SUCCESS"))
    assert len(parts(tmp_path)) == killed
    assert export(spark, str(texts), "t", str(tmp_path / "t.csv")).rows == COUNT


def test_an_import_is_all_or_nothing_and_done_once(
    spark: SparkSession, texts: Path, tmp_path: Path
) -> None:
    source, copy = tmp_path / "t.jsonl", tmp_path / "copy"
    export(spark, str(texts), "t", str(source), files=12)

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_(spark, str(source), str(copy), "t", progress=stop)
    assert contents(copy) == [[], [], []]
    assert not list(copy.rglob("*.staged"))
    assert not import_(spark, str(source), str(copy), "t").done_before
    again = import_(spark, str(source), str(copy), "t")
    assert again.done_before
    assert again.rows == 0
    assert "was imported into t before: nothing was done" in str(again)
    assert contents(copy) == contents(texts)
    assert not import_(spark, str(source), str(copy), "other").done_before


def test_of_two_imports_at_once_one_counts(
    spark: SparkSession, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = tmp_path / "t.arrow", tmp_path / "copy"
    export(spark, str(texts), "t", str(source), files=2)
    prepare = Target.prepare

    def early(target: Target) -> None:
        """As if the other one had not yet committed."""
        prepare(target)
        target.done = False

    import_(spark, str(source), str(copy), "t")
    monkeypatch.setattr(Target, "prepare", early)
    found = import_(spark, str(source), str(copy), "t")
    assert found.done_before
    assert found.rows == 0
    assert contents(copy) == contents(texts)
    assert not list(copy.rglob("*.staged"))


def test_an_export_that_lost_a_file_or_a_row_is_not_imported(
    spark: SparkSession, texts: Path, tmp_path: Path
) -> None:
    source = tmp_path / "t.jsonl"
    export(spark, str(texts), "t", str(source), files=2)
    file = source / "part-00000.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(InvalidRecord, match="holds 2,999 records, the export wrote 3,000"):
        import_(spark, str(source), str(tmp_path / "copy"), "t")
    file.unlink()
    with pytest.raises(InvalidOption, match="files, the export wrote"):
        import_(spark, str(source), str(tmp_path / "copy"), "t")
    assert contents(tmp_path / "copy") == [[], [], []]


# ---- files of other programs -------------------------------------------------------------------


def test_whole_rows_become_json(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,amount,at\nada,5,2026-11-15T10:00:00Z\nbob,,\n")
    (tmp_path / "b.jsonl").write_text('{"user": "ada", "n": 1.50}\n\n{"user": null}\n')
    pq.write_table(pa.table({"user": ["ada"], "n": [7]}), tmp_path / "c.parquet")
    store = tmp_path / "data"
    import_(
        spark, str(tmp_path / "a.csv"), str(store), "a", key_column="user",
        timestamp_column="at", tag_column="amount",
    )  # fmt: skip
    with esker.open(store, "r") as opened:
        ada, bob = opened["a"].read()
    assert (ada.key, ada.tag) == (b"ada", "5")
    assert ada.time.isoformat() == "2026-11-15T10:00:00+00:00"
    assert ada.json() == {"user": "ada", "amount": "5", "at": "2026-11-15T10:00:00Z"}
    assert bob.json() == {"user": "bob", "amount": None, "at": None}
    import_(spark, str(tmp_path / "b.jsonl"), str(store), "b", key_column="user")
    rows = [(row[0], row[1]) for row in contents(store, "b")[0]]
    assert rows == [(b'{"user": "ada", "n": 1.50}', b"ada"), (b'{"user": null}', None)]
    import_(spark, str(tmp_path / "c.parquet"), str(store), "c", key_column="n")
    assert [row[:2] for row in contents(store, "c")[0]] == [(b'{"user":"ada","n":7}', b"7")]


BAD = {
    "jsonl": (
        '{"value": "one"}\n{"value": \n{"value": "two"}\n{"key": "k"}\n'
        '{"value": "x", "timestamp": "soon"}\n',
        [2, 4, 5],
    ),
    "csv": (
        "value,timestamp\none,2026-11-15T10:00:00Z\na,b,c\ntwo,2026-11-15 10:00\n"
        ",2026-11-15T10:00:00Z\nx,soon\n",
        [3, 5, 6],
    ),
}


@pytest.mark.parametrize("format", BAD)
def test_bad_rows_fail_with_their_place_or_are_counted(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    text, lines = BAD[format]
    source = tmp_path / f"x.{format}"
    source.write_text(text)
    with pytest.raises(InvalidRecord, match=rf"x\.{format} line {lines[0]}: .*on_bad=skip"):
        import_(spark, str(source), str(tmp_path / "data"), "t")
    assert contents(tmp_path / "data") == [[]]
    found = import_(spark, str(source), str(tmp_path / "data"), "t", on_bad="skip")
    assert (found.rows, found.bad) == (2, 3)
    named = sorted(int(row.split("line ")[1].split(":")[0]) for row in found.bad_rows)
    assert named == lines
    assert [row[0] for row in contents(tmp_path / "data")[0]] == [b"one", b"two"]
    assert "3 bad rows were left out" in str(found)


def test_what_cannot_be_imported_is_told(spark: SparkSession, tmp_path: Path) -> None:
    store = str(tmp_path / "data")
    (tmp_path / "x.dat").write_text("x")
    (tmp_path / "link.csv").symlink_to(tmp_path / "x.csv")
    (tmp_path / "nested" / "inner").mkdir(parents=True)
    (tmp_path / "x.csv").write_text("value,partition\nx,5\n")
    (tmp_path / "y.csv").write_text("a\nx\n")
    (tmp_path / "x.parquet").write_text("x")
    for name, given, told in [
        ("gone", {}, "no file or directory"),
        ("x.dat", {}, "which format"),
        ("link.csv", {}, "is a symbolic link"),
        ("nested", {}, "inner is not a file"),
        ("x.csv", {"on_bad": "panic"}, "on_bad=panic"),
        ("x.csv", {}, r"x\.csv: partition 5: topic 't' has 0\.\.0"),
        ("x.csv", {"key_column": "kee"}, "no column 'kee'"),
        ("y.csv", {"value_from": "column"}, "no column 'value'"),
        ("x.parquet", {}, r"x\.parquet cannot be read as parquet"),
    ]:
        with pytest.raises(esker.EskerError, match=told):
            import_(spark, str(tmp_path / name), store, "t", **given)  # type: ignore[arg-type]
    import_(spark, str(tmp_path / "x.csv"), store, "t", partitions=False)
    assert [row[0] for row in contents(tmp_path / "data")[0]] == [b"x"]
