"""Batches made elsewhere: invisible until they are committed, then a part of the log, once.

Who commits is not always who writes the shard. The tests here go through all three: the committing
process itself, a living writer beside it, and whoever opens the store next.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine import attach as engine
from esker.engine.attach import STAGED_AGE_US
from esker.format import names
from esker.format.commit import Ticket
from esker.options import JOURNAL_DIRTY_SHARDS
from esker.testing import LOST, ManualClock, SimulatedDisk
from tests.helpers import HandClock, child, only, raised, wait_until

ROOT = "/store"


def staged(store: esker.Store, topic: str, *values: Any, shard: int = 0) -> list[Ticket]:
    with store.stage(topic, shard) as made:
        assert made.append_many(values) == len(values)
        assert made.tickets == []
    return made.tickets


def pairs(store: esker.Store, topic: str = "t", **where: Any) -> list[tuple[int, bytes]]:
    return [(record.offset, bytes(record.value)) for record in store[topic].read(0, **where)]


def values(store: esker.Store, topic: str = "t", **where: Any) -> list[bytes]:
    return [value for _, value in pairs(store, topic, **where)]


def files_like(root: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in root.rglob(pattern))


# ---- what is there, and when -----------------------------------------------------------------


def test_staged_records_are_not_there_before_the_commit_and_behind_all_others_after_it(
    store: esker.Store,
) -> None:
    topic = store["t"]
    topic.append_many([b"a", b"b"])
    tickets = staged(store, "t", b"c", b"d")
    assert values(store) == [b"a", b"b"]
    topic.append(b"appended after staging")
    assert store.attach("w", 1, tickets)
    assert pairs(store) == [
        (0, b"a"), (1, b"b"), (2, b"appended after staging"), (3, b"c"), (4, b"d"),
    ]  # fmt: skip
    assert topic.append(b"e", wait=True) == 5
    assert values(store)[-1] == b"e"
    assert topic.durable(0) >= 5


def test_the_order_is_that_of_the_tickets(store: esker.Store) -> None:
    store.create("t")
    first, second = staged(store, "t", b"1", b"2"), staged(store, "t", b"3")
    assert store.attach("w", 1, second + first)
    assert values(store) == [b"3", b"1", b"2"]


def test_every_way_of_reading_finds_them(tmp_path: Path, clock: HandClock) -> None:
    with esker.open(tmp_path / "data", clock=clock, background=False) as store:
        topic = store["t"]
        topic.append(b"old", wait=True)
        clock.forward(60)
        moment = clock.now_us()
        tickets = staged(store, "t", *[b"%d" % n for n in range(10)])
        clock.forward(60)
        topic.append(b"younger, and before them", wait=True)
        assert store.attach("w", 1, tickets)
        assert topic[4].value == b"2"
        assert topic[-1].value == b"9"
        assert [r.value for r in topic[-3:]] == [b"7", b"8", b"9"]
        assert [r.value for r in topic[3:5]] == [b"1", b"2"]
        assert [r.value for r in topic.read(-2)] == [b"8", b"9"]
        assert topic[2:].to_arrow().column("value").to_pylist() == [b"%d" % n for n in range(10)]
        assert next(topic.read("@2000-01-01")).offset == 0
        assert topic[2].timestamp == moment
        assert (topic.end(), len(topic[:])) == (12, 12)


def test_followers_see_them_here_and_in_another_process(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        topic.append(b"first", wait=True)
        with child(
            """
            import sys, esker
            with esker.open(sys.argv[1], "r") as store:
                for record in store["t"].follow(0, timeout=30):
                    print(record.offset, record.value.decode())
                    if record.value == b"last":
                        break
            """,
            tmp_path / "data",
        ) as reader:
            assert reader.line() == "0 first"
            mine = topic.follow(1, timeout=30)
            assert store.attach("w", 1, staged(store, "t", b"second", b"third"))
            topic.append(b"last", wait=True)
            lines = [next(mine).value for _ in range(3)]
            assert lines == [b"second", b"third", b"last"]
            assert [reader.line() for _ in range(3)] == ["1 second", "2 third", "3 last"]
            mine.close()


def test_pending_records_keep_the_offsets_they_were_given(still: esker.Store) -> None:
    topic = still["t"]
    given = [topic.append(b"%d" % n) for n in range(3)]  # buffered
    assert still.attach("w", 1, staged(still, "t", b"batch"))
    assert pairs(still) == [*[(n, b"%d" % n) for n in given], (3, b"batch")]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_class_takes_them_and_they_are_there_after_opening_again(
    tmp_path: Path, durability: Any, compression: Any
) -> None:
    expected: list[bytes] = []
    for turn in range(3):
        with esker.open(tmp_path / "data", background=False) as store:
            topic = store.create(
                "t", exist_ok=True, durability=durability, compression=compression,
                compress_min_bytes=64,
            )  # fmt: skip
            assert values(store) == expected
            expected.append(b"before %d" % turn)
            topic.append(expected[-1], wait=True)
            made = [b"%d %d " % (turn, n) + bytes(300) for n in range(5)]
            assert store.attach("w", turn, staged(store, "t", *made))
            expected += made
            assert values(store) == expected
    assert esker.verify(tmp_path / "data").problems == []


def test_a_batch_larger_than_a_segment_is_staged_as_several(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_bytes=4096)
        topic.append_many([b"before"])
        with store.stage("t") as made:
            for n in range(12):
                made.append_many([b"%02d" % n + bytes(900)])
        assert len(made.tickets) > 2
        assert sum(ticket.rows for ticket in made.tickets) == 12
        assert store.attach("w", 1, made.tickets)
        assert [value[:2] for value in values(store)][1:] == [b"%02d" % n for n in range(12)]
        topic.append(b"behind", wait=True)
    assert esker.verify(tmp_path / "data").problems == []


def test_several_topics_and_shards_in_one_batch(store: esker.Store) -> None:
    store.create("t", shards=3)
    store.create("u")
    tickets = [
        *staged(store, "t", b"0", shard=0), *staged(store, "t", b"2", b"22", shard=2),
        *staged(store, "u", b"u"),
    ]  # fmt: skip
    assert store.attach("w", 1, tickets)
    assert [values(store, shard=number) for number in range(3)] == [[b"0"], [], [b"2", b"22"]]
    assert values(store, "u") == [b"u"]


def test_arrow_data_is_staged_as_it_is_appended(store: esker.Store) -> None:
    store.create("t")
    with store.stage("t") as made:
        assert made.append_arrow(pa.table({"value": [b"a", b"b"], "key": [b"k", None]})) == 2
        assert made.append_arrow(pa.table({"value": pa.array([], pa.binary())})) == 0
    assert store.attach("w", 1, made.tickets)
    assert [(r.value, r.key) for r in store["t"].read()] == [(b"a", b"k"), (b"b", None)]


def test_what_nobody_writes_is_let_go_again(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as one:
        one.create("t")
        assert one.attach("w", 1, staged(one, "t", b"a"))
        with esker.open(tmp_path / "data", background=False) as two:
            two["t"].append(b"b", wait=True)
            assert two.attach("w", 2, staged(two, "t", b"c"))
        assert one.attach("w", 3, staged(one, "t", b"d"))
        one["t"].append(b"e", wait=True)
        assert pairs(one) == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))


# ---- once ------------------------------------------------------------------------------------


def test_a_batch_that_is_done_again_happens_once(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("t")
        tickets = staged(store, "t", b"a")
        assert store.attach("w", 5, tickets)
        assert not store.attach("w", 5, tickets), "the very same"
        for sequence in (5, 4, 0):
            again = staged(store, "t", b"never")
            assert not store.attach("w", sequence, again)
        assert files_like(tmp_path, "*.staged") == []
        assert store.attach("another", 5, staged(store, "t", b"b")), "writers do not share numbers"
        assert store.attach("w", 6, staged(store, "t", b"c"))
    with esker.open(tmp_path / "data", background=False) as store:
        assert not store.attach("w", 6, staged(store, "t", b"never"))
        assert store.attach("w", 7, [])
        assert values(store) == [b"a", b"b", b"c"]
    assert len(files_like(tmp_path, "*.commit")) == 2, "one for each writer"


def test_a_commit_that_is_replaced_while_one_looks_is_found_as_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esker.open(tmp_path / "s") as store:
        store.attach("w", 1, staged(store, "t", b"a"))
        store.attach("other", 1, staged(store, "t", b"b"))
        folder = str(tmp_path / "s" / "staging")
        seen = engine._listed(store._context.files, folder)
        store.attach("w", 2, staged(store, "t", b"c"))  # and the commit that was seen is gone
        looks, listed = [seen], engine._listed
        monkeypatch.setattr(
            engine, "_listed", lambda *where: looks.pop() if looks else listed(*where)
        )
        assert store.attached("w") == 2
        looks.append(seen)
        assert [each.writer for each in engine.commits(store._context)] == ["other"]
        looks.append(seen)
        link = tmp_path / "s" / "staging" / names.commit(*seen[0])
        link.symlink_to("nowhere")
        with pytest.raises(esker.StorageError, match=r"nowhere|link"):
            list(engine.commits(store._context))
        link.unlink()


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("t", segment_bytes=4096)

        def fails() -> None:
            with store.stage("t") as made:
                made.append_many([bytes(2048)])
                made.append_many([bytes(2048)])  # the first is done, this one is open
                assert len(files_like(tmp_path, "*.staged")) == 2
                raise ZeroDivisionError

        assert isinstance(raised(fails), ZeroDivisionError)
        assert files_like(tmp_path, "*.staged") == []
        with store.stage("t") as made:
            made.append_many([b"a"])
        made.discard()
        made.discard()
        assert made.tickets == []
        assert files_like(tmp_path, "*.staged") == []
        assert values(store) == []


def test_what_nobody_commits_for_a_day_is_collected(tmp_path: Path, clock: HandClock) -> None:
    with esker.open(tmp_path / "data", clock=clock, background=False) as store:
        store.create("t")
        forgotten = staged(store, "t", b"forgotten")
        kept = staged(store, "t", b"committed and not attached")
        assert engine.commit(store._context, "slow", 1, kept)
        clock.forward(STAGED_AGE_US / 1e6 - 1)
        assert store.attach("w", 1, staged(store, "t", b"a"))
        assert len(files_like(tmp_path, "*.staged")) == 2, "it is not a day yet"
        clock.forward(2)
        assert store.attach("w", 2, staged(store, "t", b"b"))
        assert files_like(tmp_path, "*.staged") == [kept[0].file]
        with pytest.raises(
            esker.StorageError, match=r"left alone for a day.*stage the batch again"
        ):
            store.attach("w", 3, forgotten)
        assert not store.attach("slow", 1, kept)
        assert values(store) == [b"a", b"b", b"committed and not attached"]


# ---- what is refused -------------------------------------------------------------------------


def test_wrong_arguments_are_named(store: esker.Store, tmp_path: Path) -> None:
    store.create("t", shards=2)
    tickets = staged(store, "t", b"a")
    for shard in (-1, 2, True, "0", None):
        with pytest.raises(esker.InvalidOption, match=r"shard=.*topic 't' has shards 0\.\.1"):
            store.stage("t", shard)  # type: ignore[arg-type]
    for writer in ("", 7, None, "x" * 1025):
        with pytest.raises(esker.InvalidOption, match=r"writer=.*1 to 1,024 bytes"):
            store.attach(writer, 1, tickets)  # type: ignore[arg-type]
    for sequence in (-1, True, 1.0, "1", None, 1 << 62):
        with pytest.raises(esker.InvalidOption, match=r"sequence=.*grows from batch to batch"):
            store.attach("w", sequence, tickets)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidOption, match="named twice"):
        store.attach("w", 1, tickets * 2)
    for wrong in ("a.staged", None, Ticket(1, 0, "../lock", 1, 1, 1, 1, 1, 1)):
        with pytest.raises(esker.InvalidOption, match="is not a ticket"):
            store.attach("w", 1, [wrong])  # type: ignore[list-item]
    with pytest.raises(esker.InvalidOption, match="timeout"):
        store.attach("w", 1, tickets, timeout=-1)
    assert files_like(tmp_path, "*.commit") == []
    assert store.attach("w", 1, tickets)


def test_an_ephemeral_topic_takes_no_segments(store: esker.Store) -> None:
    store.create("e", durability="ephemeral")
    with pytest.raises(esker.InvalidOption, match="ephemeral"):
        store.stage("e")


def test_a_reader_neither_stages_nor_attaches(path: Path) -> None:
    with esker.open(path, "r") as store:
        with pytest.raises(esker.ReadOnlyStore):
            store.stage("t")
        with pytest.raises(esker.ReadOnlyStore):
            store.attach("w", 1, [])


def test_a_topic_deleted_before_the_commit_takes_the_batch_with_it(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("t")
        store.create("u")
        tickets = staged(store, "t", b"a") + staged(store, "u", b"b")
        store.delete("t")
        with pytest.raises(esker.StorageError, match=r"their topic was deleted.*Nothing was comm"):
            store.attach("w", 1, tickets)
        assert files_like(tmp_path, "*.commit") == []
        assert values(store, "u") == []


def test_a_topic_deleted_after_the_commit_is_no_hindrance(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("t")
        store.create("u")
        tickets = staged(store, "t", b"a") + staged(store, "u", b"b")
        assert engine.commit(store._context, "w", 1, tickets)
        store.delete("t")
        assert not store.attach("w", 1, tickets)
        assert values(store, "u") == [b"b"]
        assert store.attach("w", 2, [])


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.damages
def test_a_staged_segment_that_was_damaged_is_not_shown(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        store["t"].append(b"before", wait=True)
        tickets = staged(store, "t", b"a", b"b")
        file = only(root, tickets[0].file)
        data = bytearray(file.read_bytes())
        data[data.index(b"ESKF", 300) + 70] ^= 1
        file.write_bytes(data)
        with pytest.raises(esker.Corruption, match="not what was committed") as problem:
            store.attach("w", 1, tickets)
        assert problem.value.path == str(file)
        assert values(store) == [b"before"]
        assert store["t"].append(b"after", wait=True) == 1
    found = esker.verify(root)
    assert found.kinds == ["commit", "pending_attach"]
    assert (found.problems[0].path, found.problems[0].severity) == (str(file), "error")
    esker.repair(root)
    with esker.open(root, background=False) as store:
        assert store.recovery.labels == ["corrupt_commit"]
        assert values(store) == [b"before", b"after"]
        with pytest.raises(esker.AttachPending, match="batch 1 of 'w' is committed and not yet"):
            store.attach("w", 2, [])


@pytest.mark.damages
def test_a_commit_that_was_damaged_is_reported_and_its_number_is_not_given_twice(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        store.create("t")
        assert store.attach("w", 1, staged(store, "t", b"a"))
    file = only(root, "*.commit")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"!")
    found = esker.verify(root)
    assert [(p.kind, p.severity, p.path) for p in found.problems] == [
        ("commit", "error", str(file))
    ]
    with esker.open(root, background=False) as store:
        assert store.recovery.labels == ["corrupt_commit"]
        assert store.recovery.findings[0].path == str(file)
        for sequence in (1, 2):
            with pytest.raises(esker.Corruption, match="commit body") as problem:
                store.attach("w", sequence, staged(store, "t", b"never"))
            assert problem.value.path == str(file)
        assert values(store) == [b"a"]
    file.write_bytes(whole[:4] + b"\x09" + whole[5:])
    with esker.open(root, "r") as store:
        assert store.recovery.labels == ["corrupt_commit"]


def test_a_log_that_was_cut_to_nothing_does_not_give_its_number_away(tmp_path: Path) -> None:
    """Records would be at offsets that others had."""
    disk = SimulatedDisk(seed=1)
    with esker.open(ROOT, files=disk, clock=ManualClock(), background=False) as store:
        store.create("t", durability="disk").append_many([b"a", b"b", b"c"])
    (log,) = [name for name in disk.contents() if name.endswith(".log")]
    first = disk.contents()[log].index(b"ESKF", 200)
    disk.open(log, "rw").truncate(first)
    with esker.open(ROOT, files=disk, clock=ManualClock(), background=False) as store:
        tickets = staged(store, "t", b"batch")
        problem = raised(lambda: store.attach("w", 1, tickets))
        there = {record.offset: record.value for record in store["t"].read(3)}
        assert isinstance(problem, esker.Corruption) or there == {3: b"batch"}
        store._context.forked = True


@pytest.mark.parametrize("crash", [False, True])
def test_a_log_that_a_journal_made_durable_may_give_its_number_to_a_segment(crash: bool) -> None:
    """The checkpoint that comes later has nothing to sync of it, and finds no file."""
    disk, clock = SimulatedDisk(seed=1), HandClock()
    store = esker.open(ROOT, files=disk, clock=clock, background=False)
    topic = store.create("t", segment_age=0.01)
    topic.append(b"0", wait=True)
    clock.forward(0.05)
    store.tick()  # a log without records is in the place of the one that was sealed
    for name in "abcdef":
        store[name].append(b"x")
    store.sync()  # so many that it goes through a journal
    assert len(store._context.committer._journaled) > JOURNAL_DIRTY_SHARDS
    assert store.attach("w", 1, staged(store, "t", b"1", b"2"))
    if crash:
        store._context.forked = True
        store.close()
        disk = disk.crash(LOST)
    else:
        store._context.committer.checkpoint()
        assert topic.append(b"3", wait=True) == 3
        store.close()
    with esker.open(ROOT, files=disk, clock=clock, background=False) as again:
        assert values(again, gaps="skip") == [b"0", b"1", b"2", b"3"][: 3 if crash else 4]
        assert [values(again, name, gaps="skip") for name in "abcdef"] == [[b"x"]] * 6
        assert again["t"].append(b"on", wait=True) >= 3


# ---- power and kills -------------------------------------------------------------------------


def test_a_gap_before_a_batch_stays_as_it_was() -> None:
    disk = SimulatedDisk(seed=1)
    store = esker.open(ROOT, files=disk, clock=ManualClock(), background=False)
    topic = store.create("t", durability="disk")
    topic.append_many([b"kept"])
    topic.sync()
    topic.append_many([b"lost", b"lost"])
    store._context.forked = True
    store.close()
    disk = disk.crash(LOST)
    with esker.open(ROOT, files=disk, clock=ManualClock(), background=False) as store:
        end = store["t"].end()
        assert end > 1
        assert store.attach("w", 1, staged(store, "t", b"a", b"b"))
        for _ in range(2):
            found: list[Any] = list(store["t"].read(0, gaps="yield"))
            assert [(r.offset, r.value) for r in (found[0], *found[2:])] == [
                (0, b"kept"), (end, b"a"), (end + 1, b"b"),
            ]  # fmt: skip
            assert (found[1].first, found[1].last) == (1, end - 1)
            store["t"].sync()
    assert esker.verify(ROOT, files=disk).problems == []


def test_who_dies_after_attaching_leaves_a_shard_that_is_brought_in_order() -> None:
    disk = SimulatedDisk(seed=1)
    with esker.open(ROOT, files=disk, clock=ManualClock(), background=False) as store:
        store.create("t", durability="fsync")
        store.attach("w", 1, staged(store, "t", b"a"))
    left: list[SimulatedDisk] = []
    store = esker.open(ROOT, files=disk, clock=ManualClock(), background=False)
    tickets = staged(store, "t", b"b")
    disk.watch = lambda call, when: left.append(disk.kill())
    store.attach("w", 2, tickets)
    disk.watch = None
    store.close()
    seen = set()
    for after in left:
        with esker.open(ROOT, files=after, clock=ManualClock(), background=False) as store:
            seen.add(tuple(record.value for record in store["t"].read()))
        found = esker.verify(ROOT, files=after)
        assert found.ok, str(found)
    assert seen == {(b"a",), (b"a", b"b")}


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_what_was_attached_survives_power_loss_with_all_before_it(durability: Any) -> None:
    disk = SimulatedDisk(seed=2)
    store = esker.open(ROOT, files=disk, clock=ManualClock(), background=False)
    store.create("t", durability=durability).append(b"buffered before")
    assert store.attach("w", 1, staged(store, "t", b"a", b"b"))
    store._context.forked = True
    store.close()
    after = disk.crash(LOST)
    with esker.open(ROOT, files=after, clock=ManualClock(), background=False) as store:
        assert values(store, gaps="skip") == [b"buffered before", b"a", b"b"]
        assert not store.attach("w", 1, [])


@pytest.mark.crash
@pytest.mark.parametrize("at", [0, 1])
def test_a_process_killed_between_commit_and_attachment_is_no_loss(tmp_path: Path, at: int) -> None:
    root = tmp_path / "data"
    with child(
        """
        import os, signal, sys
        import esker
        from esker.engine import attach

        whole, left = attach.attach, [int(sys.argv[2])]

        def stopping(shard, ticket):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return whole(shard, ticket)

        attach.attach = stopping
        store = esker.open(sys.argv[1])
        tickets = []
        for name in ("t", "u"):
            store.create(name).append(b"before", wait=True)
            with store.stage(name) as staged:
                staged.append_many([b"a", b"b"])
            tickets += staged.tickets
        print("ready")
        store.attach("w", 1, tickets)
        """,
        root, at,
    ) as dying:  # fmt: skip
        assert dying.line() == "ready"
        assert dying.process.wait(30) == -signal.SIGKILL
    assert len(files_like(root, "*.staged")) == 2 - at
    assert "pending_attach" in esker.verify(root).kinds
    assert esker.verify(root).ok
    with esker.open(root, background=False) as store:
        assert "unfinished_attach" in store.recovery.labels
        assert values(store, "t") == values(store, "u") == [b"before", b"a", b"b"]
        assert not store.attach("w", 1, [])
    with esker.open(root, background=False) as store:
        assert store.recovery.clean
    assert esker.verify(root).problems == []


# ---- another process writes the shard --------------------------------------------------------

OWNER = """
import sys, esker
with esker.open(sys.argv[1], background=sys.argv[2] == "True") as store:
    topic = store["t"]
    topic.append(b"the owner's", wait=True)
    print("ready")
    for line in sys.stdin:
        if line.strip() == "tick":
            store.tick()
        if line.strip() == "append":
            topic.append(b"behind", wait=True)
        print(" ".join(record.value.decode() for record in topic.read(0)))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with esker.open(tmp_path / "data") as store:
        store.create("t")
    return tmp_path / "data"


@pytest.mark.crash
def test_a_living_owner_attaches_what_another_process_commits(root: Path) -> None:
    with child(OWNER, root, True) as owner, esker.open(root) as store:
        assert owner.line() == "ready"
        for number in range(3):
            assert store.attach("w", number, staged(store, "t", b"batch-%d" % number))
            assert values(store)[-1] == b"batch-%d" % number
        owner.say("append")
        assert owner.line() == "the owner's batch-0 batch-1 batch-2 behind"
        assert pairs(store)[-1] == (4, b"behind")
        with pytest.raises(esker.WriterBusy):
            store["t"].append(b"no", wait=True)
        owner.end()


@pytest.mark.crash
def test_an_owner_that_does_not_look_is_named_and_attaches_with_its_next_tick(root: Path) -> None:
    with child(OWNER, root, False) as owner, esker.open(root, background=False) as store:
        assert owner.line() == "ready"
        tickets = staged(store, "t", b"batch")
        with pytest.raises(esker.AttachPending, match=f"wait for process {owner.pid}, which holds"):
            store.attach("w", 1, tickets, timeout=0.05)
        with pytest.raises(esker.AttachPending, match="batch 1 of 'w' is committed and not yet"):
            store.attach("w", 2, [], timeout=0.05)
        assert values(store) == [b"the owner's"]
        owner.say("tick")
        assert owner.line() == "the owner's batch"
        assert not store.attach("w", 1, tickets, timeout=0)
        assert values(store) == [b"the owner's", b"batch"]
        owner.end()


@pytest.mark.crash
def test_what_an_owner_never_attached_is_attached_by_the_next_opening(root: Path) -> None:
    with child(OWNER, root, False) as owner, esker.open(root, background=False) as store:
        assert owner.line() == "ready"
        with pytest.raises(esker.AttachPending):
            store.attach("w", 1, staged(store, "t", b"batch"), timeout=0)
        with esker.open(root, background=False) as other:
            assert other.recovery.labels == ["unrecovered"]
        os.kill(owner.pid, signal.SIGKILL)
        owner.process.wait(30)
    with esker.open(root, background=False) as store:
        assert "unfinished_attach" in store.recovery.labels
        assert values(store) == [b"the owner's", b"batch"]


@pytest.mark.crash
def test_many_processes_stage_and_one_attaches(root: Path) -> None:
    code = """
        import sys, esker
        from esker.format.commit import Ticket
        import msgspec
        with esker.open(sys.argv[1], background=False) as store:
            with store.stage("t") as staged:
                staged.append_many([sys.argv[2].encode()] * 3)
            print(msgspec.json.encode(staged.tickets).decode())
        """
    import msgspec

    tickets: list[Ticket] = []
    with child(code, root, "a") as one, child(code, root, "b") as two, esker.open(root) as store:
        for worker in (one, two):
            tickets += msgspec.json.decode(worker.line(), type=list[Ticket])
            worker.end()
        assert store.attach("w", 1, tickets)
        assert values(store) == [b"a"] * 3 + [b"b"] * 3


def test_a_damaged_batch_is_told_once_by_the_background(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store["t"].append(b"before", wait=True)
        tickets = staged(store, "t", b"a")
        file = only(tmp_path, tickets[0].file)
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        assert engine.commit(store._context, "w", 1, tickets)
        for _ in range(5):
            store.tick()
        assert caplog.text.count("attaching") == 1
        file.write_bytes(whole)
        store.tick()
        assert wait_until(lambda: values(store) == [b"before", b"a"])
