"""Which offsets a query reads, and how they are divided among tasks; no Spark is needed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import esker
from esker.engine import ranges
from esker.spark import local, plan
from esker.spark.origin import Seen, Span, take_bytes, weight
from esker.spark.rows import Task
from esker.spark.wanted import wanted


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Two topics; the one called t has sealed segments, a log, and two shards."""
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", shards=2, segment_records=500)
        for number in range(40):
            topic.append_many([b"%06d" % n for n in range(number * 100, number * 100 + 100)])
        store["u"].append_many([b"u"] * 10)
        store.tick()
    return str(tmp_path / "data")


def read(data: str, **options: str) -> Sequence[tuple[Span, Seen]]:
    given = {"path": data, **options}
    return plan.spans(wanted(given, now_us=0, streaming=False))


def test_spans_cover_what_is_there(data: str) -> None:
    whole = [span for span, _ in read(data, subscribe="t,u")]
    assert [(s.topic, s.shard, s.first, s.end) for s in whole] == [
        ("t", 0, 0, 2000), ("t", 1, 0, 2000), ("u", 0, 0, 10),
    ]  # fmt: skip
    assert [s.topic for s, _ in read(data, subscribePattern="[tx]")] == ["t", "t"]
    found = read(data, assign='{"t": [1]}', startingOffsets="1990", endingOffsets="1995")
    ((only, _),) = found
    assert only[2:] == (1, 1990, 1995)


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7, 40, 100])
def test_tasks_read_everything_once(data: str, parts: int) -> None:
    found = read(data, subscribe="t,u")
    tasks = plan.divide(found, parts)
    for span, _ in found:
        pieces = [
            s for task in tasks for s in task if (s.topic, s.shard) == (span.topic, span.shard)
        ]
        assert pieces[0].first == span.first
        assert pieces[-1].end == span.end
        assert all(one.end == two.first for one, two in pairwise(pieces))
    if parts:
        assert len(tasks) >= min(parts, 40)


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 7, 8])
def test_tasks_weigh_the_same_and_no_crumb_is_a_task(tmp_path: Path, parts: int) -> None:
    """One task more than there are cores for, with next to nothing to do, is waited for by all."""
    with esker.open(tmp_path / "data", background=False) as store:
        for _ in range(80):
            store["t"].append_many([b"x" * 100] * 50)  # each is a frame
    tasks = plan.divide(read(str(tmp_path / "data"), subscribe="t"), parts)
    sizes = [sum(span.end - span.first for span in task) for task in tasks]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 100, "two frames"
    assert sum(sizes) == 4000


def test_tasks_are_cut_where_frames_begin(data: str) -> None:
    found = read(data, subscribe="t")
    frames = {atom.first for span, seen in found for atom in seen.atoms(span.first, span.end)}
    assert {span.first for task in plan.divide(found, 4) for span in task} <= frames


def test_many_small_topics_travel_together(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        for number in range(50):
            store[f"t{number}"].append(b"x")
    found = plan.spans(
        wanted(
            {"path": str(tmp_path / "data"), "subscribePattern": ".*"}, now_us=0, streaming=False
        )
    )
    assert len(plan.divide(found)) == 1


def test_no_task_has_more_records_than_it_may(data: str) -> None:
    tasks = plan.divide(read(data, subscribe="t"), max_records=333)
    assert max(sum(span.end - span.first for span in task) for task in tasks) == 333
    assert sum(span.end - span.first for task in tasks for span in task) == 4000


def test_where_there_are_very_many_segments_none_is_looked_into(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MANY_SEGMENTS", 2)
    monkeypatch.setattr(ranges, "_directory", None)
    found = read(data, subscribe="t")
    tasks = plan.divide(found, 4)
    assert sum(span.end - span.first for task in tasks for span in task) == 4000
    assert {span.first % 500 for task in tasks for span in task} == {0}


def test_a_limit_in_bytes_takes_whole_frames(data: str) -> None:
    ((span, view), _) = read(data, subscribe="t")
    whole = weight(view, span.first, span.end)
    assert take_bytes(view, 0, span.end, whole) == span.end
    some = take_bytes(view, 0, span.end, whole // 3)
    assert 0 < some < span.end
    assert weight(view, 0, some) <= whole // 3
    assert take_bytes(view, 0, span.end, 1) > 0, "at least one frame"


def test_times_narrow_from_behind_by_what_directories_know(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=30)
        for stamps in ([10, 20, 30], [40, 5, 50], [60, 70, 80]):
            topic.append_many([esker.Record(b"x", timestamp=stamp) for stamp in stamps] * 10)
        view = topic._view(0)
        assert ranges.last_before(view, 5, 90) == 0
        assert ranges.last_before(view, 6, 90) == 60, "a record of 5 lies in the second frame"
        assert ranges.last_before(view, 61, 90) == 90
        assert ranges.last_before(view, 61, 70) == 70


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "tt"}, "no topic 'tt'"),
        ({"assign": '{"t": [2]}'}, "topic 't' has shards 0..1, not 2"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 1}}'}, "lacks shard 1 of topic 't'"),
        ({"subscribe": "u", "startingOffsets": '{"u": {"0": 1, "1": 2}}'}, "names shard 1 of"),
        ({"subscribe": "u", "startingOffsets": "11"}, "ends at 10, there is no offset 11"),
        ({"subscribe": "u", "startingTimestamp": "99999999999999"}, "no record at or after"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(data: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(esker.EskerError) as caught:
        read(data, **options)
    assert told in str(caught.value)


def test_a_time_behind_the_end_may_mean_the_end(data: str) -> None:
    later = {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert read(data, subscribe="u", **later) == []


# ---- a task reads all of its spans, or says what it lacks ------------------------------------


def task(data: str, span: Span, on_loss: str) -> Task:
    return Task(
        data, [span], columns=("offset", "gap"), on_loss=on_loss, value_format="binary",
        bad_value="fail", tags=None,
    )  # fmt: skip


def test_what_was_deleted_since_it_was_planned_is_a_loss(data: str) -> None:
    import pyarrow as pa

    gap = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("reason", pa.string())])
    schema = pa.schema([("offset", pa.int64()), ("gap", gap)])
    ((span, _), _) = read(data, subscribe="t")
    with esker.open(data) as store:
        store["t"].delete(700, shard=0)
    with pytest.raises(esker.DataLoss, match=r"offsets 0 to 699 cannot be read: deleted since"):
        list(task(data, span, "fail").rows(schema))
    rows = pa.Table.from_batches(task(data, span, "skip").rows(schema))
    assert rows["offset"].to_pylist() == list(range(700, 2000))
    rows = pa.Table.from_batches(task(data, span, "gapRow").rows(schema))
    first = rows.slice(0, 1).to_pylist()[0]
    assert first["offset"] == 0
    assert first["gap"]["last"] == 699
    assert rows.num_rows == 1301


def test_an_offset_that_is_named_for_a_shard_and_deleted_is_a_loss(data: str) -> None:
    import pyarrow as pa

    with esker.open(data) as store:
        store["t"].delete(700, shard=0)
    ((whole, _), _) = read(data, subscribe="t", startingOffsets="0")
    assert whole.first == 700
    named = '{"t": {"0": 600, "1": -2}}'
    ((span, _), (other, _)) = read(data, subscribe="t", startingOffsets=named)
    assert (span.first, other.first) == (600, 0)
    with pytest.raises(esker.DataLoss, match="offsets 600 to 699 cannot be read: deleted"):
        list(task(data, span, "fail").rows(pa.schema([("offset", pa.int64())])))


def test_a_topic_that_was_made_anew_is_another_one(data: str) -> None:
    import pyarrow as pa

    ((span, _),) = read(data, subscribe="u")
    with esker.open(data) as store:
        del store["u"]
        store["u"].append_many([b"other"] * 20)
    with pytest.raises(esker.DataLoss, match="offsets 0 to 9 cannot be read: recreated"):
        list(task(data, span, "fail").rows(pa.schema([("offset", pa.int64())])))


def test_a_worker_that_knew_the_topic_before_reads_the_one_that_is_there_now(data: str) -> None:
    import pyarrow as pa

    ((span, _),) = read(data, subscribe="u")
    schema = pa.schema([("offset", pa.int64())])
    assert sum(rows.num_rows for rows in task(data, span, "fail").rows(schema)) == 10
    stale = local._open.pop((data, ""))  # of a worker, which lives on
    with esker.open(data) as store:
        del store["u"]
        store["u"].append_many([b"other"] * 20)
    ((span, _),) = read(data, subscribe="u")
    plan.let_go()
    local._open[data, ""] = stale
    assert sum(rows.num_rows for rows in task(data, span, "fail").rows(schema)) == 20
