"""Files of every version that was ever released open for ever, and read as they did then."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

import esker
from esker.engine.layout import shard_folder
from esker.format import columns as cols
from esker.format import counters, frame, leases, marks, segment
from esker.format.catalog import decode_catalog, decode_identity
from tests.golden import make
from tests.helpers import HandClock, snapshot

STORES = sorted(make.VERSION.glob("*.json"))


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Path:
    """The expected contents of a golden store, which lies beside it."""
    return Path(request.param)


def copied(golden: Path, target: Path) -> Path:
    """A copy to work on; with the directories that are empty, which git does not keep."""
    shutil.copytree(golden.with_suffix(""), target)
    (target / "journal").mkdir(exist_ok=True)
    found = decode_identity((target / "esker.store").read_bytes())
    newest = max(target.glob("catalog-*[0-9]"), default=None)
    if newest is not None and not isinstance(found, str):
        known = decode_catalog(newest.read_bytes(), found[0])
        for entry in known[0].topics if not isinstance(known, str) else ():
            for shard in range(entry.options.shards):
                Path(shard_folder(str(target), entry.id, shard)).mkdir(parents=True, exist_ok=True)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target


def test_there_are_golden_files() -> None:
    assert [path.stem for path in STORES] == sorted(make.BUILDERS)


def test_a_golden_store_reads_back_as_it_did_then(golden: Path, tmp_path: Path) -> None:
    root = copied(golden, tmp_path / "data")
    with esker.open(root) as store:
        assert make.contents(store) == golden.read_text(encoding="utf-8")


def test_a_golden_store_can_be_written_to(golden: Path, tmp_path: Path) -> None:
    root = copied(golden, tmp_path / "data")
    with esker.open(root) as store:
        ends = {name: store[name].end() for name in store}
        for name in ends:
            store[name].append_many([esker.Record(b"new", key=b"0")], wait=True)
        store.sync()
    with esker.open(root) as store:
        assert store.recovery.clean
        assert esker.verify(root).ok
        for name in ends:
            found = [item for item in store[name].read(gaps="skip") if item.value == b"new"]
            assert len(found) == (name != "ephemeral")


def test_keys_of_a_golden_store_are_known(tmp_path: Path) -> None:
    root = copied(make.VERSION / "once.json", tmp_path / "data")
    with esker.open(root) as store:
        assert set(store.recovery.labels) == {"unfinished_attach"}
        topic = store["once"]
        before = make.contents(store)
        assert topic.append_many([b"a", b"b"], idempotency_key=b"\0key") == esker.Span(0, 0, 2)
        assert topic.append(b"c", idempotency_key="text") == 2
        assert topic.append(b"later", idempotency_key="later") == 9
        assert topic.append(b"handed over", idempotency_key="handed") == 11
        producer = topic.producer("importer")
        assert producer.last == 3
        found = [producer.append_many([b"v"] * (2 if n < 3 else 1), sequence=n) for n in range(4)]
        assert [span.first for span in found] == [3, 5, 7, 10]
        assert make.contents(store) == before
        assert set(store.recovery.labels) == {"unfinished_attach"}


def test_a_store_that_was_closed_needs_no_recovery_and_verifies(tmp_path: Path) -> None:
    root = copied(make.VERSION / "closed.json", tmp_path / "data")
    before = snapshot(root)
    found = esker.verify(root)
    assert found.ok, str(found)
    with esker.open(root, mode="r") as store:
        assert store.recovery.clean
        assert make.contents(store) == (make.VERSION / "closed.json").read_text(encoding="utf-8")
    with esker.open(root) as store:
        assert store.recovery.clean
    assert snapshot(root) == before, "opening a closed store changes nothing"


def test_a_store_that_was_left_is_recovered_from_its_journal(tmp_path: Path) -> None:
    root = copied(make.VERSION / "killed.json", tmp_path / "data")
    with esker.open(root) as store:
        assert "redone" in store.recovery.labels
        assert "torn_tail" in store.recovery.labels
    assert esker.verify(root).ok


def test_what_was_deleted_is_left_out_and_stays_deleted(tmp_path: Path) -> None:
    root = copied(make.VERSION / "erased.json", tmp_path / "data")
    with esker.open(root) as store:
        assert store.recovery.clean
        tags = [record.tag for record in store["plain"].read()]
        assert {tag for tag in tags if tag} == {"user-0", "user-3"}
        assert store["plain"].delete(tag_prefix="user-") == len([tag for tag in tags if tag])
        assert store["spread"].delete(tag="x") == 1
    assert not list(root.rglob("deletions-00000002")), "what no page names is swept"
    with esker.open(root, mode="r") as store:
        assert {record.tag for record in store["plain"].read()} == {None}
        assert [record.tag for record in store["spread"].read(gaps="skip")] == [None, "y"]


def test_where_a_topic_ended_that_was_deleted_is_known(tmp_path: Path) -> None:
    root = copied(make.VERSION / "anew.json", tmp_path / "data")
    with esker.open(root, mode="r") as store:
        found = list(store["anew"].read(0, epoch=1, gaps="yield"))
    gaps = [gap for gap in found if isinstance(gap, esker.Gap)]
    assert {gap.reason for gap in gaps} == {"recreated"}
    assert [gap.first for gap in gaps] == [0, 0]
    assert sum(gap.missed for gap in gaps) == 5
    assert len(found) == 3


def test_groups_are_where_they_were_then(tmp_path: Path) -> None:
    root = copied(make.VERSION / "grouped.json", tmp_path / "data")
    with esker.open(root, mode="r") as store:
        found = {status.name: status for status in store["read"].groups()}
        cursors = {name: status.shards[0].cursor for name, status in found.items()}
        assert cursors == {"back": 2, "billing": 4, "café": 10, "new": 0}
        assert [name for name, status in found.items() if status.paused] == ["back"]
        assert found["billing"].shards[0].acked == 4
    with esker.open(root) as store:
        group = store["read"].group("billing", "latest")
        assert next(group.poll()).values[0] == b"4"
    assert esker.verify(root).ok


def test_routes_go_on_where_they_were_then(tmp_path: Path) -> None:
    root = copied(make.VERSION / "routed.json", tmp_path / "data")
    with esker.open(root, background=False) as store:
        told = {status.name: (status.state, status.records) for status in store.routes()}
        assert told == {"orders->once": ("paused", 0), "x": ("paused", 0)}
        assert len(store["again"]) == 6
        assert store.route(name="orders->once").id == 1
        with store["orders"].group("route:1") as group:
            group.seek("earliest")  # as if acks had been lost: the marks know what is there
        store.route(name="orders->once").resume()
        for _ in range(3):
            store.tick()
        assert sorted(record.value for record in store["once"].read()) == list(
            map(b"%d".__mod__, range(4, 9))
        )
    assert esker.verify(root).ok


def test_what_was_moved_is_read_where_it_is_now(tmp_path: Path) -> None:
    root = copied(make.MOVED / "store.json", tmp_path / "data")
    cold = shutil.copytree(make.MOVED / "cold", tmp_path / "cold")
    told = (make.MOVED / "contents.txt").read_text(encoding="utf-8")
    with esker.open(root, cold=cold) as store:
        assert store.recovery.clean
        assert make.contents(store) == told
        assert store.tier("moved", "hot").segments == 2
    shutil.rmtree(cold)
    with esker.open(root, mode="r") as store:
        assert make.contents(store) == told


@pytest.mark.damages  # what is made has the stubs say that it lies in another directory
def test_what_is_written_of_a_moved_segment_is_frozen(tmp_path: Path) -> None:
    make.build_moved(tmp_path / "made")
    made, frozen = snapshot(tmp_path / "made"), snapshot(make.MOVED)
    files = {name for name, content in frozen.items() if content != "directory"}
    assert files == {name for name, content in made.items() if content != "directory"}
    different = {name for name in files if made[name] != frozen[name]}
    assert {name for name in different if not name.endswith("/counters")} == set()


def test_every_kind_of_file_is_there() -> None:
    names = {path.name for path in make.VERSION.rglob("*") if path.is_file()}
    suffixes = {Path(name).suffix for name in names}
    assert {"esker.store", "state", "counters"} <= names
    assert {".seg", ".log", ".journal"} <= suffixes
    assert any(name.startswith("catalog-") for name in names)
    assert any(name.startswith("deletions-") for name in names)
    assert "offsets" in names

    assert any(name.startswith("leases-") for name in names)
    assert "settings" in names


def test_every_kind_of_event_is_there() -> None:
    found = set()
    for path in (make.VERSION / "queued").rglob("leases-*"):
        data = path.read_bytes()
        header = leases.decode_header(data)
        assert not isinstance(header, str)
        for told in leases.decode_frames(data, 64, 64, header.salt):
            assert isinstance(told, leases.Told)
            found |= {type(event) for event in told.events}
    assert found == set(get_args(leases.Event))


def test_a_queue_goes_on_where_it_was_left_then(tmp_path: Path) -> None:
    root = copied(make.VERSION / "queued.json", tmp_path / "data")
    clock = HandClock(1_900_000_000_000_000)
    with esker.open(root, clock=clock, background=False) as store:
        queue = store.queue("jobs")
        assert (queue.options.max_deliveries, queue.options.dead_letter) == (2, "dead")
        assert queue.options.ordered
        jobs = {job.value: job.deliveries for _ in range(2) for job in queue.claim(20)}
        assert jobs == {b"2": 2, b"3": 1, b"5": 1, b"6": 1, b"later": 1}
        assert [(job.value, job.reason) for job in queue.dead] == [(b"4", "no again"), (b"1", "no")]
        assert queue.stats().parked == 1, "7 waits for 2"
        assert [entry.what for entry in queue.history(0)] == ["claimed", "acked"]
        kept = store.queue("kept")
        assert [(job.value, job.reason) for job in kept.dead] == [(b"1", "kept"), (b"3", "kept")]
        assert [job.value for job in kept.claim(9, gaps="skip")] == [b"0"]


def test_every_kind_of_frame_is_there() -> None:
    heads = [head for path in make.VERSION.rglob("*") for head in _frames(path)]
    assert {head.kind for head in heads} == frame.KINDS
    assert {head.codec for head in heads} == {frame.PLAIN, frame.ZSTD}
    assert {head.flags for head in heads} == {0, frame.MORE}
    data = [head for head in heads if head.kind == frame.DATA]
    assert {head.columns & bit for head in data for bit in BITS} == {0, *BITS}
    assert {head.codec for head in heads if head.kind == frame.DELETION} == {0, frame.ZSTD}
    assert any(head.synced for head in data)
    assert any(head.min_timestamp != head.max_timestamp for head in data)


BITS = (cols.TIMESTAMPS, cols.KEYS, cols.TAGS, cols.NODES, cols.HEADERS)


def _frames(path: Path) -> Iterator[frame.Header]:
    data = path.read_bytes() if path.is_file() else b""
    header: Any = segment.decode_header(data[: segment.HEADER_SIZE])
    at = segment.HEADER_SIZE
    if path.name.startswith("deletions-"):
        header, at = marks.decode_header(data[: marks.HEADER_SIZE]), marks.HEADER_SIZE
    if path.name.startswith("leases-"):
        header, at = leases.decode_header(data[: leases.HEADER_SIZE]), leases.HEADER_SIZE
    while not isinstance(header, str):
        head = frame.decode_header(data, at, at, header.salt)
        if isinstance(head, frame.Damage):
            return
        yield head
        at += head.size


def test_the_format_is_frozen(golden: Path, tmp_path: Path) -> None:
    """The same records, at the same time, with the same chance, give the same bytes.

    If this fails, the change alters what is written. After a release that needs a new version of
    the format; before it, `python -m tests.golden.make` writes the files again.
    """
    told = make.BUILDERS[golden.stem](tmp_path / "made")
    assert told == golden.read_text(encoding="utf-8")
    made, frozen = snapshot(tmp_path / "made"), snapshot(golden.with_suffix(""))
    if pa.compress(PROBE, "zstd", asbytes=True) != PROBE_COMPRESSED:
        for files in (made, frozen):  # another release of zstd packs as it likes
            for name in [name for name in files if PACKED.get(golden.stem, "?") in name]:
                del files[name]
    assert {name for name, content in made.items() if content != "directory"} == {
        name for name, content in frozen.items() if content != "directory"
    }
    different = [
        name
        for name, content in frozen.items()
        if made[name] != content
        and not (name.endswith("/counters") and published(made[name]) == published(content))
    ]
    assert different == []


def published(page: bytes | str) -> list[int]:
    """What a counters page says to readers; how often something is counted may change."""
    assert isinstance(page, bytes)
    assert len(page) == counters.PAGE_SIZE
    words = memoryview(page).cast("Q")
    assert (words[7], words[0]) == (counters.MAGIC, counters.VERSION)
    return [words[line * 8 + word] for line, word in ((13, 1), (13, 2), (13, 3), (13, 4))]


PACKED = {"closed": "/00000005/", "erased": "/00000002/"}  # topics with something compressed
PROBE = b"the same words again, " * 20
PROBE_COMPRESSED = bytes.fromhex(
    "28b52ffd60b800ed0000b07468652073616d6520776f72647320616761696e2c2001003e539d4d"
)


# ---- the examples of docs/format.md ----------------------------------------------------------

FORMAT = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
LINE = re.compile(r"^ *(\d+)  ((?:[0-9a-f]{2} +)+)", re.M)


def sections(page: str) -> dict[str, str]:
    """By what they are about."""
    return dict(re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S))


def dump(text: str) -> dict[int, bytes]:
    """The lines of an example: bytes, by position."""
    return {int(at): bytes.fromhex(data) for at, data in LINE.findall(text)}


@pytest.mark.parametrize(
    ("title", "sizes"), [("A segment, byte by byte", (632, 760)), ("Deleted records", (648,))]
)
def test_an_example_shows_what_its_script_prints(
    title: str, sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = sections(FORMAT)[title]
    (script,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    exec(compile(script, "docs/format.md", "exec"), {})
    printed = [bytes.fromhex(line) for line in capsys.readouterr().out.splitlines()]
    assert tuple(map(len, printed)) == sizes
    examples = [found for part in text.split("```")[1::2] if (found := dump(part))]
    assert len(examples) == len(printed)
    for example, data in zip(examples, printed, strict=True):
        assert len(example) >= 8
        for at, shown in example.items():
            assert data[at : at + len(shown)] == shown, f"{title}, {at}"


def test_the_example_of_all_columns_is_their_body() -> None:
    example = dump(sections(FORMAT)["The body of a DATA frame"])
    at = 1_700_000_000_000_000
    extras = {0: (b"key", None, "eu-1", {"h": b"v"}, at + 5), 1: (None, "t1", None, None, None)}
    body = cols.from_lists([b"hello", b"world!"], extras, at)  # type: ignore[arg-type]
    data = b"".join(map(bytes, body.parts))
    assert len(data) == 192
    assert sum(map(len, example.values())) == 192
    for position, shown in example.items():
        assert data[position : position + len(shown)] == shown


def test_the_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in make.VERSION.rglob("*") if path.is_file()) < 450_000
