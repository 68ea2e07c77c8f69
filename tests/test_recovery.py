"""One test for each thing that recovery may find: what is on disk, what is said, what is left.

Each builds a store on a simulated disk, damages it the way the label says, opens it, and looks at
the finding (label, path, position, offsets), at the data, and at a second opening, which must find
nothing. docs/recovery.md is the same table for people.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import attach
from esker.engine.findings import CASES, Finding
from esker.format import frame, journal, once, segment
from esker.options import RESERVE_OFFSETS
from esker.testing import LOST, NAMES_ONLY, Crash, Fault, ManualClock, SimulatedDisk

ROOT = "/store"
SHARD = f"{ROOT}/topics/00000001/0000"
LOG = f"{SHARD}/00000001-00000000000000000000.log"
SEALED = f"{SHARD}/00000001-00000000000000000000.seg"
JOURNAL = f"{ROOT}/journal/00000001.journal"
MANY = [f"j{n}" for n in range(6)]

Test = Callable[..., None]
covered: dict[str, list[str]] = {}


def covers(label: str) -> Callable[[Test], Test]:
    """Marks the test of a label."""

    def mark(test: Test) -> Test:
        covered.setdefault(label, []).append(test.__name__)
        return test

    return mark


def test_every_label_has_a_test_and_a_row_in_the_documentation() -> None:
    assert set(covered) == set(CASES)
    table = (Path(__file__).parents[1] / "docs" / "recovery.md").read_text(encoding="utf-8")
    assert [label for label in CASES if f"`{label}`" not in table] == []


# ---- building and breaking -------------------------------------------------------------------


def begin(durability: str = "memory", *names: str) -> tuple[SimulatedDisk, esker.Store]:
    disk = SimulatedDisk(seed=1)
    store = opened(disk)
    for name in names or ("t",):
        store.create(name, durability=durability, segment_bytes=4096)
    return disk, store


def opened(disk: SimulatedDisk, mode: Any = "rw", clock: ManualClock | None = None) -> esker.Store:
    return esker.open(
        ROOT, mode, files=disk, clock=clock or ManualClock(), background=False, journals=1,
        journal_bytes="64KiB",
    )  # fmt: skip


def die(disk: SimulatedDisk, store: esker.Store) -> SimulatedDisk:
    """The process is gone, and nothing is closed."""
    store._context.forked = True
    store.close()
    return disk.kill()


def edit(disk: SimulatedDisk, path: str, change: Callable[[bytearray], Any]) -> None:
    """Change a file on the platter itself."""
    data = bytearray(disk.contents()[path])
    change(data)
    disk.open(path, "rw").truncate(len(data))
    disk.poke(path, 0, bytes(data))


def flip(disk: SimulatedDisk, path: str, position: int) -> None:
    disk.poke(path, position, bytes([disk.contents()[path][position] ^ 0x10]))


def frames(data: bytes) -> list[tuple[int, frame.Header]]:
    """The frames of a log that is in order."""
    header = segment.decode_header(data[: segment.HEADER_SIZE])
    assert not isinstance(header, str)
    found, at = [], segment.HEADER_SIZE
    while at < len(data):
        head = frame.decode_header(data, at, at, header.salt)
        if isinstance(head, frame.Damage):
            break
        found.append((at, head))
        at += head.size
    return found


def made_header(log: bytes, number: int, base: int) -> bytes:
    """The header of a log that would follow this one at `base`."""
    old = segment.decode_header(log[: segment.HEADER_SIZE])
    assert not isinstance(old, str)
    return segment.encode_header(
        old._replace(segment=number, base=base, previous_end=base, previous_salt=old.salt)
    )


def entries(data: bytes) -> list[int]:
    """The positions of a journal's entries, and behind the last of them."""
    header = journal.decode_header(data[: journal.HEADER_SIZE])
    assert not isinstance(header, str)
    at = journal.HEADER_SIZE
    places = [at]
    while isinstance(entry := journal.decode_entry(data[at : at + 64], at, header.salt), tuple):
        at += journal.ENTRY_SIZE + frame.padded(entry.size)
        places.append(at)
    return places


def the(store: esker.Store, label: str) -> Finding:
    """The one finding with this label."""
    found = [finding for finding in store.recovery.findings if finding.label == label]
    assert len(found) == 1, str(store.recovery)
    assert label in str(found[0])
    assert found[0].path in str(found[0])
    return found[0]


def values(store: esker.Store, name: str = "t", start: Any = 0) -> list[bytes]:
    return [record.value for record in store[name].read(start)]


def goes_on(disk: SimulatedDisk, store: esker.Store, *names: str) -> None:
    """Takes a record in each topic, closes, and opens again with nothing to say."""
    ends = {}
    for name in names or ("t",):
        store[name].append(b"behind", wait=True)
        ends[name] = store[name].end()
    store.close()
    with opened(disk) as again:
        assert again.recovery.clean, str(again.recovery)
        for name, end in ends.items():
            assert again[name].end() == end
            assert again[name][-1].value == b"behind"


def journaled(rounds: int = 1) -> tuple[SimulatedDisk, esker.Store]:
    """Six topics whose records went through the journal."""
    disk, store = begin("fsync", *MANY)
    for turn in range(rounds):
        for name in MANY:
            store[name].append(f"{name} {turn}")
        store.sync()
    assert JOURNAL in disk.contents()
    return disk, store


def rolled(
    durability: str = "memory", batches: int = 2
) -> tuple[SimulatedDisk, esker.Store, list[bytes]]:
    """A topic of several logs, three records in three frames each, none sealed yet."""
    disk, store = begin(durability)
    written: list[bytes] = []
    for number in range(batches * 3):
        written.append(f"{number} ".encode() + bytes(1100))
        store["t"].append_many(written[-1:])
    return disk, store, written


# ---- torn: a crash left it -------------------------------------------------------------------


@covers("torn_tail")
@pytest.mark.parametrize("cut", [1, 60, 70])
def test_a_log_that_ends_inside_a_batch_is_cut_before_it(cut: int) -> None:
    disk, store = begin()
    store["t"].append_many([b"a", b"b", b"c"])
    store["t"].append_many([b"d", b"e"])
    disk = die(disk, store)
    start, head = frames(disk.contents()[LOG])[-1]
    edit(disk, LOG, lambda data: data.__delitem__(slice(len(data) - cut, None)))
    store = opened(disk)
    found = the(store, "torn_tail")
    assert (found.path, found.topic, found.shard, found.position) == (LOG, "t", 0, start)
    known = cut < head.size - frame.HEADER_SIZE  # the frame's own header says what it held
    assert (found.first, found.last) == ((3, 4) if known else (None, None))
    assert values(store) == [b"a", b"b", b"c"]
    assert store["t"].end() == 3
    goes_on(disk, store)


@covers("torn_journal")
def test_a_journal_that_ends_inside_an_entry_is_replayed_up_to_it() -> None:
    disk, store = journaled(2)
    whole = disk.contents()[JOURNAL]
    first_round = entries(whole)[6]
    store["j0"].append(b"not acknowledged")
    disk = die(disk, store).crash(LOST)
    disk.poke(JOURNAL, first_round + 100, bytes(40))  # as if the second round was being written
    store = opened(disk)
    found = the(store, "torn_journal")
    assert (found.path, found.position) == (JOURNAL, first_round)
    assert all(values(store, name)[0] == f"{name} 0".encode() for name in MANY)
    goes_on(disk, store, *MANY)


def test_a_recovery_that_loses_nothing_is_told_from_one_that_does() -> None:
    disk, store = begin("disk")
    store["t"].append_many([b"one", b"two"])
    store["t"].sync()
    disk = die(disk, store)
    with opened(disk) as store:
        store["t"].append(b"three", wait=True)
        found = store["t"].counters()
        assert (found["recoveries"], found["recoveries_clean"]) == (1, 1)
        disk = disk.crash(LOST)
    with opened(disk) as store:
        assert "lost_tail" in store.recovery.labels
        store["t"].append(b"four", wait=True)
        found = store["t"].counters()
        assert found["recoveries"] - found["recoveries_clean"] == 1


@covers("lost_tail")
def test_offsets_that_power_loss_took_become_a_gap_and_are_not_issued_again() -> None:
    disk, store = begin("disk")
    store["t"].append_many([b"a", b"b", b"c"])
    store["t"].sync()
    store["t"].append_many([b"d", b"e"])
    disk = die(disk, store).crash(LOST)
    store = opened(disk)
    found = the(store, "lost_tail")
    assert (found.path, found.first) == (SHARD, 3)
    assert found.reason == "lost unsynced tail"
    assert found.last is not None
    assert 4 < found.last <= 3 + 2 + RESERVE_OFFSETS
    items = list(store["t"].read(0, gaps="yield"))
    assert [item.value for item in items[:3]] == [b"a", b"b", b"c"]
    assert items[3:] == [esker.Gap("t", 0, 3, found.last, "lost unsynced tail")]
    assert store["t"].append(b"new", wait=True) == found.last + 1
    goes_on(disk, store)


@covers("later_log_set_aside")
def test_a_log_behind_one_that_lost_its_tail_is_set_aside_so_that_no_hole_remains() -> None:
    disk, store, written = rolled(batches=3)
    disk = die(disk, store)
    edit(disk, LOG, lambda data: data.__delitem__(slice(len(data) - 1, None)))
    store = opened(disk)
    found = [item for item in store.recovery.findings if item.label == "later_log_set_aside"]
    assert [(item.first, item.last) for item in found] == [(6, 8), (3, 5)]
    torn = the(store, "torn_tail")
    assert (torn.path, torn.first, torn.last) == (LOG, 2, 2)
    kept = [path for path in disk.contents() if "/quarantine/" in path]
    assert len(kept) == 2
    assert any(written[4] in disk.contents()[path] for path in kept)
    assert values(store) == written[:2]
    assert store["t"].end() == 2
    goes_on(disk, store)


@covers("unfinished_roll")
@pytest.mark.parametrize("content", [b"", bytes(64), bytes(8192)], ids=["empty", "short", "zeros"])
def test_a_log_that_was_being_made_is_removed(content: bytes) -> None:
    disk, store = begin()
    store["t"].append_many([b"a", b"b"])
    disk = die(disk, store)
    path = f"{SHARD}/00000002-00000000000000000002.log"
    disk.open(path, "create").write(0, [content])
    store = opened(disk)
    found = the(store, "unfinished_roll")
    assert (found.path, found.topic) == (path, "t")
    assert path not in disk.contents()
    assert values(store) == [b"a", b"b"]
    goes_on(disk, store)


@covers("unfinished_roll")
def test_a_log_that_could_not_be_rolled_keeps_what_was_appended_to_it_afterwards() -> None:
    """The new log was made, the disk failed, and it could not even be deleted again."""
    disk, store = begin("disk")
    store["t"].append_many([bytes(1500), bytes(1500)])
    disk.fail(Fault(errno.EIO, calls=frozenset({"unlink"})))
    disk.fail(Fault(errno.EIO, calls=frozenset({"write"}), inside="00000002-"))
    with pytest.raises(esker.StorageError):
        store["t"].append_many([bytes(1500)])
    disk.heal()
    path = f"{SHARD}/00000002-00000000000000000002.log"
    disk.open(path, "rw").write(0, [made_header(disk.contents()[LOG], 2, 2)])
    assert store["t"].append(b"small", wait=True) == 2  # the old log still has room for this
    store.close()
    store = opened(disk)
    assert the(store, "unfinished_roll").path == path
    assert values(store)[2:] == [b"small"]
    goes_on(disk, store)


@covers("unfinished_seal")
@pytest.mark.parametrize("call", ["write", "rename", "unlink"])
def test_a_crash_while_sealing_is_made_good(call: str) -> None:
    disk, store, written = rolled()

    def watch(made: Any, when: str) -> None:
        if made.name == call and (".seg" in made.path or call == "unlink"):
            disk.stop_at(0)

    disk.watch = watch
    with pytest.raises(Crash):
        store.tick()
    disk = die(disk, store)
    store = opened(disk)
    found = the(store, "unfinished_seal")
    assert found.path == (LOG if call == "unlink" else SEALED + ".tmp")
    assert not any(path.endswith(".tmp") for path in disk.contents())
    assert (SEALED in disk.contents()) != (LOG in disk.contents())
    assert values(store) == written
    goes_on(disk, store)


@covers("unfinished_seal")
def test_a_footer_that_was_not_finished_is_cut_off() -> None:
    disk, store = begin()
    first, second = ([bytes([n]) * 1100 for n in range(at, at + 3)] for at in (1, 4))
    store["t"].append_many(first)  # one frame, nothing to merge: sealed by appending a footer
    end = len(disk.contents()[LOG])
    store["t"].append_many(second)
    disk.watch = lambda made, when: disk.stop_at(0) if made.name == "rename" else None
    with pytest.raises(Crash):
        store.tick()
    disk = die(disk, store)
    assert len(disk.contents()[LOG]) > end
    store = opened(disk)
    found = the(store, "unfinished_seal")
    assert (found.path, found.position) == (LOG, end)
    assert values(store) == [*first, *second]
    goes_on(disk, store)


# ---- the journal -----------------------------------------------------------------------------


@covers("redone")
def test_bytes_that_only_the_journal_kept_are_written_again() -> None:
    disk, store = journaled(2)
    disk = die(disk, store).crash(LOST)
    assert LOG not in disk.contents()
    store = opened(disk)
    redone = [item for item in store.recovery.findings if item.label == "redone"]
    assert len(redone) == 12
    assert (redone[0].path, redone[0].topic, redone[0].position) == (LOG, "j0", 0)
    assert redone[1].position > 0
    assert JOURNAL not in disk.contents()
    for name in MANY:
        assert values(store, name) == [f"{name} 0".encode(), f"{name} 1".encode()]
    goes_on(disk, store, *MANY)


@covers("unfinished_checkpoint")
def test_a_journal_that_nobody_needs_any_more_is_dropped() -> None:
    disk, store = journaled()
    disk = die(disk, store)
    store = opened(disk)
    found = the(store, "unfinished_checkpoint")
    assert found.path == JOURNAL
    assert "6 entries" in found.reason
    assert JOURNAL not in disk.contents()
    goes_on(disk, store, *MANY)


@covers("corrupt_journal")
@pytest.mark.parametrize("where", ["entry", "header"])
def test_a_journal_damaged_below_what_was_durable_is_replayed_around_the_damage(
    where: str,
) -> None:
    disk, store = journaled(2)
    place = entries(disk.contents()[JOURNAL])[0] if where == "entry" else 0
    disk = die(disk, store).crash(LOST)
    flip(disk, JOURNAL, place + (80 if where == "entry" else 9))
    store = opened(disk)
    found = the(store, "corrupt_journal")
    assert (found.path, found.position) == (JOURNAL, place)
    assert JOURNAL not in disk.contents()
    assert any("/quarantine/" in path for path in disk.contents())
    for name in MANY if where == "header" else MANY[1:]:
        assert values(store, name) == [f"{name} 0".encode(), f"{name} 1".encode()]
    goes_on(disk, store, *MANY)


# ---- corrupt: no crash can have left it ------------------------------------------------------


@covers("corrupt_frame")
def test_a_damaged_frame_below_what_was_durable_is_refused_to_readers_and_costs_no_other() -> None:
    disk, store = begin()
    for batch in ([b"a", b"b"], [b"c", b"d", b"e"], [b"f"]):
        store["t"].append_many(batch)
        store["t"].sync()
    disk = die(disk, store)
    position = frames(disk.contents()[LOG])[2][0]  # behind CONFIG and the first batch
    flip(disk, LOG, position + frame.HEADER_SIZE + 16)
    store = opened(disk)
    found = the(store, "corrupt_frame")
    assert (found.path, found.position, found.first, found.last) == (LOG, position, 2, 4)
    with pytest.raises(esker.Corruption) as refused:
        values(store)
    assert (refused.value.first, refused.value.last) == (2, 4)
    assert values(store, start=5) == [b"f"]
    assert [record.value for record in store["t"].read(0, 2)] == [b"a", b"b"]
    goes_on(disk, store)


@covers("corrupt_frame")
def test_a_log_cut_at_a_frame_is_noticed_when_the_next_one_proves_that_it_was_longer() -> None:
    disk, store = begin()
    store["t"].append_many([b"a"])
    store["t"].append_many([bytes(1500), bytes(1500)])
    store["t"].append_many([bytes(1500), b"c"])  # in the next log
    store["t"].sync()
    store["t"].append_many([b"d"])  # says that the next log, and so this one, was synced
    disk = die(disk, store)
    end = frames(disk.contents()[LOG])[-1][0]
    edit(disk, LOG, lambda data: data.__delitem__(slice(end, None)))
    store = opened(disk)
    found = the(store, "corrupt_frame")
    assert (found.path, found.position, found.first, found.last) == (LOG, end, 1, 2)
    with pytest.raises(esker.Corruption):
        values(store)
    assert values(store, start=4) == [b"c", b"d"]
    goes_on(disk, store)


@covers("corrupt_header")
def test_a_log_whose_header_is_damaged_is_set_aside_and_its_offsets_become_a_gap() -> None:
    disk, store = begin("fsync")
    store["t"].append(b"a", wait=True)
    disk = die(disk, store)
    flip(disk, LOG, 40)
    size = len(disk.contents()[LOG])
    store = opened(disk)
    found = the(store, "corrupt_header")
    assert (found.path, found.first, found.last) == (LOG, 0, size // 4 - 1)
    assert LOG not in disk.contents()
    assert any(path.startswith(f"{ROOT}/quarantine/") for path in disk.contents())
    gap = next(store["t"].read(0, gaps="yield"))
    assert gap == esker.Gap("t", 0, 0, size // 4 - 1, "corrupt")
    assert store["t"].append(b"new", wait=True) == size // 4
    goes_on(disk, store)


@covers("corrupt_sealed")
def test_a_damaged_sealed_segment_gives_way_to_its_log_if_that_is_still_there() -> None:
    disk, store, written = rolled()
    log = disk.contents()[LOG]
    store.tick()
    disk = die(disk, store)
    assert SEALED in disk.contents()
    disk.open(LOG, "create").write(0, [log])
    flip(disk, SEALED, 1000)
    store = opened(disk)
    found = the(store, "corrupt_sealed")
    assert found.path == SEALED
    assert values(store) == written
    assert any("/quarantine/" in path and path.endswith(".sealed") for path in disk.contents())
    goes_on(disk, store)


@covers("missing_segment")
def test_a_segment_that_is_missing_between_others_is_named_and_readers_are_refused() -> None:
    disk, store, written = rolled(batches=4)
    store.tick()
    disk = die(disk, store)
    disk.unlink(f"{SHARD}/00000002-00000000000000000003.seg")
    store = opened(disk)
    found = the(store, "missing_segment")
    assert (found.path, found.first, found.last) == (SHARD, 3, 5)
    assert "2" in found.reason
    with pytest.raises(esker.Corruption) as refused:
        values(store)
    assert (refused.value.first, refused.value.last) == (3, 5)
    assert values(store, start=6) == written[6:]
    goes_on(disk, store)


@covers("missing_segment")
@pytest.mark.parametrize("gone", ["first", "last"])
def test_a_segment_that_is_missing_at_an_end_is_named_too(gone: str) -> None:
    disk, store, written = rolled(batches=3)
    store.close()
    names = sorted(path for path in disk.contents() if path.startswith(SHARD) and "-" in path)
    disk.unlink(names[0] if gone == "first" else names[-1])
    if gone == "first":  # a clean store is not recovered: somebody must have died in it
        flip(disk, f"{SHARD}/state", 0)
    store = opened(disk)
    found = the(store, "missing_segment")
    assert (found.first, found.last) == ((0, 2) if gone == "first" else (6, 8))
    if gone == "first":
        with pytest.raises(esker.Corruption):
            values(store)
        assert values(store, start=3) == written[3:]
    else:
        items = list(store["t"].read(0, gaps="yield"))
        assert [item.value for item in items[:6]] == written[:6]
        assert items[6:] == [esker.Gap("t", 0, 6, 8, "corrupt")]
    goes_on(disk, store)


# ---- metadata, strangers, others -------------------------------------------------------------


def test_a_gap_behind_all_that_was_deleted_is_not_a_missing_segment() -> None:
    """The segment before the gap was deleted on request, and power is lost again and again."""
    disk, store = begin("disk")
    store["t"].append(b"deleted", wait=True)
    store["t"].sync()
    for turn in range(4):
        die(disk, store)
        disk = disk.crash(NAMES_ONLY)
        store = opened(disk)
        assert store.recovery.labels == ["lost_tail"]
        if not turn:
            store["t"].delete("latest")
        store["t"].append(b"lost with the power", wait=True)
    die(disk, store)


def committed(durability: str = "disk") -> tuple[SimulatedDisk, str]:
    """A store whose process died between the commit of a batch and its attachment; its file."""
    disk, store = begin(durability, "t", "u")
    store["t"].append_many([b"before"])
    with store.stage("t") as staged, store.stage("u") as other:
        staged.append_many([b"one", b"two"])
        other.append_many([b"three"])
    tickets = staged.tickets + other.tickets
    store.sync()
    assert attach.commit(store._context, "nightly", 7, tickets)
    return die(disk, store), f"{SHARD}/{tickets[0].file}"


@covers("unfinished_attach")
@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_a_batch_that_was_committed_and_not_attached_is_attached(durability: str) -> None:
    disk, path = committed(durability)
    with opened(disk, "r") as store:
        assert store.recovery.findings[-1].label == "unrecovered"
        assert store.recovery.findings[-1].reason == "batch 7 of 'nightly', 2 segments"
        assert values(store) == [b"before"]
    store = opened(disk)
    found = the(store, "unfinished_attach")
    assert found.path == f"{ROOT}/staging"
    assert found.reason == "batch 7 of 'nightly', 2 segments"
    assert path not in disk.contents()
    assert [(r.offset, r.value) for r in store["t"].read()] == [
        (0, b"before"), (1, b"one"), (2, b"two")
    ]  # fmt: skip
    assert values(store, "u") == [b"three"]
    goes_on(disk, store, "t", "u")


@covers("corrupt_commit")
@pytest.mark.parametrize("what", ["commit", "staged"])
def test_a_batch_that_cannot_be_attached_stays_staged_and_is_named(what: str) -> None:
    disk, path = committed()
    (commit,) = [name for name in disk.contents() if name.endswith(".commit")]
    flip(disk, commit if what == "commit" else path, 200)
    store = opened(disk)
    found = the(store, "corrupt_commit")
    if what == "commit":
        assert (found.path, found.reason) == (commit, "commit body does not match its checksum")
    else:
        assert found.path == f"{ROOT}/staging"
        assert path in found.reason
        assert "not what was committed" in found.reason
    assert path in disk.contents()
    assert values(store) == [b"before"]
    store["t"].append(b"behind", wait=True)
    store.close()
    with opened(disk) as again:  # as long as it is so, every opening says it
        assert again.recovery.labels == ["corrupt_commit"]
        assert values(again) == [b"before", b"behind"]


def leased() -> tuple[SimulatedDisk, str]:
    """A queue of four jobs, of which one is done and one is held by a dead process."""
    disk, store = begin("fsync")
    queue = store.queue("t")
    queue.put_many([b"done", b"held", b"fresh", b"fresher"])
    queue.claim(2)[0].ack()
    (path,) = [name for name in disk.contents() if "leases-" in name]
    return die(disk, store), path


@covers("torn_leases")
def test_a_log_of_leases_that_ends_inside_an_entry_goes_on_in_a_new_file() -> None:
    disk, path = leased()
    edit(disk, path, lambda data: data.extend(b"half an entry"))
    store = opened(disk)
    queue = store.queue("t")
    assert [job.value for job in queue.claim(9)] == [b"held", b"fresh", b"fresher"]
    found = the(store, "torn_leases")
    assert (found.path, found.topic, found.shard) == (path, "t", 0)
    assert queue.findings == [found]
    store.close()
    with opened(disk) as again:
        assert len(again.queue("t").claim(9)) == 3
        assert again.recovery.clean, "it is told once"


@covers("damaged_leases")
@pytest.mark.parametrize("what", ["header", "snapshot", "claim", "all of it"])
def test_a_damaged_log_of_leases_brings_jobs_back_and_hides_none(what: str) -> None:
    disk, path = leased()
    if what == "all of it":
        disk.unlink(path)
    else:
        flip(disk, path, {"header": 30, "snapshot": 140, "claim": 300}[what])
    store = opened(disk)
    queue = store.queue("t")
    found = [job.value for job in queue.claim(9)]
    assert {b"held", b"fresh", b"fresher"} <= set(found) <= {b"done", b"held", b"fresh", b"fresher"}
    assert "damaged_leases" in store.recovery.labels
    store.close()
    with opened(disk) as again:
        assert len(again.queue("t").claim(9)) == len(found)
        assert again.recovery.clean
    assert esker.verify(ROOT, files=disk).ok


@covers("damaged_state")
@pytest.mark.parametrize("durability", ["fsync", "memory", "disk", "ephemeral"])
def test_a_shard_whose_state_cannot_be_read_loses_nothing(durability: str) -> None:
    disk, store = begin(durability)
    store["t"].append_many([b"a", b"b"])
    store.close()
    for slot in (0, 4096):
        disk.poke(f"{SHARD}/state", slot, b"not a slot at all")
    store = opened(disk)
    found = the(store, "damaged_state")
    assert (found.path, found.topic) == (f"{SHARD}/state", "t")
    offset = store["t"].append(b"new", wait=True)
    if durability == "ephemeral":
        assert offset >= RESERVE_OFFSETS
        store.close()
    else:
        kept = [item for item in store["t"].read(0, gaps="yield") if isinstance(item, esker.Record)]
        assert [record.value for record in kept] == [b"a", b"b", b"new"]
        assert offset == 2 if durability != "disk" else offset > RESERVE_OFFSETS
        goes_on(disk, store)


@covers("damaged_state")
def test_an_older_state_is_not_believed_where_the_log_has_gone_further() -> None:
    disk, store = begin("disk")
    store["t"].append_many([b"a", b"b"])
    store.close()
    store = opened(disk)
    store["t"].append_many([b"c"])
    disk = die(disk, store)
    newest = max((0, 4096), key=lambda at: disk.contents()[f"{SHARD}/state"][at + 8])
    flip(disk, f"{SHARD}/state", newest + 40)
    store = opened(disk)
    assert "damaged_state" in store.recovery.labels
    assert the(store, "lost_tail").reason == "state lost"
    assert [record.value for record in store["t"].read(0, 3)] == [b"a", b"b", b"c"]
    assert store["t"].append(b"d", wait=True) > RESERVE_OFFSETS
    goes_on(disk, store)


@covers("damaged_counters")
def test_a_damaged_counters_page_costs_counts_and_nothing_else() -> None:
    disk, store = begin()
    store["t"].append_many([b"a", b"b"])
    disk = die(disk, store)
    disk.poke(f"{SHARD}/counters", 56, b"what")
    disk.open(f"{SHARD}/stray", "create")
    store = opened(disk)
    found = the(store, "damaged_counters")
    assert (found.path, found.topic) == (f"{SHARD}/counters", "t")
    assert values(store) == [b"a", b"b"]
    goes_on(disk, store)


@covers("cursor_beyond_end")
def test_a_group_that_had_acked_what_is_lost_misses_nothing_that_is_written_in_its_place() -> None:
    disk, store = begin()
    store["t"].append_many([b"a", b"b"])
    store.sync()
    store["t"].append_many([b"c", b"d"])
    group = store["t"].group("g")
    for batch in group.poll():
        batch.ack(wait=True)
    store._context.forked = True
    store.close()
    disk = disk.crash(LOST)
    store = opened(disk)
    found = the(store, "cursor_beyond_end")
    end = store["t"].end()
    assert (found.path, found.first, found.last) == (f"{SHARD}/offsets", end, 3)
    assert end < 4
    store["t"].append_many([b"e", b"f", b"g"])
    read = [value for batch in store["t"].group("g").poll() for value in batch.values]
    assert read == [b"e", b"f", b"g"]
    store.close()


@covers("damaged_keys")
@pytest.mark.parametrize("damage", ["flipped", "missing", "newer than the log", "of another shard"])
def test_damaged_keys_are_found_again_in_the_log_and_that_is_said(damage: str) -> None:
    disk, store = begin("disk", "t", "u")
    topic, other = store["t"], store["u"]
    first = topic.append_many([b"a", b"b"], idempotency_key=b"k")
    topic.producer("p").append(b"c")
    other.append_many([b"x"] * 9, idempotency_key=b"other")
    store.close()
    saved = f"{SHARD}/once"
    if damage == "flipped":
        flip(disk, saved, 70)
    elif damage == "missing":
        disk.unlink(saved)
        disk.sync_dir(SHARD)
    elif damage == "of another shard":
        whole = disk.contents()[f"{ROOT}/topics/00000002/0000/once"]
        edit(disk, saved, lambda data: data.__setitem__(slice(None), whole))
    else:
        owner = (store._context.store, 1, 0)
        whole = once.encode_saved(once.Saved(99, {b"k": once.Place(90, 2)}, {}), owner)
        edit(disk, saved, lambda data: data.__setitem__(slice(None), whole))
    store = opened(disk)
    assert store.recovery.clean  # nobody has asked for a key yet
    topic = store["t"]
    assert topic.append_many([b"a", b"b"], idempotency_key=b"k") == first
    found = the(store, "damaged_keys")
    assert (found.path, found.topic) == (saved, "t")
    assert topic.producer("p").last == 0
    assert values(store) == [b"a", b"b", b"c"]
    goes_on(disk, store)


@covers("damaged_catalog")
@pytest.mark.parametrize("damaged", [1, 2], ids=["the newest", "all"])
def test_topics_are_found_again_without_the_catalog(damaged: int) -> None:
    disk, store = begin("memory", "t", "u", "v")
    for name in ("t", "u", "v"):
        store[name].append_many([name.encode()])
    store.close()
    generations = sorted(path for path in disk.contents() if "/catalog-" in path)
    assert len(generations) == 2
    for path in generations[-damaged:]:
        flip(disk, path, 70)
    store = opened(disk)
    found = [item for item in store.recovery.findings if item.label == "damaged_catalog"]
    assert [item.path for item in found] == generations[::-1][:damaged]
    assert list(store) == ["t", "u", "v"]
    for name in ("t", "u", "v"):
        assert values(store, name) == [name.encode()]
        assert store[name].options.segment_bytes == 4096
    store.create("w").append(b"new", wait=True)
    assert f"{ROOT}/topics/00000004/0000/state" in disk.contents()
    goes_on(disk, store, "t", "u", "v", "w")


@covers("damaged_catalog")
def test_a_catalog_that_is_gone_is_made_again_from_the_segments() -> None:
    disk, store = begin("fsync")
    store["t"].append(b"a", wait=True)
    store.close()
    for path in list(disk.contents()):
        if "/catalog-" in path:
            disk.unlink(path)
    store = opened(disk)
    assert "no catalog" in the(store, "damaged_catalog").reason
    assert values(store) == [b"a"]
    goes_on(disk, store)


@covers("stranger")
def test_a_file_that_is_not_ours_is_moved_to_quarantine() -> None:
    disk, store = begin()
    store["t"].append_many([b"a"])
    disk = die(disk, store)
    disk.open(f"{SHARD}/notes.txt", "create").write(0, [b"remember the milk"])
    store = opened(disk)
    assert the(store, "stranger").path == f"{SHARD}/notes.txt"
    moved = [path for path in disk.contents() if path.startswith(f"{ROOT}/quarantine/")]
    assert [disk.contents()[path] for path in moved] == [b"remember the milk"]
    assert values(store) == [b"a"]
    goes_on(disk, store)


@covers("unrecovered")
def test_a_reader_of_a_store_that_nobody_closed_changes_nothing_and_says_so() -> None:
    disk, store = begin()
    store["t"].append_many([b"a", b"b"])
    disk = die(disk, store)
    before = disk.contents()
    with opened(disk, "r") as store:
        found = the(store, "unrecovered")
        assert (found.path, found.topic) == (SHARD, "t")
        assert values(store) == [b"a", b"b"]
    assert disk.contents() == before


@covers("unrecovered")
def test_a_journal_stays_while_another_process_holds_a_shard_that_it_speaks_of() -> None:
    """That process may be about to recover the shard, and wait for us to finish."""
    disk, store = journaled(2)
    disk = die(disk, store)
    lock = disk.lock(f"{SHARD}/lock", "elsewhere")
    store = opened(disk)
    assert the(store, "unrecovered").path == JOURNAL
    assert JOURNAL in disk.contents()
    assert values(store, "j1") == [b"j1 0", b"j1 1"]
    assert not isinstance(lock, tuple)
    lock.release()
    assert store["j0"].append(b"j0 2", wait=True) == 2
    assert values(store, "j0") == [b"j0 0", b"j0 1", b"j0 2"]
    assert JOURNAL not in disk.contents()
    goes_on(disk, store, *MANY)


@covers("corrupt_journal")
def test_entries_of_a_topic_that_nobody_knows_are_kept() -> None:
    disk, store = journaled()
    disk = die(disk, store).crash(LOST)
    for path in list(disk.contents()):
        if "/catalog-" in path:
            disk.unlink(path)
    store = opened(disk)
    found = [item for item in store.recovery.findings if item.label == "corrupt_journal"]
    assert len(found) == 6
    assert found[0].path == JOURNAL
    assert any("/quarantine/journal-" in path for path in disk.contents())
    store.close()


@covers("corrupt_journal")
def test_a_shard_that_was_taken_away_does_not_keep_the_others_from_being_opened() -> None:
    disk, store = journaled()
    disk = die(disk, store).crash(LOST)
    disk.rename(f"{ROOT}/topics/00000001", "/elsewhere")
    store = opened(disk)
    assert "topic 1 shard 0" in the(store, "corrupt_journal").reason
    assert values(store, "j1") == [b"j1 0"]
    assert any("/quarantine/journal-" in path for path in disk.contents())
    store.close()


# ---- rules that are no label -----------------------------------------------------------------


def test_after_a_clean_close_there_is_nothing_to_say() -> None:
    disk, store = begin("disk")
    store["t"].append_many([b"a"])
    store.close()
    with opened(disk) as again:
        assert again.recovery.clean
        assert str(again.recovery) == "clean: nothing to recover"


def test_a_log_of_another_topic_is_not_taken_in() -> None:
    disk, store = begin("fsync", "t", "u")
    store["t"].append(b"mine", wait=True)
    store["u"].append(b"theirs", wait=True)
    disk = die(disk, store)
    other = disk.contents()[LOG.replace("00000001/0000", "00000002/0000")]
    edit(disk, LOG, lambda data: data.__setitem__(slice(None), other))
    store = opened(disk)
    assert "unfinished_roll" in store.recovery.labels  # nothing proves that it ever was ours
    gap = the(store, "lost_tail")  # but the counters page says that there was a record
    assert (gap.reason, gap.first, gap.last) == ("corrupt", 0, 0)
    assert values(store, start=1) == []
    assert any("/quarantine/" in path for path in disk.contents())
    goes_on(disk, store, "t", "u")


def test_a_journal_that_came_back_does_not_write_into_a_log_it_does_not_know() -> None:
    """The entries of an old journal name segments by number, and numbers may be used again."""
    disk, store = journaled(2)
    old = disk.contents()[JOURNAL]
    disk = die(disk, store)
    for path in (JOURNAL, LOG, f"{SHARD}/counters"):  # nothing tells any more that it was there
        disk.unlink(path)
    store = opened(disk, clock=ManualClock(1_900_000_000_000_000))
    written = [f"another life {n}".encode() for n in range(20)]
    store["j0"].append_many(written, wait=True)
    disk = die(disk, store)
    disk.open(JOURNAL, "create").write(0, [old])
    store = opened(disk)
    assert values(store, "j0") == written
    assert "redone" not in store.recovery.labels
    goes_on(disk, store, *MANY)


def test_recovery_needs_no_room_for_its_counters() -> None:
    disk, store = begin()
    store["t"].append_many([b"a"])
    disk = die(disk, store)
    disk.unlink(f"{SHARD}/counters")
    disk.fail(Fault(errno.ENOSPC, forever=True, calls=frozenset({"page"})))
    with opened(disk) as store:
        assert values(store) == [b"a"]


def test_findings_poison_and_failed_sealing_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What nobody asked for goes to the logger "esker"."""
    disk = SimulatedDisk(7)
    store = esker.open("/store", files=disk, clock=ManualClock(), background=False)
    topic = store.create("t", durability="fsync", segment_records=2)
    topic.append_many([b"1", b"2"], wait=True)
    topic.append_many([b"3", b"4"], wait=True)
    disk.fail(Fault(errno.ENOSPC, calls=frozenset({"create", "write"}), inside=".seg"))
    disk.fail(Fault(errno.EIO, calls=frozenset({"rename"})))
    store.tick()
    assert "sealing" in caplog.text
    disk.heal()
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
    with pytest.raises(esker.EskerError):
        topic.append(b"5", wait=True)
    assert "in doubt" in caplog.text
    store._context.forked = True
    store.close()
    caplog.clear()
    with esker.open("/store", files=disk.kill(), clock=ManualClock(), background=False) as found:
        assert [str(finding) for finding in found.recovery.findings] == caplog.messages
        assert caplog.messages
