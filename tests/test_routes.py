"""Routes in one process: what goes where, what stops them, and what they tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.cli.main import main
from esker.format.columns import HEADER_TYPE, Columns
from esker.format.routes import MARK_HEADER
from esker.routes import forward, runner
from esker.routes.registry import Registry
from tests.helpers import HandClock, wait_until


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[esker.Store]:
    with esker.open(tmp_path / "data", background=False, clock=clock) as opened:
        yield opened


def orders(store: esker.Store, count: int = 10, name: str = "orders", first: int = 0) -> None:
    """Records 0, 1, 2, ...; every second one is from the EU, each has the amount of its number."""
    store[name].append_many(
        [
            esker.Record(b'{"amount": %d}' % n, tag="eu" if n % 2 else "us", key=b"k%d" % n)
            for n in range(first, first + count)
        ]
    )
    store[name].sync()


def amounts(topic: esker.Topic) -> list[int]:
    return [record.json()["amount"] for record in topic.read()]


def run(store: esker.Store, rounds: int = 3) -> None:
    for _ in range(rounds):
        store.tick()


def test_closing_waits_for_the_step_under_way_so_that_nothing_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, forward_ = threading.Event(), runner.Runner._forward

    def slowly(self: Any, batch: Any, destination: Any) -> int:
        done = forward_(self, batch, destination)
        under_way.set()
        threading.Event().wait(0.3)  # the store is being closed behind the append
        return done

    with esker.open(tmp_path / "data") as opened:
        orders(opened)
        with monkeypatch.context() as patched:
            patched.setattr(runner.Runner, "_forward", slowly)
            opened.route("orders", "copies")
            assert under_way.wait(30)
            opened.close()
    with esker.open(tmp_path / "data") as again:
        wait_until(lambda: again.routes()[0].records == 0, "a route that is through")
        assert amounts(again["copies"]) == list(range(10))


def test_a_store_that_waits_for_a_route_is_closed_by_one_thread_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go_on, rest = threading.Event(), threading.Event(), Registry.rest
    closed: list[str] = []
    close_shards = esker.Store._close_shards

    def slowly(self: Registry) -> None:
        waiting.set()
        assert go_on.wait(30)
        rest(self)

    def counted(self: esker.Store, problems: list[BaseException]) -> None:
        closed.append(threading.current_thread().name)
        close_shards(self, problems)

    monkeypatch.setattr(Registry, "rest", slowly)
    monkeypatch.setattr(esker.Store, "_close_shards", counted)
    opened = esker.open(tmp_path / "data")
    orders(opened)
    opened.route("orders", "copies")
    first = threading.Thread(target=opened.close, name="first")
    first.start()
    assert waiting.wait(30)
    opened.close()  # somebody is at it
    assert closed == []
    go_on.set()
    first.join(30)
    assert closed == ["first"]


# ---- what goes where -------------------------------------------------------------------------


def test_what_matches_is_appended_to_the_destination_as_it_is(store: esker.Store) -> None:
    store["orders"].append(
        b'{"amount": 250}', key=b"k", tag="eu", node="n1", headers={"kind": b"paid"}, timestamp=5
    )
    store["orders"].append(b'{"amount": 50}', key=b"k", tag="eu", headers={"kind": b"paid"})
    store["orders"].append(b"no json", tag="eu", headers={"kind": b"paid"})
    store.sync()
    store.route("orders", "payments", where='header.kind == "paid" and json.amount > 100')
    run(store)
    (found,) = store["payments"].read()
    assert (found.value, found.key, found.tag, found.node, found.headers, found.timestamp) == (
        b'{"amount": 250}', b"k", "eu", "n1", {"kind": b"paid"}, 5,
    )  # fmt: skip
    (status,) = store.routes()
    assert (status.state, status.records, status.forwarded, status.filtered) == ("running", 0, 1, 2)
    assert "running" in str(status)


def test_a_route_fans_out_and_each_has_its_own_filter(store: esker.Store) -> None:
    orders(store)
    store.route("orders", "eu", where='tag == "eu"')
    store.route("orders", "us", where='tag == "us"')
    store.route("orders", "all")
    run(store)
    assert amounts(store["eu"]) == [1, 3, 5, 7, 9]
    assert amounts(store["us"]) == [0, 2, 4, 6, 8]
    assert amounts(store["all"]) == list(range(10))
    orders(store, 2, first=10)
    run(store)
    assert amounts(store["eu"])[-1] == 11
    assert amounts(store["us"])[-1] == 10


def test_a_route_forwards_to_the_shard_of_each_key(store: esker.Store) -> None:
    store.create("orders", shards=3)
    store.create("copies", shards=2)
    orders(store, 60)
    store["orders"].append_many([b"{}"] * 5)
    store.sync()
    store.route("orders", "copies", exactly_once=True)
    run(store)
    found = list(store["copies"].read())
    assert len(found) == 65
    for record in found:
        if record.key is not None:
            assert record.shard == store["copies"].shard_of(record.key)


@pytest.mark.parametrize("how", ["record", "arrow", "stage"])
def test_a_mark_that_others_append_says_nothing_of_a_route(
    tmp_path: Path, clock: HandClock, how: str
) -> None:
    def opened() -> esker.Store:
        return esker.open(tmp_path / "data", background=False, clock=clock)

    with opened() as store:
        orders(store, 4)
        store.route("orders", "copies", exactly_once=True)
        run(store)
        old = next(r for r in store["copies"].read() if r.headers and MARK_HEADER in r.headers)
        orders(store, 4, first=4)
        run(store)
        assert amounts(store["copies"]) == list(range(8))
        assert old.headers is not None
        ahead = old.headers[MARK_HEADER][:-8] + (99).to_bytes(8, "little")
        for mark in (old.headers[MARK_HEADER], ahead):  # read from there, and made up
            copy = esker.Record(b'{"amount": -1}', headers={MARK_HEADER: mark})
            table = pa.table({
                "value": [copy.value],
                "headers": pa.array([[{"key": MARK_HEADER, "value": mark}]], HEADER_TYPE),
            })  # fmt: skip
            if how == "record":
                store["copies"].append_many([copy])
            elif how == "arrow":
                store["copies"].append_arrow(table)
            else:
                stage = store.stage("copies")
                stage.append_arrow(table)
                store.attach("w", mark[-8], stage.finish())
        store.sync()
    with opened() as store:
        orders(store, 4, first=8)
        run(store)
        found = [each for each in amounts(store["copies"]) if each >= 0]
        assert found == list(range(12))


def test_nothing_is_forwarded_that_is_not_durable_in_the_source(store: esker.Store) -> None:
    store["orders"].append(b'{"amount": 1}')
    store["orders"].flush()
    route = store.route("orders", "copies")
    assert route.run_once() == 0
    store["orders"].sync()
    assert route.run_once() == 1


def test_a_source_that_is_never_durable_is_forwarded_as_it_is(store: esker.Store) -> None:
    store.create("orders", durability="memory").append_many([b"1", b"2"])
    route = store.route("orders", "copies")
    assert route.run_once() == 2
    assert [record.value for record in store["copies"].read()] == [b"1", b"2"]


def test_exactly_once_is_refused_where_offsets_or_marks_may_be_lost(store: esker.Store) -> None:
    orders(store)
    store.create("weak", durability="memory")
    for source, destination in (("orders", "weak"), ("weak", "copies")):
        with pytest.raises(esker.InvalidOption, match="class memory"):
            store.route(source, destination, exactly_once=True)
        store.route(source, destination)


def test_start_says_where_a_new_route_begins(store: esker.Store) -> None:
    orders(store)
    store.route("orders", "late", start="latest")
    store.route("orders", "last", start=-3)
    orders(store, 1, first=10)
    run(store)
    assert amounts(store["late"]) == [10]
    assert amounts(store["last"]) == [7, 8, 9, 10]


def test_a_route_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    for turn in range(3):
        with esker.open(tmp_path / "data", background=False) as store:
            orders(store, 5, first=5 * turn)
            store.route("orders", "copies", where="json.amount >= 2")
            run(store)
            assert amounts(store["copies"]) == list(range(2, 5 * turn + 5))


def test_a_thread_forwards_for_all_routes(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("orders")
        for n in range(5):
            store.route("orders", f"copy-{n}")
        names = [t.name for t in threading.enumerate() if t.name == "esker-route"]
        orders(store, 50)
        pause = threading.Event()
        for _ in range(500):
            if all(len(store[f"copy-{n}"]) == 50 for n in range(5) if f"copy-{n}" in store):
                break
            pause.wait(0.01)
        assert [len(store[f"copy-{n}"]) for n in range(5)] == [50] * 5
        names = [t.name for t in threading.enumerate() if t.name == "esker-route"]
        assert names == ["esker-route"]
    assert not [t for t in threading.enumerate() if t.name == "esker-route"]


def test_a_handle_that_is_not_to_run_routes_does_not(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False, routes=False) as store:
        orders(store)
        route = store.route("orders", "copies")
        run(store)
        assert not list(store["copies"].read())
        assert store.routes()[0].state == "waiting"
        assert route.run_once() == 10, "asked for, it does"


# ---- refused ---------------------------------------------------------------------------------


def test_the_same_route_again_is_the_same_and_another_of_its_name_is_refused(
    store: esker.Store,
) -> None:
    orders(store)
    made = store.route("orders", "copies", where='tag == "eu"')
    assert store.route("orders", "copies", where='tag == "eu"').id == made.id
    assert store.route(name="orders->copies").id == made.id
    with pytest.raises(esker.RouteRefused, match="is another one"):
        store.route("orders", "copies")
    other = store.route("orders", "copies", where='tag == "us"', name="americans")
    assert other.id != made.id
    assert "americans" in repr(other)
    with pytest.raises(esker.RouteNotFound, match="did you mean 'americans'"):
        store.route(name="american")


def test_a_destination_has_one_source_unless_all_its_routes_merge(store: esker.Store) -> None:
    for name in ("a", "b", "c"):
        orders(store, 2, name)
    store.route("a", "all")
    with pytest.raises(esker.RouteRefused, match="merge=True"):
        store.route("b", "all", merge=True)
    store.route("a", "both", merge=True)
    store.route("b", "both", merge=True)
    with pytest.raises(esker.RouteRefused, match="merge=True"):
        store.route("c", "both")
    run(store)
    assert sorted(amounts(store["both"])) == [0, 0, 1, 1]


def test_a_circle_is_refused_and_one_that_is_allowed_ends(store: esker.Store) -> None:
    orders(store, 4, "a")
    store.route("a", "b")
    store.route("b", "c")
    with pytest.raises(esker.RouteRefused, match="c -> a -> b -> c"):
        store.route("c", "a")
    with pytest.raises(esker.RouteRefused, match="circle"):
        store.route("a", "a")
    store.route("c", "a", allow_cycles=True, hops=3)
    run(store, 30)
    assert len(store["a"]) == 4 * 4, "each comes back three times"
    assert {s.name: s.looped for s in store.routes()} == {"a->b": 0, "b->c": 0, "c->a": 4}
    hops = [int((r.headers or {}).get("esker-hops", b"0")) for r in store["a"].read()]
    assert sorted(hops) == sorted([0, 1, 2, 3] * 4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"where": "tags == 'x'"}, "did you mean 'tag'"),
        ({"hops": 0}, "hops"),
        ({"hops": 1001}, "at most 1000"),
        ({"merge": 1}, "True or False"),
        ({"name": ""}, "text"),
        ({"name": "x" * 600}, "512"),
        ({"start": "noon"}, "position"),
    ],
)
def test_what_is_no_route_is_refused_and_leaves_nothing(
    store: esker.Store, arguments: dict[str, Any], told: str
) -> None:
    orders(store)
    with pytest.raises(esker.EskerError, match=told):
        store.route("orders", "copies", **arguments)
    assert store.routes() == []
    assert store.groups() == []
    with pytest.raises(esker.TopicNotFound):
        store.route("order", "copies")


def test_a_store_that_is_only_read_shows_its_routes(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        orders(store)
        store.route("orders", "copies")
    with esker.open(tmp_path / "data", mode="r") as store:
        (status,) = store.routes()
        assert (status.state, status.records) == ("waiting", 10)
        with pytest.raises(esker.ReadOnlyStore):
            store.route("orders", "others")


# ---- what stops a route ----------------------------------------------------------------------


def test_a_full_destination_stops_its_route_and_nothing_else(
    store: esker.Store, clock: HandClock, tmp_path: Path
) -> None:
    store.create("small", cap_records=4, discard="reject")
    orders(store, 3)
    store.route("orders", "small")
    store.route("orders", "copies")
    run(store)
    orders(store, 5, first=3)
    run(store)
    small, copies = store.routes()
    assert (small.state, small.records) == ("stopped", 5)
    assert "cap_records" in small.reason or "full" in small.reason
    assert (copies.state, copies.records) == ("running", 0)
    with esker.open(tmp_path / "data", mode="r") as other:
        assert other.routes()[0].reason == small.reason, "others are told, too"
    store.alter("small", cap_records=100)
    run(store)
    assert store.routes()[0].state == "stopped", "it is tried again once a second"
    clock.forward(1.1)
    run(store)
    assert store.routes()[0].state == "running"
    assert store.routes()[0].reason == ""
    assert amounts(store["small"]) == list(range(8))


def test_a_topic_that_is_deleted_stops_the_routes_that_name_it(
    store: esker.Store, clock: HandClock
) -> None:
    for name in ("a", "b"):
        orders(store, 3, name)
    first, second = store.route("a", "copies-a"), store.route("b", "copies-b")
    run(store)
    store.delete("copies-a")
    store.delete("b")
    orders(store, 3, "a")
    orders(store, 3, "b")
    clock.forward(2)
    run(store)
    told = {status.name: (status.state, status.reason) for status in store.routes()}
    assert told["a->copies-a"][0] == told["b->copies-b"][0] == "stopped"
    assert "destination, topic 'copies-a', was deleted" in told["a->copies-a"][1]
    assert "source, topic 'b', was deleted" in told["b->copies-b"][1]
    orders(store, 1, "copies-a")  # another topic of that name is another topic
    clock.forward(2)
    run(store)
    assert len(store["copies-a"]) == 1
    with pytest.raises(esker.RouteNotFound, match="was deleted"):
        second.seek(0)
    first.delete()
    second.delete()
    assert store.routes() == []


def test_a_destination_that_another_handle_writes_is_left_to_it(tmp_path: Path) -> None:
    with (
        esker.open(tmp_path / "data", background=False) as mine,
        esker.open(tmp_path / "data", background=False) as other,
    ):
        orders(mine, 3)
        other["copies"].append_many([b'{"amount": -1}'])
        route = mine.route("orders", "copies")
        assert route.run_once() == 0
        status = route.status()
        assert status.state == "stopped"
        assert "is written by process" in status.reason
        other.routes()
        run(other)
        assert amounts(other["copies"]) == [-1, 0, 1, 2]
        assert route.status().state == "running", "in the other one"
        assert route.run_once() == 0
        assert other.routes()[0].reason == ""


def test_a_destination_is_taken_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Two processes with a half each would wait for each other for ever."""
    with (
        esker.open(tmp_path / "data", background=False) as mine,
        esker.open(tmp_path / "data", background=False) as other,
    ):
        orders(mine, 30)
        mine.create("copies", shards=3)
        route = mine.route("orders", "copies")
        registry = Registry.of(mine)
        made = registry.runner(route.id)
        assert made is not None
        key = next(k for k in map(str, range(99)) if mine["copies"].shard_of(k) == 2)
        other["copies"].append(b'{"amount": -1}', key=key, wait=True)
        assert [shard.writing for shard in other["copies"]._shards] == [False, False, True]
        with pytest.raises(esker.WriterBusy):
            made._take_all(mine["copies"])
        assert not any(shard.writing for shard in mine["copies"]._shards)
        other.routes()
        run(other)
        assert sorted(amounts(other["copies"])) == [-1, *range(30)]
        assert route.run_once() == 0


def test_a_record_that_the_destination_cannot_take_stops_the_route(store: esker.Store) -> None:
    store.create("small", max_record_bytes=10)
    store["orders"].append_many([b"x" * 5, b"x" * 50])
    store.sync()
    route = store.route("orders", "small")
    route.run_once()
    assert "max_record_bytes=10" in route.status().reason


def test_a_mistake_in_a_route_stops_it_and_no_other(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(store)
    route = store.route("orders", "copies")

    def broken(*_: Any) -> Any:
        raise pa.ArrowInvalid("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "matching", broken)
        assert route.run_once() == 0
        assert "ArrowInvalid: no such luck" in route.status().reason
    assert route.run_once() == 10


def test_records_that_were_lost_before_they_were_forwarded_are_counted(store: esker.Store) -> None:
    store.create("orders", cap_records=4, segment_records=2, protect_unconsumed=False)
    orders(store, 2)
    route = store.route("orders", "copies")
    for first in range(2, 12, 2):
        orders(store, 2, first=first)
    store.retain()
    missed = store["orders"].earliest()
    assert missed > 0
    run(store)
    assert route.status().missed == missed
    assert amounts(store["copies"]) == list(range(missed, 12))


# ---- pause, resume, seek, delete -------------------------------------------------------------


def test_a_paused_route_forwards_nothing_also_after_a_restart(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        orders(store)
        route = store.route("orders", "copies")
        route.pause()
        run(store)
        assert route.status().state == "paused"
    with esker.open(tmp_path / "data", background=False) as store:
        run(store)
        assert not list(store["copies"].read())
        route = store.route(name="orders->copies")
        route.resume()
        run(store)
        assert amounts(store["copies"]) == list(range(10))


@pytest.mark.parametrize("once", [False, True])
def test_a_seek_forwards_again_from_there(store: esker.Store, once: bool) -> None:
    orders(store)
    route = store.route("orders", "copies", exactly_once=once)
    run(store)
    (move,) = route.seek(7, dry_run=True)
    assert move.records == 3
    run(store)
    assert len(store["copies"]) == 10
    route.seek(7)
    run(store)
    assert amounts(store["copies"]) == [*range(10), 7, 8, 9]
    with pytest.raises(esker.InvalidPosition):
        route.seek("noon")
    route.seek("latest")
    orders(store, 1, first=10)
    run(store)
    assert amounts(store["copies"])[-1] == 10
    assert len(store["copies"]) == 14


def test_a_deleted_route_leaves_no_group_and_its_records(store: esker.Store) -> None:
    orders(store)
    route = store.route("orders", "copies")
    run(store)
    assert [group.name for group in store.groups()] == ["route:1"]
    route.delete()
    assert store.groups() == []
    assert store.routes() == []
    assert len(store["copies"]) == 10
    for verb in (route.delete, route.run_once, route.status, route.pause, lambda: route.seek(0)):
        with pytest.raises(esker.RouteNotFound, match="was deleted"):
            verb()
    assert store.route("orders", "copies").id == 2, "another one"


# ---- exactly once ----------------------------------------------------------------------------


def cursor_back(store: esker.Store, name: str, cursor: int) -> None:
    """As if the acks since then had been lost, though what was forwarded was not."""
    with store[name].group("route:1") as group:
        group.seek(cursor, shard=0)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_forwarded_and_not_acked_is_not_forwarded_again(
    tmp_path: Path, shards: int
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("copies", shards=shards)
        orders(store, 100)
        store.route("orders", "copies", where='tag == "eu"', exactly_once=True)
        run(store)
        cursor_back(store, "orders", 37)
    with esker.open(tmp_path / "data", background=False) as store:
        store["copies"].append_many([b'{"amount": -1}'] * 100)  # of others, behind the marks
        run(store)
        found = [amount for amount in amounts(store["copies"]) if amount >= 0]
        assert sorted(found) == list(range(1, 100, 2))
        orders(store, 10, first=100)
        run(store)
        found = [amount for amount in amounts(store["copies"]) if amount >= 0]
        assert sorted(found) == list(range(1, 110, 2))


def test_at_least_once_forwards_again_what_was_not_acked(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        orders(store, 10)
        store.route("orders", "copies")
        run(store)
        cursor_back(store, "orders", 7)
    with esker.open(tmp_path / "data", background=False) as store:
        run(store)
        assert amounts(store["copies"]) == [*range(10), 7, 8, 9]


def test_a_batch_that_is_too_large_is_forwarded_in_halves_each_with_its_mark(
    store: esker.Store,
) -> None:
    store.create("copies", segment_bytes="4KiB", max_record_bytes=2000)
    store["orders"].append_many([b"%03d" % n + b"x" * 1500 for n in range(12)])
    store.sync()
    route = store.route("orders", "copies", exactly_once=True)
    part = forward.Part(0, next(iter(store["orders"].batches())).columns, pa.arange(0, 12))
    registry = Registry.of(store)
    registry.reload()
    made = registry.runner(route.id)
    assert made is not None
    store["copies"].append(b"first")
    made._append(part, 0, store["copies"])
    found = list(store["copies"].read())
    assert [record.value[:3] for record in found[1:]] == [b"%03d" % n for n in range(12)]
    assert sum("esker-route" in (record.headers or {}) for record in found) > 1


def test_marks_of_another_route_store_or_epoch_do_not_count() -> None:
    prefix = b"p" * 24
    values = pa.array([b"1", b"2", b"3"], pa.binary())
    mine, other = prefix + bytes(8), b"q" * 32
    plain = Columns(values, 0)
    assert forward.last_mark(plain, prefix) is None
    assert forward.last_mark(forward.marked(plain, other), prefix) is None
    again = forward.marked(forward.marked(plain, other), mine)
    assert forward.last_mark(again, prefix) == mine
    assert again.headers[0].as_py() is None
    assert [pair["key"] for pair in again.headers[2].as_py()] == ["esker-route"]


def test_hops_are_counted_beside_the_other_headers() -> None:
    headers = pa.array(
        [[("a", b"1")], None, [("esker-hops", b"2"), ("b", b"2")], [("esker-hops", b"x")],
         [("esker-hops", b"3")], []],
        HEADER_TYPE,
    )  # fmt: skip
    columns = Columns(pa.array([b"%d" % n for n in range(6)], pa.binary()), 0, headers=headers)
    part, looped = forward.hopped(forward.Part(0, columns, pa.arange(10, 16)), 3)
    assert looped == 1
    assert part.offsets.to_pylist() == [10, 11, 12, 13, 15]
    told = [[(p["key"], p["value"]) for p in cell] for cell in part.columns.headers.to_pylist()]
    hop = "esker-hops"
    assert told == [
        [("a", b"1"), (hop, b"1")], [(hop, b"1")], [("b", b"2"), (hop, b"3")], [(hop, b"1")],
        [(hop, b"1")],
    ]  # fmt: skip
    assert forward.hops_of(part.columns).to_pylist() == [1, 1, 3, 1, 1]


# ---- damage ----------------------------------------------------------------------------------


def test_damaged_routes_are_told_and_the_topics_go_on(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        orders(store)
        store.route("orders", "copies")
    assert esker.verify(root).ok
    data = bytearray((root / "routes").read_bytes())
    data[80] ^= 1
    (root / "routes").write_bytes(data)
    assert esker.verify(root).kinds == ["routes"]
    with esker.open(root, background=False) as store:
        with pytest.raises(esker.Corruption, match="restored from a backup"):
            store.routes()
        run(store)
        orders(store, 1)
        assert "routes" in str(store.maintenance())
    done = esker.repair(root)
    assert f"{root}/routes" in {action.path for action in done.actions}
    assert esker.verify(root).ok
    with esker.open(root, background=False) as store:
        assert store.routes() == []
        store.route("orders", "copies")
        run(store)
        assert len(store["copies"]) == 11


def test_a_source_that_goes_while_a_thread_looks_at_it_stops_no_other_route(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        for name in ("a", "b"):
            orders(store, 3, name)
            store.route(name, f"copies-{name}")
        wait_until(lambda: [status.records for status in store.routes()] == [0, 0])
        store.delete("a")
        orders(store, 3, "b")
        wait_until(lambda: len(store["copies-b"]) == 6)
        wait_until(lambda: store.routes()[0].state == "stopped")
        assert "was deleted" in store.routes()[0].reason


def test_the_command_line_and_jobs_do_not_run_routes(tmp_path: Path) -> None:
    """Who opens a store for a moment does not become the writer of a destination."""
    with esker.open(tmp_path / "data", background=False) as store:
        orders(store)
        store.route("orders", "copies")
    assert main(["append", "orders", "x", "--data", str(tmp_path / "data")]) == 0
    with esker.open(tmp_path / "data", mode="r") as store:
        assert store.routes()[0].records == 11


def test_a_key_of_idempotency_is_known_where_it_was_given_and_not_where_it_was_forwarded(
    tmp_path: Path,
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("a", durability="fsync")
        topic.append(b"x", idempotency_key="k")
        topic.producer("p").append_many([b"y", b"z"])
        store.route("a", "b")
        store.tick()
    with esker.open(
        tmp_path / "data", background=False
    ) as store:  # what a shard knows is read from its log
        assert [set(record.headers or {}) for record in store["b"].read()] == [
            {"esker-copied"}, {"esker-copied"}, set(),
        ]  # fmt: skip
        assert store["b"].producer("p").last == -1
        store["b"].append(b"another", idempotency_key="k")
        store["b"].producer("p").append(b"and another", sequence=0)
        assert [r.value for r in store["b"].read()] == [
            b"x", b"y", b"z", b"another", b"and another",
        ]  # fmt: skip


def test_a_route_that_is_put_off_goes_on_after_ten_seconds_at_the_latest(
    store: esker.Store, clock: HandClock
) -> None:
    orders(store)
    store.route("orders", "low")
    store.route("orders", "high")
    registry = Registry.of(store)
    registry.puts_off = lambda name: name == "low"
    run(store)
    assert (len(store["low"]), len(store["high"])) == (0, 10)
    clock.forward(9.9)
    run(store)
    assert len(store["low"]) == 0
    clock.forward(0.2)
    run(store)
    assert len(store["low"]) == 10
    orders(store, first=10)
    run(store)
    assert (len(store["low"]), len(store["high"])) == (10, 20)
    registry.puts_off = lambda name: False
    run(store)
    assert len(store["low"]) == 20
