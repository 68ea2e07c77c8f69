"""`scrub`: what `esker.verify` finds, found by many tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import esker
from esker.errors import NotAStore, TopicNotFound
from esker.spark.jobs import Progress, scrub, scrubbing
from esker.storage.files import SYSTEM_FILES
from esker.upkeep import dealt
from esker.upkeep.dealt import Known
from tests.damage import small_store
from tests.helpers import child, snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.damages  # most of them

ORDERS = "topics/00000001/0000"
EVENTS = "topics/00000002/0000"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    small_store(tmp_path / "data")
    return tmp_path / "data"


def segment(data: Path, shard: str, which: int) -> Path:
    return sorted((data / shard).glob("*-*.*"))[which]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def told(found: object) -> dict[str, object]:
    """All that a report says, but how long it took."""
    names = set(esker.Verification.__struct_fields__) - {"seconds", "deep"}
    return {name: getattr(found, name) for name in names} | {"ok": found.ok}  # type: ignore[attr-defined]


DAMAGES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "nothing": (lambda data: None, set()),
    "a bit in a sealed segment": (lambda data: flip(segment(data, EVENTS, 0), 600), {"frame"}),
    "a bit in a log": (lambda data: flip(segment(data, EVENTS, -1), 600), {"frame"}),
    "a missing segment": (lambda data: segment(data, ORDERS, 1).unlink(), {"missing_segment"}),
    "two swapped segments": (
        lambda data: swap(segment(data, ORDERS, 0), segment(data, ORDERS, 1)),
        {"misnamed", "chain"},
    ),
    "a bit in a header": (lambda data: flip(segment(data, ORDERS, 1), 50), {"header"}),
    "a bit in the identity": (lambda data: flip(data / "esker.store", 20), {"identity"}),
    "no state": (lambda data: (data / ORDERS / "state").unlink(), {"unclean"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_scrub_finds_exactly_what_verify_finds(
    spark: SparkSession, data: Path, damage: str
) -> None:
    harm, kinds = DAMAGES[damage]
    harm(data)
    before = snapshot(data)
    found, expected = scrub(spark, str(data)), esker.verify(data)
    assert told(found) == told(expected)
    assert kinds <= {problem.kind for problem in found.problems}
    assert (kinds == set()) == (found.problems == [])
    assert snapshot(data) == before, "scrub has changed something"


def by_pieces(root: str) -> esker.Verification:
    """As `scrub`, in this process; everything travels as it does there."""
    found, _ = dealt.pieces(SYSTEM_FILES, root)
    known: list[Known] = []
    for item in scrubbing._items(found):
        known += scrubbing._decoder.decode(scrubbing._examined(msgspec.json.encode(item)))
    assert len(known) == len(found)
    return dealt.check(SYSTEM_FILES, root, {each.piece.path: each for each in known})


def test_wherever_a_bit_flips_the_answer_is_that_of_verify(data: Path) -> None:
    files = sorted(p for p in data.rglob("*") if p.is_file() and p.suffix in (".seg", ".log"))
    errors = 0
    for path in files:
        whole = path.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 12)):
            flip(path, position)
            expected = esker.verify(data)
            assert told(by_pieces(str(data))) == told(expected), (path, position)
            errors += not expected.ok
            path.write_bytes(whole)
    assert errors > 50


def test_segments_are_examined_by_tasks_and_not_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = dealt.pieces(SYSTEM_FILES, str(data))
    known = {each.path: seen for each in found if (seen := dealt.examined(SYSTEM_FILES, each))}

    def again(*_: object, **__: object) -> None:
        raise AssertionError("a segment was examined twice")

    monkeypatch.setattr(dealt, "examine", again)
    assert dealt.check(SYSTEM_FILES, str(data), known).ok


@pytest.mark.parametrize("count", [1, 40])  # a log that grew, and logs that were sealed
def test_what_changed_since_the_tasks_looked_is_examined_again(data: Path, count: int) -> None:
    found, _ = dealt.pieces(SYSTEM_FILES, str(data))
    known = {each.path: seen for each in found if (seen := dealt.examined(SYSTEM_FILES, each))}
    with esker.open(data) as store:
        for _ in range(count):
            store["events"].append(b"more" * 100)
    assert told(dealt.check(SYSTEM_FILES, str(data), known)) == told(esker.verify(data))


WRITER = """
import sys, esker
store = esker.open(sys.argv[1])
for batch in range(10):
    store["orders"].append_many([b"order"] * 200)
store["orders"].sync()
print("ready", flush=True)
sys.stdin.readline()
store.close()
"""


def test_a_log_is_scrubbed_beside_its_living_writer(spark: SparkSession, data: Path) -> None:
    with child(WRITER, data) as writer:
        assert writer.line() == "ready"
        found = scrub(spark, str(data))
        assert found.ok
        assert (found.problems, found.records) == ([], 370 + 2000)
        assert found.writers == [writer.pid]
        writer.say("go")
        writer.end()


def test_large_segments_are_a_task_each_and_small_ones_share() -> None:
    sizes = [60 << 20, 3 << 20, 3 << 20, 200 << 20, 1, 1]
    found = [dealt.Piece("f", number, 0, True, size) for number, size in enumerate(sizes)]
    dealt_out = [[piece.segment for piece in item] for item in scrubbing._items(found)]
    assert dealt_out == [[0, 1], [2], [3], [4, 5]]


def test_only_some_topics_may_be_scrubbed(spark: SparkSession, data: Path) -> None:
    flip(segment(data, EVENTS, 0), 600)
    assert scrub(spark, str(data), topics="orders").ok
    found = scrub(spark, str(data), topics="orders, events")
    assert told(found) == told(esker.verify(data))
    with pytest.raises(TopicNotFound, match="did you mean 'orders'"):
        scrub(spark, str(data), topics="order")


def test_no_store_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        scrub(spark, str(tmp_path))


def test_it_prints_like_verify_and_tells_how_far_it_is(spark: SparkSession, data: Path) -> None:
    steps: list[Progress] = []
    flip(segment(data, EVENTS, 0), 600)
    found = scrub(spark, str(data), progress=steps.append)
    assert steps[-1].done == steps[-1].total > 0
    lines, expected = str(found).split("\n"), str(esker.verify(data)).split("\n")
    assert lines[0] == expected[0]
    assert lines[2:] == expected[2:]
    assert lines[1].startswith(expected[1].split(" checked in")[0])
    assert "MiB/s" in lines[1] or "KiB/s" in lines[1]
    told = msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(found)))
    assert (told["ok"], told["problems"][0]["kind"]) == (False, "frame")
