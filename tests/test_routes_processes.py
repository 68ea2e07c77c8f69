"""Routes that run in processes: killed at random, replaced, left to who writes the destination."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import esker
from tests.helpers import Child, child, wait_until

pytestmark = pytest.mark.crash

# Has the store open, and so takes part in running its routes.
RUNNER = """
    import sys
    import esker
    store = esker.open(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
    store.close()
"""
# Makes a route, and is gone.
DEFINER = """
    import sys
    import esker
    with esker.open(sys.argv[1]) as store:
        store.route("orders", "copies")
    print("made", flush=True)
"""
WANTED = "json.n >= 0"


def append(store: esker.Store, first: int, count: int) -> None:
    store["orders"].append_many(
        [esker.Record(b'{"n": %d}' % n, key=b"%d" % (n % 17)) for n in range(first, first + count)]
    )
    store["orders"].sync()


def made(root: Path, once: bool) -> None:
    with esker.open(root, background=False) as store:
        store.create("orders", shards=2)
        store.create("copies", shards=2, durability="fsync")
        store.route("orders", "copies", where=WANTED, exactly_once=once)


def copied(store: esker.Store) -> list[int]:
    return [record.json()["n"] for record in store["copies"].read()]


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True], ids=["at-least-once", "exactly-once"])
def test_runners_are_killed_at_random_and_nothing_is_left_out(tmp_path: Path, once: bool) -> None:
    root, chance = tmp_path / "s", random.Random(7 + once)
    made(root, once)
    count = 0
    with ExitStack() as stack, esker.open(root, routes=False) as store:
        runners: list[Child] = []
        kills = 0
        while kills < 8:
            while len(runners) < 2:
                runner = stack.enter_context(child(RUNNER, root))
                assert runner.line() == "ready"
                runners.append(runner)
            until = time.monotonic() + chance.uniform(0.05, 0.5)
            while time.monotonic() < until:
                append(store, count, 50)
                count += 50
            runners.pop(chance.randrange(2)).kill()
            kills += 1
        runners.append(stack.enter_context(child(RUNNER, root)))
        wait_until(lambda: store.routes()[0].records == 0)
        found = Counter(copied(store))
        assert set(found) == set(range(count))
        if once:
            assert max(found.values()) == 1, [n for n, times in found.items() if times > 1][:10]
    esker.open(root, background=False).close()  # recovers what the last one left


def test_another_process_goes_on_in_a_moment(tmp_path: Path) -> None:
    root = tmp_path / "s"
    made(root, once=True)
    with child(RUNNER, root) as runner, esker.open(root) as store:
        assert runner.line() == "ready"
        append(store, 0, 100)
        wait_until(lambda: len(copied(store)) == 100)
        runner.kill()
        began = time.monotonic()
        append(store, 100, 100)
        wait_until(lambda: len(copied(store)) == 200)
        assert time.monotonic() - began < 10
        assert sorted(copied(store)) == list(range(200))


def test_the_process_that_writes_the_destination_runs_the_route(tmp_path: Path) -> None:
    root = tmp_path / "s"
    made(root, once=False)
    with esker.open(root) as store:
        store["copies"].append_many([esker.Record(b'{"n": -1}', key=b"%d" % n) for n in range(9)])
        with child(RUNNER, root) as runner:
            assert runner.line() == "ready"
            append(store, 0, 100)
            wait_until(lambda: len(copied(store)) == 109)
            status = store.routes()[0]
            assert runner.pid not in status.pids or store.routes()[0].forwarded == 100


def test_a_process_that_was_there_before_the_first_route_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes the destination, so nobody else can; and it never asks for routes."""
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.05)
    root = tmp_path / "s"
    with esker.open(root) as store:
        store.create("orders", shards=2)
        store.create("copies", shards=2, durability="fsync")
        store["copies"].append_many([esker.Record(b'{"n": -1}', key=b"%d" % n) for n in range(9)])
        append(store, 0, 100)
        with child(DEFINER, root) as definer:
            assert definer.line() == "made"
        wait_until(lambda: len(copied(store)) == 109)


def test_a_route_that_is_deleted_stops_in_every_process(tmp_path: Path) -> None:
    root = tmp_path / "s"
    made(root, once=False)
    with child(RUNNER, root) as runner, esker.open(root, routes=False) as store:
        assert runner.line() == "ready"
        append(store, 0, 10)
        wait_until(lambda: len(copied(store)) == 10)
        route = store.route(name="orders->copies")
        assert route.status().pids == (runner.pid,)
        route.delete()
        append(store, 10, 10)
        time.sleep(0.2)
        assert len(copied(store)) == 10
        assert store.groups() == []


def test_a_seek_of_one_process_moves_the_route_of_another(tmp_path: Path) -> None:
    root = tmp_path / "s"
    made(root, once=True)
    with child(RUNNER, root) as runner, esker.open(root, routes=False) as store:
        assert runner.line() == "ready"
        append(store, 0, 10)
        wait_until(lambda: len(copied(store)) == 10)
        store.route(name="orders->copies").seek("earliest")
        wait_until(lambda: len(copied(store)) == 20)
        assert Counter(copied(store)) == Counter(dict.fromkeys(range(10), 2))
