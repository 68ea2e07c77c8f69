"""Backups: what they hold, also beside a writer that rolls fast; what they refuse; crashes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import esker
from esker.errors import InvalidOption, NotAStore
from tests.helpers import Child, child, snapshot, wait_until

WRITER = """
import sys, time, esker
with esker.open(sys.argv[1]) as store:
    options = dict(segment_bytes=8192, exist_ok=True)
    safe = store.create("safe", durability="fsync", shards=2, **options)
    capped = store.create("capped", cap_records=300, **options)
    gone = store.create("gone", **options)
    number, told = 0, False
    while True:
        safe.append_many([b"%d" % number + b"x" * 60] * 5, wait=True)
        capped.append_many([b"y" * 80] * 10)
        if number % 20 == 7:
            gone.append_many([b"a" * 50, b"b" * 50])
            gone.append(b"to be deleted" * 5, tag="d", wait=True)
            gone.delete(tag="d")
            store.create("new.%d" % number).append(b"new", wait=True)
        if number % 40 == 8 and number > 40:
            store.delete("new.%d" % (number - 41), missing_ok=True)
        number += 1
        time.sleep(0.005)
        if number >= 100 and not told and capped.earliest():
            told = True  # the background has come to evict, however busy the machine is
            print("ready", flush=True)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Child]:
    with child(WRITER, tmp_path / "data") as made:
        wait_until(lambda: made.line() == "ready", "a writer that rolls")
        yield made
        made.kill()


@pytest.mark.crash
def test_a_backup_beside_a_writer_holds_all_that_was_durable_when_it_began(
    tmp_path: Path, writer: Child
) -> None:
    data, base = tmp_path / "data", None
    for number in range(3):
        with esker.open(data, "r") as store:
            durable = [store["safe"].durable(shard) for shard in range(2)]
            sought = {
                (shard, record.offset): record.value
                for shard in range(2)
                for record in store["safe"].read("earliest", shard=shard)
                if record.offset < durable[shard]
            }
        copy, back = tmp_path / f"copy {number}", tmp_path / f"back {number}"
        esker.backup(data, copy, base=base)
        assert esker.verify(copy).problems == []
        esker.restore(copy, back)
        assert esker.verify(back).problems == []
        with esker.open(back, background=False) as store:
            assert str(store.recovery) == "clean: nothing to recover"
            found = {(each.shard, each.offset): each.value for each in store["safe"].read()}
            assert sought.items() <= found.items()
            # only the newest may be there: the copy may be of the moment before it was deleted
            assert b"to be deleted" * 5 not in store["gone"][:].values[:-1]
            assert len(store["gone"]) >= 2
            gaps = [each for each in store["capped"].read(0, gaps="yield")
                    if isinstance(each, esker.Gap)]  # fmt: skip
            assert [gap.reason for gap in gaps] == ["evicted"]
            assert len(store["capped"]) >= 300
            store["safe"].append(b"it goes on", wait=True)
            store["capped"].append(b"it goes on", wait=True)
            store["gone"].append(b"it goes on", wait=True)
            assert store["gone"].get(-1).value == b"it goes on"  # no old deletion hides it
        base = copy


def full(path: Path) -> None:
    """A store with everything: groups, a queue with leases, a route, deletions, options."""
    with esker.open(path) as store:
        orders = store.create("orders", segment_bytes=4096, shards=2)
        for number in range(200):
            orders.append(b"%d" % number * 40, key=b"%d" % number, tag="odd" if number % 2 else "",
                          wait=True)  # fmt: skip
        orders.delete(tag="odd")
        store.tick()
        with orders.group("billing") as group:
            for batch in group.poll(max_records=7):
                batch.ack()
                break
        emails = store.queue("emails", lease="5m")
        emails.put_many([b"a", b"b", b"c"])
        emails.ack(emails.claim(1))
        store.route("orders", "copies", where='tag == "none"')


def test_groups_queues_routes_and_deletions_are_in_it(tmp_path: Path) -> None:
    full(tmp_path / "data")
    esker.backup(tmp_path / "data", tmp_path / "copy")
    told = []
    for path in ("data", "copy"):
        with esker.open(tmp_path / path, routes=False) as store:
            orders = store["orders"]
            told.append((
                sorted(orders[:].values),
                [group.records for group in orders.groups() if group.name == "billing"],
                [job.value for job in store.queue("emails").peek()],
                store.queue("emails").stats().ready,
                [route.name for route in store.routes()], orders.options,
            ))  # fmt: skip
    assert told[0] == told[1]
    assert len(told[0][0]) == 100


def test_a_store_that_was_closed_is_copied_as_it_is_and_not_touched(tmp_path: Path) -> None:
    full(tmp_path / "data")
    before = snapshot(tmp_path / "data")
    esker.backup(tmp_path / "data", tmp_path / "copy")
    assert snapshot(tmp_path / "data") == before
    copied = {path.name for path in (tmp_path / "copy").rglob("*.seg")}
    assert copied == {path.name for path in (tmp_path / "data").rglob("*.seg")}


def test_an_unfinished_backup_has_no_name_and_the_next_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(tmp_path / "data")

    def died(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("esker.upkeep.backup._recover", died)
        with pytest.raises(KeyboardInterrupt):
            esker.backup(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert (tmp_path / "copy.partial").exists()
    esker.backup(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy.partial").exists()
    assert esker.verify(tmp_path / "copy").ok


def test_damage_is_not_backed_up_as_if_it_were_well(tmp_path: Path) -> None:
    full(tmp_path / "data")
    victim = next((tmp_path / "data").rglob("*.seg"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(esker.Corruption, match="not in order"):
        esker.backup(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    shutil.rmtree(tmp_path / "data")  # it is damaged on purpose
    shutil.rmtree(tmp_path / "copy.partial")


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    full(data)
    full(tmp_path / "other")
    esker.backup(data, tmp_path / "copy")
    with pytest.raises(InvalidOption, match="is there already"):
        esker.backup(data, tmp_path / "copy")
    with pytest.raises(InvalidOption, match="lies in"):
        esker.backup(data, data / "copy")
    with pytest.raises(InvalidOption, match="no backup of the same store"):
        esker.backup(data, tmp_path / "next", base=tmp_path / "other")
    with pytest.raises(NotAStore):
        esker.backup(tmp_path / "nothing", tmp_path / "next")
    with pytest.raises(NotAStore):
        esker.restore(tmp_path / "nothing", tmp_path / "next")
    with pytest.raises(InvalidOption, match="not empty"):
        esker.restore(tmp_path / "copy", data)
    (tmp_path / "empty").mkdir()
    esker.restore(tmp_path / "copy", tmp_path / "made" / "with it" / "back")
    esker.backup(data, tmp_path / "backups" / "monday")  # as the docs have it
    assert esker.restore(tmp_path / "copy", tmp_path / "empty").topics == 3


def test_segments_of_an_older_backup_are_linked_and_a_restored_store_shares_nothing(
    tmp_path: Path,
) -> None:
    full(tmp_path / "data")
    esker.backup(tmp_path / "data", tmp_path / "one")
    done = esker.backup(tmp_path / "data", tmp_path / "two", base=tmp_path / "one")
    assert done.linked == len(list((tmp_path / "data").rglob("*.seg")))
    esker.restore(tmp_path / "two", tmp_path / "back")
    assert {path.stat().st_nlink for path in (tmp_path / "two").rglob("*.seg")} == {2}
    assert {path.stat().st_nlink for path in (tmp_path / "back").rglob("*.seg")} == {1}


KILLED = """
import sys, esker
with esker.open(sys.argv[1]) as store:
    topics = [store.create("t%d" % number, durability="fsync") for number in range(12)]
    for number in range(10**9):
        for topic in topics:
            topic.append(b"%d" % number)
        store.sync()
        if number == 20:
            print("ready", flush=True)
"""


@pytest.mark.crash
def test_a_store_whose_writer_was_killed_is_copied_with_what_its_journals_have(
    tmp_path: Path,
) -> None:
    with child(KILLED, tmp_path / "data") as writer:
        assert writer.line() == "ready"
        writer.kill()
    esker.backup(tmp_path / "data", tmp_path / "copy")
    assert esker.verify(tmp_path / "copy").problems == []
    told = []
    for path in ("copy", "data"):
        with esker.open(tmp_path / path) as store:
            told.append({name: store[name][:].values for name in store})
    assert told[0] == told[1]
    assert min(map(len, told[0].values())) > 20


def test_what_lies_in_a_cold_store_stays_there_and_is_told(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", cold=tmp_path / "cold") as store:
        topic = store.create("t", segment_bytes=4096)
        for _ in range(30):
            topic.append_many([b"z" * 100] * 10)
        store.tick()
        moved = store.tier("t", "cold").segments
    done = esker.backup(tmp_path / "data", tmp_path / "copy")
    assert done.cold_segments == moved > 0
    assert "only their stubs" in str(done)
    with esker.open(tmp_path / "copy", "r") as store:
        assert len(list(store["t"].read())) == 300
