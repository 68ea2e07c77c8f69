"""A server where a path stands: keys, words for what is wrong, and what is asked of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import esker
import esker.spark
from esker.server.access import keyfile
from esker.server.run import serving
from esker.server.settings import Settings
from esker.spark import jobs, origins, plan
from esker.spark.origin import Access, Span
from esker.spark.rows import Task
from esker.spark.wanted import wanted
from tests.server.test_listen import Authority, secured
from tests.spark.places import reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SPEC = {"window": "1m", "metrics": {"n": "count"}}


class Guarded(NamedTuple):
    """A server that wants keys, and some of them."""

    url: str
    path: Path
    everything: str
    reading: str
    elsewhere: str  # may write, though not this topic
    writing: str  # this topic, and may create none


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    texts = [
        keyfile.new(keys, scopes, prefixes)[1]
        for scopes, prefixes in (
            (["read", "write", "consume", "delete", "admin"], ["*"]),
            (["read"], ["*"]),
            (["read", "write"], ["other"]),
            (["read", "write"], ["t"]),
        )
    ]  # fmt: skip
    with serving(folder / "data", Settings(port=0, keys=str(keys))) as server:
        with esker.open(server.url, key=texts[0]) as store:
            store.create("t", shards=2)
            store["t"].append_many([b"%d" % n for n in range(100)], wait=True)
        yield Guarded(server.url, folder / "data", *texts)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("esker").options(url=url, subscribe="t", **options).load()


def write(spark: SparkSession, url: str, **options: str) -> None:
    rows = spark.range(3).selectExpr("cast(id AS string) AS value")
    rows.write.format("esker").mode("append").options(url=url, **options).save()


def test_a_url_and_a_key_are_options(spark: SparkSession, guarded: Guarded) -> None:
    assert load(spark, guarded.url, key=guarded.reading).count() == 100
    write(spark, guarded.url, key=guarded.everything, topic="made", shards="3")
    with esker.open(guarded.url, key=guarded.everything) as store:
        assert (store["made"].shards, len(store["made"])) == (3, 3)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("", r"Unauthorized.*send a key"),
        ("esk_" + "0" * 12 + "_" + "1" * 64, r"Unauthorized.*this key is not known"),
    ],
)
def test_a_wrong_key_is_told_on_the_driver(
    spark: SparkSession, guarded: Guarded, key: str, told: str
) -> None:
    options = {"key": key} if key else {}
    with pytest.raises(Exception, match=told) as caught:
        load(spark, guarded.url, **options).count()
    assert not key or key not in str(caught.value)
    with pytest.raises(Exception, match=told):
        write(spark, guarded.url, topic="t", **options)


def test_a_missing_scope_is_told_before_any_task(spark: SparkSession, guarded: Guarded) -> None:
    with pytest.raises(Exception, match=r"Forbidden.*lacks the scope 'write'"):
        write(spark, guarded.url, key=guarded.reading, topic="t")
    with pytest.raises(Exception, match=r"Forbidden.*not for topics of this name"):
        write(spark, guarded.url, key=guarded.elsewhere, topic="t")
    with pytest.raises(Exception, match=r"Forbidden.*to create it.*lacks the scope 'admin'"):
        write(spark, guarded.url, key=guarded.writing, topic="t.new")
    with pytest.raises(Exception, match=r"Forbidden.*not for topics of this name"):
        load(spark, guarded.url, key=guarded.elsewhere).count()
    with esker.open(guarded.url, key=guarded.everything) as store:
        assert len(store["t"]) == 100


def test_a_server_that_is_not_there_is_told(spark: SparkSession) -> None:
    gone = "http://127.0.0.1:9"
    with pytest.raises(Exception, match=rf"Unavailable.*{gone} cannot be reached"):
        load(spark, gone, retries="0").count()
    with pytest.raises(Exception, match=rf"Unavailable.*{gone} cannot be reached"):
        write(spark, gone, topic="t", retries="0")


def test_a_server_that_is_too_old_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from esker.server import table

    older = tuple(route for route in table.ROUTES if not route.path.endswith("/pieces"))
    monkeypatch.setattr(table.Table.__init__, "__defaults__", (older,))
    with reached(tmp_path / "data", "http") as url, esker.open(url) as store:
        store["t"].append(b"x", wait=True)
        asked = wanted({"url": url, "subscribe": "t"}, now_us=0, streaming=False)
        with pytest.raises(esker.EskerError, match=r"is of an older Esker.*install a newer one"):
            plan.spans(asked)
        plan.let_go()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://h:1", "path": "data"}, "path and url are both given"),
        ({"url": "data"}, "a directory is a path"),
        ({"path": "data", "key": "secret"}, "key is for a server"),
        ({"url": "http://h:1", "retries": "many"}, "retries=many"),
        ({"url": "http://h:1", "key": "a", "accessKey": "a"}, "are the same: keep one"),
        ({"url": "http://h:1", "timeout": "soon"}, "timeout="),
        ({"url": "http://user:word@h:1"}, "a URL holds no secret"),
        ({"url": "http://h:1/data"}, "ends behind its port"),
        ({"url": "http://h:1", "tlsCa": "ca.pem"}, "are for https"),
        ({"url": "https://h:1", "tlsKey": "key.pem"}, "goes with tlsCert"),
        ({"url": "http://h:1", "key": "\x01"}, "in printable ASCII"),
    ],
)
def test_mistakes_about_a_server_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(esker.InvalidOption, match=told) as caught:
        wanted({"subscribe": "t", **options}, now_us=0, streaming=False)
    assert "word" not in str(caught.value)


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    given = {"url": "https://127.0.0.1:1", "subscribe": "t", "tlsCa": str(tmp_path / "none.pem")}
    with pytest.raises(esker.InvalidOption, match=r"TLS cannot be set up with .*none\.pem"):
        plan.spans(wanted(given, now_us=0, streaming=False))


def test_over_tls_either_side_shows_who_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """A real handshake, by the process that plans, by the workers, and by what commits."""
    authority = Authority(tmp_path, "authority")
    crt, key = authority.issue("client")
    with secured(tmp_path, authority, tls_ca=str(authority.path)) as server:
        url = server.url.replace("127.0.0.1", "localhost")  # for which the certificate is
        known = {"tlsCa": str(authority.path), "tlsCert": crt, "tlsKey": key, "retries": "0"}
        write(spark, url, topic="t", **known)
        assert {row.value for row in load(spark, url, **known).collect()} == {b"0", b"1", b"2"}
        with pytest.raises(Exception, match="certificate verify failed"):
            load(spark, url, tlsCert=crt, tlsKey=key, retries="0").collect()
        with pytest.raises(Exception, match="Unavailable"):  # the server hangs up
            load(spark, url, tlsCa=str(authority.path), retries="0").collect()


@pytest.mark.parametrize("place", ["http://host:4117", "s3://bucket/data", "kin+comet:///data"])
def test_what_takes_directories_only_says_so(place: str) -> None:
    """Before anything is asked of Spark, which is not there."""
    nothing: Any = None
    calls: dict[str, Callable[[], Any]] = {
        "table": lambda: esker.spark.table(nothing, place, "t"),
        "archive": lambda: jobs.archive(nothing, place, "t"),
        "scrub": lambda: jobs.scrub(nothing, place),
        "replay": lambda: jobs.replay(nothing, place, "t", "u"),
        "compact": lambda: jobs.compact(nothing, place, "t", "u"),
        "aggregate": lambda: jobs.aggregate(nothing, place, "t", SPEC),
        "export": lambda: jobs.export(nothing, place, "t", "out"),
        "import": lambda: jobs.import_(nothing, "in", place, "t"),
        "profile": lambda: jobs.profile(nothing, place, "t"),
    }
    assert set(calls) == {*jobs.JOBS, "table"}
    for name, call in calls.items():
        with pytest.raises(esker.InvalidOption, match="take a store's directory"):
            pytest.fail(f"{name}: {call()}")


def test_no_text_has_the_key(
    spark: SparkSession, guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = guarded.everything
    said = io.StringIO()
    rows = load(spark, guarded.url, key=key)
    with contextlib.redirect_stdout(said):
        for how in ("simple", "extended", "formatted", "codegen", "cost"):
            rows.explain(how)
    rows.collect()
    bad = load(spark, guarded.url, key=key, valueFormat="json", valueSchema="n INT")
    with pytest.raises(Exception, match="the value at offset") as caught:
        bad.collect()
    plain = spark.newSession()  # as somebody else would have made it
    plain.conf.set("spark.sql.redaction.options.regex", "(?i)url")
    unread = plain.readStream.format("esker").options(
        url=guarded.url, accessKey=key, subscribe="t"
    ).load()  # fmt: skip
    stream = spark.readStream.format("esker").options(
        url=guarded.url, key=key, subscribe="t", startingOffsets="earliest", group="shown"
    ).load()  # fmt: skip
    with contextlib.redirect_stdout(said):
        stream.explain(True)
        unread.explain(True)
    assert "subscribe=t" in said.getvalue(), "options are shown"
    query = (
        stream.select("value").writeStream.format("esker").trigger(availableNow=True)
        .options(url=guarded.url, key=key, topic="copy", checkpointLocation=tmp_path / "point")
        .start()
    )  # fmt: skip
    query.awaitTermination(60)
    told = [said.getvalue(), str(caught.value), str(query.lastProgress), *capfd.readouterr()]
    query.stop()
    asked = wanted({"url": guarded.url, "key": key, "subscribe": "t"}, now_us=0, streaming=True)
    told += [repr(asked), str(asked), repr(asked.access)]
    written = [each.read_bytes() for each in (tmp_path / "point").rglob("*") if each.is_file()]
    secret = key.rpartition("_")[2]
    assert written
    assert not [text for text in told if secret in text]
    assert not [data for data in written if secret.encode() in data]
    with esker.open(guarded.url, key=key) as store:
        assert len(store["copy"]) == 100


def test_only_the_columns_that_are_asked_for_travel(tmp_path: Path) -> None:
    import pyarrow as pa

    with reached(tmp_path / "data", "http") as url, esker.open(url) as store:
        store["t"].append_many([esker.Record(b"x" * 1_000, tag="a", key=b"k")] * 50, wait=True)
        span = Span("t", store["t"].epoch, 0, 0, 50)

        def task(*columns: str, tags: tuple[str, ...] | None = None) -> Task:
            return Task(
                url, [span], columns=columns, on_loss="fail", value_format="binary",
                bad_value="fail", tags=tags,
            )  # fmt: skip

        narrow = task("offset", "partition")
        (batch,) = origins.at(narrow).read(span, narrow.columns)
        assert (batch.columns.values.null_count, batch.columns.keys) == (50, None)  # type: ignore[union-attr]
        schema = pa.schema([("offset", pa.int64()), ("partition", pa.int32())])
        (rows,) = narrow.rows(schema)
        assert rows["offset"].to_pylist() == [*range(50)]
        (rows,) = task("offset", "partition", tags=("a",)).rows(schema)
        assert rows.num_rows == 50, "tags are looked at, though no row shows them"
        assert list(task("offset", tags=("b",)).rows(schema)) == []
        wide = pa.schema([("value", pa.binary()), ("key", pa.binary())])
        (rows,) = task("value", "key").rows(wide)
        assert rows.to_pylist() == [{"value": b"x" * 1_000, "key": b"k"}] * 50
        plan.let_go()


def test_a_range_is_cut_where_batches_begin(tmp_path: Path) -> None:
    with reached(tmp_path / "data", "http") as url, esker.open(url) as store:
        topic = store.create("t", segment_records=500)
        for _ in range(20):
            topic.append_many([b"x" * 100] * 100, wait=True)
        asked = wanted({"url": url, "subscribe": "t"}, now_us=0, streaming=False)
        found = plan.spans(asked)
        ((_, seen),) = found
        data = str(tmp_path / "data")
        here = wanted({"path": data, "subscribe": "t"}, now_us=0, streaming=False)
        ((_, beside),) = plan.spans(here)
        assert seen.atoms(0, 2_000) == beside.atoms(0, 2_000)
        assert seen.atoms(150, 1_730) == beside.atoms(150, 1_730)
        tasks = plan.divide(found, 4)
        assert [sum(s.end - s.first for s in task) for task in tasks] == [500] * 4
        plan.let_go()


def test_an_access_says_nothing_of_its_key() -> None:
    assert "word" not in repr(Access(key="word"))
    assert "word" not in f"{Access(key='word')} {Access(key='word')!s}"


def test_a_batch_write_leaves_no_name_behind(spark: SparkSession, tmp_path: Path) -> None:
    with reached(tmp_path / "data", "http") as url:
        for _ in range(3):
            write(spark, url, topic="t")
        with esker.open(url) as store:
            assert len(store["t"]) == 9
    left: list[Any] = [
        each.name for each in tmp_path.rglob("*") if each.suffix in (".staged", ".commit")
    ]
    assert left == []
