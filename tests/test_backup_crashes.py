"""Backups where something goes wrong: death, power cuts and faults at every call.

A store with sealed segments, a log, deletions, a group, a queue and a route lies on a simulated
disk, beside half of an older attempt. It is backed up, and a backup is restored; at every call that
changes the disk the process dies or the power goes, and of what is left

    named      a directory that has the name that was asked for is all of it, and in order
    half-made  one that is called NAME.partial is all of it, too, or nobody takes it for a store:
               `restore`, `open`, `verify` and `repair` refuse it
    source     what is copied has not changed
    again      the same call made again works, and leaves nothing else behind
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import esker
from esker.errors import EskerError, NotAStore
from esker.testing import KEPT, Fault, ManualClock, SimulatedDisk
from esker.testing.disk import Crash

pytestmark = [pytest.mark.crash, pytest.mark.slow]
DATA, COPY, BACK, LOOKED = "/data", "/copy", "/back", "/looked at"
Told = dict[str, Any]


def opened(disk: SimulatedDisk, path: str, mode: Any = "rw", **how: Any) -> esker.Store:
    return esker.open(path, mode, files=disk, clock=ManualClock(), background=False, **how)


def filled() -> SimulatedDisk:
    """A store of everything, closed."""
    disk = SimulatedDisk()
    with opened(disk, DATA) as store:
        orders = store.create("orders", segment_records=8, shards=2, durability="fsync")
        for number in range(20):
            orders.append(b"%d" % number, key=b"%d" % number, tag="odd" if number % 2 else "",
                          wait=True)  # fmt: skip
        orders.delete(tag="odd")
        store.tick()
        with orders.group("billing") as group:
            for batch in group.poll(max_records=3):
                batch.ack()
                break
        emails = store.queue("emails", lease="5m")
        emails.put_many([b"a", b"b", b"c"])
        emails.ack(emails.claim(1))
        store.route("orders", "copies", where='tag == "none"')
    return disk.crash(KEPT)  # and all of it durable


def content(disk: SimulatedDisk, path: str) -> Told:
    """All that a store knows, of one that may have to be recovered first."""
    with opened(disk, path, routes=False) as store:
        orders = store["orders"]
        return {
            "topics": sorted(store),
            "records": [(each.shard, each.offset, each.value) for each in orders.read()],
            "groups": [(group.name, group.records) for group in orders.groups()],
            "jobs": [job.value for job in store.queue("emails").peek()],
            "routes": [route.name for route in store.routes()],
        }


def backed_up(disk: SimulatedDisk) -> None:
    esker.backup(DATA, COPY, files=disk)


def restored(disk: SimulatedDisk) -> None:
    esker.restore(COPY, BACK, files=disk)


def begun(what: str) -> tuple[SimulatedDisk, Callable[[SimulatedDisk], None], str, str]:
    """The disk before it, the call, what it copies, and to where. An older attempt lies there."""
    disk = filled()
    backed_up(disk)
    if what == "backup":
        disk.rename(COPY, COPY + ".partial")  # one that had come to its end but for the name
        disk.sync_dir("/")
        return disk.crash(KEPT), backed_up, DATA, COPY
    restored(disk)
    disk.rename(BACK, BACK + ".partial")
    disk.sync_dir("/")
    return disk.crash(KEPT), restored, COPY, BACK


def check(disk: SimulatedDisk, work: Callable[[SimulatedDisk], None], source: str, target: str,
          sought: Told, image: bytes) -> str:  # fmt: skip
    """Hold what is left against what is promised; what was found."""
    assert disk.image(below=source) == image
    half = target + ".partial"
    found = "nothing"
    if disk.kind(half):
        found = "half"
        look = disk.kill()
        try:
            esker.restore(half, LOOKED, files=look)
        except EskerError:
            assert not look.kind(LOOKED)
            named = any(name.startswith("catalog-") for name in disk.list(half))
            if named and not disk.kind(half + "/esker.store"):
                for refused in (
                    lambda: opened(disk, half, "r"), lambda: opened(disk, half),
                    lambda: esker.verify(half, files=disk), lambda: esker.repair(half, files=disk),
                ):  # fmt: skip
                    with pytest.raises(NotAStore, match="never finished"):
                        refused()
        else:
            found = "whole, without its name"
            assert content(look, LOOKED) == sought
    if disk.kind(target):
        found = "done"
        look = disk.kill()
        assert esker.verify(target, files=look).ok
        assert content(look, target) == sought
    else:
        work(disk)
        assert not disk.kind(half)
        assert esker.verify(target, files=disk).problems == []
        assert content(disk.kill(), target) == sought
    return found


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_every_crash_leaves_all_of_it_or_what_nobody_takes_for_it(what: str) -> None:
    disk, work, source, target = begun(what)
    sought, image = content(disk.kill(), source), disk.image(below=source)
    whole = disk.kill()
    before = whole.changes
    work(whole)
    calls, seen, found = whole.changes - before, set[bytes](), set[str]()
    assert calls > 100
    for call in range(1, calls + 1):
        dying = disk.kill()
        dying.stop_at(call)
        with pytest.raises(Crash):
            work(dying)
        states = [dying.kill(), *dying.crashes(most=3, chances=1)]
        for state in states:
            shape = state.image()
            if shape not in seen:
                seen.add(shape)
                found.add(check(state, work, source, target, sought, image))
    assert found == {"nothing", "half", "whole, without its name", "done"}


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_call_that_fails_is_told_and_what_it_leaves_is_refused(what: str) -> None:
    disk, work, source, target = begun(what)
    sought, image = content(disk.kill(), source), disk.image(below=source)
    for at in range(1, 10**6, 3):
        failing = disk.kill()
        fault = failing.fail(Fault(errno.EIO, at=at))
        with suppress(EskerError):
            work(failing)
        if not fault.hits:
            break
        failing.heal()
        check(failing.kill(), work, source, target, sought, image)
    assert at > 100
