"""Routes where something goes wrong: death, power cuts and faults at every call and every store.

A script defines a route, forwards, moves it and deletes it. Around every call that changes the
disk, and behind every store into a page of offsets, the process dies or the power goes. What is
left is opened, the route runs to its end, and then

    defined        once `store.route` has returned it is there, with its start; before, it is
                   there as a whole or not at all
    at least once  all that the source has and the route wants is in the destination
    exactly once   and nothing of it twice
    both           nothing is in the destination that the source does not have
"""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

import esker
from esker.testing import Fault, SimulatedDisk
from tests import fsck
from tests.helpers import abandon
from tests.test_groups_crashes import WatchedDisk, opened, plain

pytestmark = pytest.mark.crash
WANTED = 'tag == "eu"'


class Promised:
    """What the script has been promised so far."""

    def __init__(self, once: bool) -> None:
        self.once = once
        self.first = 0  # the route begins here
        self.begun = self.made = self.gone = self.again = False


def append(store: esker.Store, first: int, count: int) -> None:
    store["orders"].append_many(
        [esker.Record(b"%d" % n, tag="eu" if n % 3 else "us") for n in range(first, first + count)]
    )
    store["orders"].sync()


def run(store: esker.Store) -> None:
    for status in store.routes():
        route = store.route(name=status.name)
        while route.run_once():
            pass


def script(disk: SimulatedDisk, promised: Promised, start: str) -> None:
    store = opened(disk)
    store.create("orders", durability="fsync")
    store.create("copies", durability="fsync")
    append(store, 0, 4)
    promised.begun = True
    promised.first = 4 if start == "latest" else 0
    route = store.route("orders", "copies", where=WANTED, start=start, exactly_once=promised.once)
    promised.made = True
    run(store)
    append(store, 4, 3)
    append(store, 7, 3)
    run(store)
    store.close()
    store = opened(disk)
    append(store, 10, 2)
    run(store)
    route = store.route(name=route.name)
    promised.again = True
    route.seek(9)
    run(store)
    promised.gone = True
    route.delete()
    abandon(store)


def looked_at(after: SimulatedDisk, promised: Promised) -> None:
    judged = fsck.judge(after, pages=False)
    assert not [p for p in judged.problems if p.path in ("routes", "routes.lock")], judged.problems
    with opened(after) as store:
        known = store.routes()
        if not known:
            assert not promised.made or promised.gone, "the route is lost"
            if "orders" not in store or "copies" not in store:
                return
            again = store.route("orders", "copies", where=WANTED, name="another")
            assert [each.name for each in store.groups()] == [f"route:{again.id}"], "swept"
            return
        assert promised.begun
        run(store)
        (status,) = store.routes()
        assert (status.state, status.records, status.reason) == ("running", 0, "")
        source = [r.value for r in store["orders"].read(promised.first) if r.tag == "eu"]
        found = [record.value for record in store["copies"].read()]
        assert set(found) == set(source)
        if promised.once and not promised.again:
            assert found == source
        if promised.once:
            assert max(Counter(found).values(), default=0) <= 2


@pytest.mark.parametrize(
    ("start", "once"),
    [
        pytest.param("earliest", True, id="earliest-exactly-once"),
        pytest.param("earliest", False, id="earliest-at-least-once", marks=pytest.mark.slow),
        pytest.param("latest", True, id="latest-exactly-once", marks=pytest.mark.slow),
        pytest.param("latest", False, id="latest-at-least-once", marks=pytest.mark.slow),
    ],
)
def test_a_death_anywhere_leaves_a_route_that_leaves_nothing_out(start: str, once: bool) -> None:
    disk, promised = WatchedDisk(), Promised(once)
    seen: set[tuple[Any, ...]] = set()
    looking = False
    states = 0

    def look(*_: Any) -> None:
        nonlocal looking, states
        if looking or not promised.begun:
            return
        looking = True
        told = (promised.made, promised.again, promised.gone)
        try:
            for after in (disk.kill(), *disk.crashes(most=8, chances=1)):
                image = (*told, after.image())
                if image not in seen:
                    seen.add(image)
                    states += 1
                    looked_at(plain(after), promised)
        finally:
            looking = False

    disk.watch = look
    disk.look = look
    script(disk, promised, start)
    assert states >= 100


# ---- faults ----------------------------------------------------------------------------------

STEPS = ("define", "forward", "again", "pause", "seek", "delete")


def do(step: str, store: esker.Store, once: bool) -> None:
    if step == "define":
        store.route("orders", "copies", where=WANTED, exactly_once=once)
        return
    route = store.route(name="orders->copies")
    match step:
        case "forward":
            route.run_once()
        case "again":
            append(store, 9, 6)
            route.run_once()
        case "pause":
            route.pause()
            route.resume()
        case "seek":
            route.seek("latest")
        case "delete":
            route.delete()


@pytest.mark.parametrize("once", [False, True], ids=["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kind", [errno.EIO, errno.ENOSPC, "KeyboardInterrupt"])
@pytest.mark.parametrize("failing", STEPS)
def test_a_step_that_fails_is_done_or_not_and_nothing_is_left_out(
    failing: str, kind: Any, once: bool
) -> None:
    for at in range(1, 200, 2 if failing != "define" else 1):
        disk = SimulatedDisk()
        store = opened(disk)
        store.create("orders", durability="fsync")
        store.create("copies", durability="fsync")
        append(store, 0, 9)
        for step in STEPS[: STEPS.index(failing)]:
            do(step, store, once)
        fault = disk.fail(Fault(kind, at))
        with suppress(esker.EskerError, KeyboardInterrupt):
            do(failing, store, once)
        disk.heal()
        abandon(store)
        if not fault.hits:
            break
        with opened(disk.kill()) as store:
            if not store.routes():
                assert failing in ("define", "delete")
                store.route("orders", "copies", where=WANTED, exactly_once=once, name="another")
                assert [each.name for each in store.groups()] == [f"route:{store.routes()[0].id}"]
            route = store.route(name=store.routes()[0].name)
            route.resume()
            run(store)
            source = [record.value for record in store["orders"].read() if record.tag == "eu"]
            found = [record.value for record in store["copies"].read()]
            assert set(found) == set(source)
            if once and failing != "delete":
                assert found == source
    else:
        raise AssertionError("it never ended")


def test_what_is_not_durable_in_the_destination_is_not_acked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened(SimulatedDisk())
    store.create("orders", durability="fsync")
    append(store, 0, 9)
    route = store.route("orders", "copies")
    plainly = esker.Topic.sync

    def refused(topic: esker.Topic) -> None:
        if topic.name == "copies":
            raise esker.StorageError("the disk says no")
        plainly(topic)

    with monkeypatch.context() as patch:
        patch.setattr(esker.Topic, "sync", refused)
        route.run_once()
    assert route.status().records == 9
    assert "the disk says no" in route.status().reason
    route.run_once()
    assert (route.status().records, route.status().reason) == (0, "")
    store.close()
