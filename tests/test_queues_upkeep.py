"""Whatever is wrong with the files of a queue is found, by `verify` and by the second opinion, and
set right by opening the queue or by `repair`, without losing a job."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest as xxh3

import esker
from esker.format import leases as fmt
from esker.storage.files import SYSTEM_FILES
from tests import fsck, fsck_queues
from tests.helpers import Refusing

QUEUE = "topics/00000001/queue"
LOG = f"{QUEUE}/0000/leases-00000002"
OLD = f"{QUEUE}/0000/leases-00000001"
Damage = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A queue of six jobs, one done and one held, in its second log; closed."""
    path = tmp_path / "data"
    with esker.open(path, background=False) as store:
        queue = store.queue("jobs", lease="1h", claim_jitter="1ms")
        queue.put_many([b"%d" % n for n in range(6)])
        with queue._lanes[0] as state:
            queue._lanes[0]._begin()
            assert state.cursor == 0
        queue.claim(2)[0].ack()
        queue.claim(1)
    return path


def jobs(root: Path) -> list[bytes]:
    """What can be claimed."""
    with esker.open(root, background=False) as store:
        return sorted(job.value for job in store.queue("jobs").claim(9))


def flip(name: str, at: int) -> Damage:
    def change(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[at] ^= 1
        (root / name).write_bytes(data)

    return change


def put(name: str, data: bytes = b"x") -> Damage:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)

    return change


def sealed(name: str, at: int, value: int) -> Damage:
    """A header with another byte, and the checksum that goes with it."""

    def change(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[at] = value
        data[56:64] = struct.pack("<Q", xxh3(bytes(data[:56])))
        (root / name).write_bytes(data)

    return change


def cut(name: str, size: int) -> Damage:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:size])


def ended(root: Path) -> None:
    data = (root / LOG).read_bytes()
    header = fmt.decode_header(data)
    assert not isinstance(header, str)
    (root / LOG).write_bytes(data + fmt.encode_frame([fmt.Ended(3)], len(data), header.salt, 1))


def acked_first(root: Path) -> None:
    """A log whose first event is another one."""
    header = fmt.decode_header((root / LOG).read_bytes())
    assert not isinstance(header, str)
    frame = fmt.encode_frame([fmt.Acked(1, 1, [0, 1])], 64, header.salt, 1)
    (root / LOG).write_bytes(fmt.encode_header(header) + frame)


CASES: list[tuple[str, Damage, str, str, str]] = [
    # what, damage, kind, severity, a part of the reason
    ("settings flipped", flip(f"{QUEUE}/settings", 70), "settings", "error", "body"),
    ("settings of another topic", sealed(f"{QUEUE}/settings", 8, 9), "settings", "error",
     "another queue"),
    ("settings of a later Esker", sealed(f"{QUEUE}/settings", 4, 9), "newer", "error", "version 9"),
    ("leases flipped", flip(LOG, 300), "leases", "error", "checksum"),
    ("leases without a header", flip(LOG, 20), "leases", "error", "header"),
    ("leases of another shard", sealed(LOG, 24, 7), "leases", "error", "another shard"),
    ("leases of a later Esker", sealed(LOG, 4, 9), "newer", "error", "version 9"),
    ("leases without a snapshot", acked_first, "leases", "error", "begin with a snapshot"),
    ("leases without anything", cut(LOG, 64), "leases", "error", "begin with a snapshot"),
    ("leases torn", lambda root: put(LOG, (root / LOG).read_bytes() + b"half")(root),
     "torn_leases", "warning", "ends inside"),
    ("leases that ended", ended, "torn_leases", "warning", "is not there"),
    ("history flipped", flip(OLD, 140), "leases", "warning", "it is history"),
    ("no leases", lambda root: [path.unlink() for path in (root / QUEUE).rglob("leases-*")],
     "leases", "error", "no log of leases"),
    ("a stranger beside the settings", put(f"{QUEUE}/note"), "stranger", "warning", "not a file"),
    ("a stranger among the workers", put(f"{QUEUE}/workers/note"), "stranger", "warning",
     "not a file"),
    ("a stranger beside the leases", put(f"{QUEUE}/0000/note"), "stranger", "warning",
     "not a file"),
    ("settings that were being made", put(f"{QUEUE}/settings.tmp"), "leftover", "warning",
     "being made"),
    ("leases that were being made", put(f"{QUEUE}/0000/leases-00000003.tmp"), "leftover",
     "warning", "being made"),
    ("a queue that was being made", lambda root: (root / QUEUE / "settings").unlink(),
     "settings", "warning", "being made"),
]  # fmt: skip


def test_a_queue_in_order_has_no_problems(root: Path) -> None:
    found = esker.verify(root)
    assert found.problems == [], str(found)
    assert found.files >= 5, "settings and leases are looked at"
    fsck.judge_clean(root)


@pytest.mark.damages
@pytest.mark.parametrize(
    ("what", "damage", "kind", "severity", "reason"), CASES, ids=[case[0] for case in CASES]
)
def test_what_is_wrong_is_told_by_kind_and_place(
    root: Path, what: str, damage: Damage, kind: str, severity: str, reason: str
) -> None:
    damage(root)
    found = [each for each in esker.verify(root).problems if each.kind == kind]
    assert found, str(esker.verify(root))
    assert {each.severity for each in found} == {severity}
    assert any(reason in each.reason for each in found), [each.reason for each in found]
    assert all("/queue" in each.path and each.topic == "jobs" for each in found)
    assert all(each.advice for each in found)


@pytest.mark.parametrize(
    ("what", "damage", "kind", "severity", "reason"),
    [case for case in CASES if case[2] != "newer"],
    ids=[case[0] for case in CASES if case[2] != "newer"],
)
def test_repair_sets_it_right_and_no_job_is_lost(
    root: Path, what: str, damage: Damage, kind: str, severity: str, reason: str
) -> None:
    damage(root)
    done = esker.repair(root)
    assert done.actions or "being made" in what or "history" in what, str(done)
    found = esker.verify(root)
    assert found.ok, str(found)
    assert {b"%d" % n for n in range(1, 6)} <= set(jobs(root)), "0 is done"
    assert esker.verify(root).ok


def test_a_file_that_cannot_be_read_is_told(root: Path) -> None:
    files = Refusing(SYSTEM_FILES)
    files.refuse("open", errno.EACCES, "/queue/")
    found = esker.verify(root, files=files)
    paths = {each.path.removeprefix(f"{root}/") for each in found.errors}
    assert {f"{QUEUE}/settings", LOG, OLD} <= paths
    assert {each.kind for each in found.errors} == {"unreadable"}


@pytest.mark.damages
def test_damaged_settings_are_an_error_that_says_what_to_do(root: Path) -> None:
    flip(f"{QUEUE}/settings", 70)(root)
    with (
        esker.open(root, background=False) as store,
        pytest.raises(esker.Corruption, match="Restore the file from a backup"),
    ):
        store.queue("jobs")


# ---- the second opinion ----------------------------------------------------------------------

OPINIONS: list[tuple[str, Damage, bool]] = [
    # what it says, and whether a crash may have left it
    ("settings body", flip(f"{QUEUE}/settings", 70), False),
    ("settings header checksum", flip(f"{QUEUE}/settings", 20), False),
    ("not the settings of a queue", cut(f"{QUEUE}/settings", 20), False),
    ("settings header", sealed(f"{QUEUE}/settings", 4, 9), False),
    ("of another queue", sealed(f"{QUEUE}/settings", 8, 9), False),
    ("not a log of leases", cut(LOG, 20), False),
    ("header checksum", flip(LOG, 20), False),
    ("header", sealed(LOG, 4, 9), False),
    ("the leases of another shard", sealed(LOG, 24, 7), False),
    ("a log of leases that begins without a snapshot", acked_first, False),
    ("frame body checksum", flip(LOG, 140), False),
    ("frame header checksum", flip(LOG, 70), False),
    ("no frame", lambda root: put(LOG, (root / LOG).read_bytes() + b"half")(root), True),
    ("the next log of leases is not there", ended, True),
]


@pytest.mark.damages
@pytest.mark.parametrize(("what", "damage", "crash"), OPINIONS, ids=[each[0] for each in OPINIONS])
def test_the_second_opinion_finds_it_too(
    root: Path, what: str, damage: Damage, crash: bool
) -> None:
    damage(root)
    found = fsck.judge(str(root))
    said = [problem.what for problem in (found.torn if crash else found.problems)]
    assert what in said, found.problems + found.torn


def forged(*events: object) -> bytes:
    import msgspec

    body = msgspec.msgpack.encode(events)
    header = fmt.encode_header(fmt.LeasesHeader(1, 1, 0, bytes(16), 7))
    first = fmt.encode_frame([fmt.Snapshot()], 64, 7, 1)
    at = 64 + len(first)
    head = struct.pack("<4sBBBBIIIIqqIIQ", b"ESKF", 1, 8, 0, 0, len(body), len(body), len(events),
                       0, 1, 1, 0, 0, xxh3(body, 7))  # fmt: skip
    return header + first + head + struct.pack("<Q", xxh3(head, 7 + at)) + body + \
        bytes(-len(body) % 8)  # fmt: skip


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ([99, 1], "an event of no known kind"),
        ([6], "an event with 0 fields"),
        ([15, [1]], "runs that are none"),
        ([15, [1, 0]], "runs that are none"),
        ([15, [5, 2, 6, 1]], "runs that are not in order"),
    ],
)
def test_events_that_nobody_writes_are_found(event: list[object], said: str) -> None:
    found = fsck_queues.leases(forged(event))
    assert not isinstance(found, str)
    assert any(text.startswith(said) for _, text in found.flaws), found.flaws


def test_both_readers_of_a_log_of_leases_read_the_same(root: Path) -> None:
    for name in (OLD, LOG):
        data = (root / name).read_bytes()
        one = fsck_queues.leases(data)
        header = fmt.decode_header(data)
        assert not isinstance(one, str)
        assert not isinstance(header, str)
        other = [
            fmt._decoder.decode(fmt._encoder.encode(told.events))
            for told in fmt.decode_frames(data, 64, 64, header.salt)
            if isinstance(told, fmt.Told)
        ]
        kinds = [type(event).__struct_config__.tag for events in other for event in events]
        assert kinds == [event[0] for event in one.events]
