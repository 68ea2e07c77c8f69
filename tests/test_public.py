"""The public names as a whole: documented, typed, and shown as something one can read."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import esker
from esker import testing
from esker.aio.queues import AsyncJob
from esker.aio.store import AsyncBatch, AsyncProducer
from esker.client.group import RemoteBatch, RemoteGroup
from esker.client.producer import RemoteProducer
from esker.client.queue import RemoteDead, RemoteJob, RemoteQueue
from esker.client.route import RemoteRoute
from esker.client.stage import RemoteStage
from esker.client.store import RemoteStore
from esker.client.tail import RemoteTail
from esker.client.topic import RemoteTopic
from esker.engine.attach import Stage
from esker.engine.tail import Tail
from esker.server.run import serving
from esker.server.settings import Settings
from tests.helpers import HandClock

EVERY_KIND = True
RETURNED = [  # not named in the front door, and in users' hands all the same
    AsyncBatch, AsyncJob, AsyncProducer, RemoteBatch, RemoteDead, RemoteGroup, RemoteJob,
    RemoteProducer, RemoteQueue, RemoteRoute, RemoteStage, RemoteStore, RemoteTail, RemoteTopic,
    Stage, Tail, testing.Machine, testing.ManualClock,
]  # fmt: skip
CLASSES = [
    kind
    for kind in [*(getattr(esker, name) for name in esker.__all__), *RETURNED]
    if isinstance(kind, type) and not issubclass(kind, BaseException)
]


# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", esker.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    public = getattr(esker, name)
    if callable(public):
        assert len(inspect.getdoc(public) or "") > 10
    assert name in dir(esker)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_says_what_it_does(kind: type) -> None:
    silent = []
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            silent += [] if inspect.getdoc(function) else [name]
    assert silent == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_object_is_shown_as_more_than_an_address(kind: type) -> None:
    assert kind.__repr__ is not object.__repr__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_is_typed(kind: type) -> None:
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or not member.__module__.startswith("esker"):
            continue
        told = inspect.signature(member)
        bare = [
            each.name
            for each in told.parameters.values()
            if each.annotation is each.empty and each.name not in ("self", "cls")
        ]
        assert bare == [], name
        assert told.return_annotation is not told.empty, name


def test_type_checkers_are_told_that_there_are_types() -> None:
    assert (Path(esker.__file__).parent / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = esker.opne  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'Disk'"):
        _ = testing.Disk  # type: ignore[attr-defined]
    assert set(testing.__all__) <= {*dir(testing)}
    assert all(getattr(testing, name) is not None for name in testing.__all__)


def test_asyncio_has_the_verbs_that_a_loop_can_have() -> None:
    """What is left out: properties that look at nothing, and what is for threads by its nature."""

    def verbs(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    left_out = {
        (esker.Store, esker.AsyncStore): {"stage", "tick"},
        (esker.Topic, esker.AsyncTopic): {"tail", "ready", "append_nowait"},
        (esker.Queue, esker.AsyncQueue): {
            "work", "findings", "priority_of", "backoff", "tend", "close", "let_go",
        },
        (esker.Group, esker.AsyncGroup): {"ack", "paused"},
        (esker.Route, esker.AsyncRoute): set(),
    }  # fmt: skip
    for (kind, twin), known in left_out.items():
        assert verbs(kind) - verbs(twin) == known


def test_what_asyncio_asks_of_a_topic_a_group_and_a_store(tmp_path: Path) -> None:
    async def main() -> None:
        with esker.open(tmp_path / "data") as other:
            other.create("t", shards=3, ttl="1d")
            with other.stage("t", 1) as staged:
                staged.append_many([b"elsewhere"])
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["t"]
            assert await topic.shards() == 3
            assert (await topic.options()).ttl_us == 86_400_000_000
            assert 0 <= await topic.shard_of("user-7") < 3
            assert await store.attached("w") is None
            assert await store.attach("w", 7, staged.tickets)
            assert await store.attached("w") == 7
            assert [record.value async for record in topic.read()] == [b"elsewhere"]
            async with await topic.group("g") as group:
                assert await group.cursors() == {0: 0, 1: 0, 2: 0}
            async with await store.group("many", "t*") as group:
                with pytest.raises(esker.InvalidOption, match="reads many topics"):
                    await group.cursors()

    asyncio.run(main())


# ---- values ----------------------------------------------------------------------------------


def test_a_dict_is_stored_as_json_by_every_way_in(store: esker.Store) -> None:
    order = {"sku": "tea", "total": 34.99, "für": ["Ann", None, True], "n": {"1": 2}}
    topic = store["orders"]
    topic.append(order)
    topic.append(order, key="user-7", wait=True)
    topic.append(order, idempotency_key="once")
    topic.append_many([order, esker.Record(order)])  # type: ignore[arg-type]
    topic.append_many([order] * 20)
    topic.append_many([order] * 20, idempotency_key="many")
    with topic.batch() as batch:
        batch.append(order)
    topic.producer("p").append(order)
    store.sync()
    found = list(topic.read())
    assert len(found) == 47
    assert all(record.json() == order for record in found)
    assert found[0].text == '{"sku":"tea","total":34.99,"für":["Ann",null,true],"n":{"1":2}}'
    queue = store.queue("jobs")
    queue.put(order)
    queue.put_many([order])
    jobs = queue.claim(2)
    assert [job.json() for job in jobs] == [order, order]
    queue.ack(jobs)


def test_a_dict_with_asyncio(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        async with esker.aopen(tmp_path / "data") as store:
            await store["t"].append({"n": 1})
            await store["t"].append({"n": 2}, wait=True)
            async with store["t"].batch() as batch:
                batch.append({"n": 3})
            return [record.json() async for record in store["t"].read()]

    assert asyncio.run(main()) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_nothing_is_appended_of_a_batch_with_a_dict_that_is_no_json(store: esker.Store) -> None:
    with pytest.raises(esker.InvalidRecord, match=r"cannot be: .*bytes"):
        store["t"].append_many([b"good", {"bad": b"x"}])
    assert "t" not in store


def test_an_empty_store_and_an_empty_topic_are_true(store: esker.Store) -> None:
    topic = store.create("t")
    assert store
    assert topic
    assert not topic[:]
    assert len(topic) == 0


# ---- how they are shown ----------------------------------------------------------------------


def test_a_record_is_shown_in_one_line_whatever_it_holds() -> None:
    record = esker.Record(b"x" * 1_000_000, b"user-7", "order-1", None, {"a": b"y" * 10_000}, 5, 3)
    shown = repr(record)
    assert len(shown) < 800
    assert shown.startswith("Record(offset=3, shard=0, value=b'xxx")
    assert "… (1000000 bytes), key=b'user-7', tag='order-1', headers={'a'" in shown
    assert shown.endswith("…, timestamp=5)")
    assert repr(esker.Record(b"tea")) == "Record(value=b'tea')"
    assert repr(esker.Record(b"tea", timestamp=1, offset=0)) == (
        "Record(offset=0, shard=0, value=b'tea', timestamp=1)"
    )


def test_what_users_get_in_hand_tells_what_it_is(store: esker.Store) -> None:
    topic = store.create("t", shards=2)
    with topic.batch() as batch:
        assert repr(batch) == "<esker batch for 't', 0 records>"
        batch.append(b"x", key="k")
    assert "written as Span(" in repr(batch)
    queue = store.queue("q")
    queue.put(b"job")
    (job,) = queue.claim()
    assert "'q'" in repr(job)
    for thing, told in (
        (store, "<esker store "), (topic, "<esker topic 't'"), (topic.tail(), "<esker tail "),
        (queue, "<esker queue 'q'"), (queue.dead, "<esker dead letters of queue 'q'"),
        (queue.work(), "<esker work on queue 'q', 0 jobs out"),
        (store.stage("t", 1), "<esker stage for 't' shard 1"), (topic[:], "<slice None:None of <"),
        (topic.producer("p"), "<esker producer 'p'"), (topic.group("g"), "<esker group 'g' of 't'"),
    ):  # fmt: skip
        assert repr(thing).startswith(told)
        assert " at 0x" not in repr(thing)
    job.ack()


def test_what_asyncio_has_in_hand_tells_what_it_is(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t")
            queue = await store.queue("q")
            await queue.put(b"x")
            (job,) = await queue.claim()
            async with await topic.group("g") as group:
                shown = [repr(each) for each in (store, topic, queue, job, group, topic.batch())]
            await job.ack()
            return shown

    for shown in asyncio.run(main()):
        assert shown.startswith("<async <esker ")


# ---- notebooks -------------------------------------------------------------------------------

EVIL = "<script>alert(1)</script>"


def test_a_notebook_shows_tables(store: esker.Store) -> None:
    topic = store["orders"]
    topic.append_many([esker.Record(b"%d" % n, key=b"user-%d" % n) for n in range(25)])
    shown = topic._repr_html_()
    assert shown.count("<tr>") == 1 + 10
    assert "25 records, the last 10" in shown
    assert "<td>user-24</td><td>24</td>" in shown
    assert "<td>orders</td><td>1</td><td>disk</td><td>25</td>" in store._repr_html_()
    part = topic[:]
    shown = part._repr_html_()
    assert "25 records, the first 10" in shown
    topic.append_many([b"later"])
    assert len(part) == 26, "looking at a slice does not settle it"
    assert "<td>user-0</td>" in next(topic.batches())._repr_html_()
    assert "0 records" in store.create("empty")._repr_html_()


def test_a_notebook_shows_every_byte_of_a_user_as_text(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many(
        [
            esker.Record(EVIL.encode(), key=EVIL.encode(), tag=EVIL),
            esker.Record(b"\xff\x00<b>"),
            esker.Record("ü".encode() * 5_000),
            esker.Record(b'"quoted" & more'),
        ]
    )
    store.flush()
    for shown in (topic._repr_html_(), topic[:]._repr_html_(), store._repr_html_()):
        assert "<script" not in shown
        assert "<b>" not in shown
        assert len(shown) < 4_000
    shown = topic._repr_html_()
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3
    assert "\\xff\\x00" in shown
    assert "ü" * 100 + "…" in shown
    assert "&quot;quoted&quot; &amp; more" in shown


@pytest.mark.directory("retention is moved by hand")
def test_a_notebook_shows_a_gap_and_what_cannot_be_read(tmp_path: Path, clock: HandClock) -> None:
    with esker.open(tmp_path / "data", clock=clock, background=False) as still:
        topic = still.create("t", segment_records=5, cap_records=5)
        topic.append_many([b"%d" % n for n in range(5)])
        topic.append_many([b"%d" % n for n in range(5, 10)])
        still.tick()
        still.retain()
        assert topic.earliest() == 5
        assert "gap to 4: " in topic.slice(0, gaps="yield")._repr_html_()
        assert "offsets 0..4" in topic[0:]._repr_html_(), "what would be raised is said"
    for thing in (still, topic):
        assert "is closed; open it again" in thing._repr_html_()


def test_a_store_of_many_topics_shows_the_first() -> None:
    with esker.open(":memory:") as store:
        for number in range(60):
            store.create(f"t{number:02}")
        shown = store._repr_html_()
    assert "60 topics (" not in shown
    assert "; the first 50" in shown
    assert shown.count("<tr>") == 51


def test_a_store_on_a_server_is_shown_alike(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server, esker.open(server.url) as store:
        store["t"].append({"n": 1}, tag="x")
        assert "{&quot;n&quot;:1}</td><td>x</td>" in store["t"]._repr_html_()
        store.delete("t")
        assert "no topic &#x27;t&#x27;" in store["t"]._repr_html_()
