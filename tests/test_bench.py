"""The benchmark's own parts, at a size where only correctness can be seen."""

import contextlib
import datetime
import json

import pytest

from bench import measure, peers
from bench.measure import NOT_INSTALLED, Goal, Row

pytestmark = pytest.mark.bench

COUNT = 4_321  # more than one commit, and not a whole number of them
VALUE = b"seven b"


INSTALLED = [peer for name, peer in peers.PEERS.items() if peers.installed(name)]


@pytest.fixture(params=INSTALLED, ids=lambda peer: peer.name)
def peer(request, tmp_path):
    with contextlib.closing(request.param(tmp_path)) as opened:
        yield opened


def test_a_peer_returns_every_record_however_it_was_appended(peer):
    peer.append_one_by_one([VALUE] * COUNT)
    peer.append_many([[VALUE] * 1000, [VALUE] * 10])
    peer.append_committed([VALUE] * 5)
    total = COUNT + 1015
    assert peer.read_all() == (total, total * len(VALUE))


def test_a_peer_finds_a_record_by_its_number(peer):
    peer.append_many([[b"a"], [b"bb", b"ccc"]])
    assert [peer.random_lookup([offset]) for offset in range(3)] == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("kind", INSTALLED, ids=lambda peer: peer.name)
def test_a_peer_goes_on_counting_where_it_was_closed(kind, tmp_path):
    with contextlib.closing(kind(tmp_path)) as peer:
        peer.append_one_by_one([b"old"] * 3)
        peer.settle()
    with contextlib.closing(kind(tmp_path)) as peer:
        peer.append_many([[b"younger"]])
        assert peer.random_lookup([3]) == (1, len(b"younger"))
        assert peer.read_all().records == 4


def test_every_peer_says_what_it_is(peer):
    assert peer.configuration
    assert peers.version(peer.name)


def test_an_absent_peer_is_noticed_without_importing_it(monkeypatch):
    monkeypatch.setattr(peers.Lmdb, "library", "a_library_that_is_not_there")
    assert not peers.installed("lmdb")


def test_only_the_run_is_timed_and_the_best_run_counts(monkeypatch):
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(ticks))
    events = []
    seconds = measure.best_of(
        3, lambda: events.append("prepare"), lambda _: events.append("run"), events.append
    )
    assert seconds == 2.0
    assert events == ["prepare", "run", None] * 3
    assert measure.ns_per_record(seconds, 1000) == 2_000_000


def test_residency_grows_with_what_is_held():
    held, grown = measure.residency_growth(lambda: bytearray(b"x" * (32 << 20)))
    assert len(held) == 32 << 20
    if grown is not None:  # None where there is no /proc
        assert grown.anonymous_bytes > 24 << 20
        assert grown.peak_bytes >= grown.total_bytes


@pytest.mark.parametrize(
    ("goal", "allowed", "met"),
    [
        (Goal.at_most(100), 100, True),
        (Goal.at_most(40), 40, False),
        (Goal.times_faster(2, than="lmdb"), 100, True),
        (Goal.times_faster(2), 45, False),  # the best peer is the one to beat
        (Goal.times_faster(2, than="raw"), None, None),
        (None, None, None),
    ],
)
def test_a_goal_is_judged_by_what_was_measured(goal, allowed, met):
    figures = {"esker": 50.0, "lmdb": 200.0, "rocksdb": NOT_INSTALLED, "sqlite": 90.0}
    row = Row("append", figures, goal)
    assert row.allowed == allowed
    assert row.met is met


def test_the_table_is_aligned_and_says_what_is_missing():
    rows = [
        Row("append", {"esker": 50.0, "lmdb": 1234.5, "rocksdb": NOT_INSTALLED}, Goal.at_most(100)),
        Row("read a lot", {"esker": 2.5, "raw": 1.0}, Goal.times_faster(1, than="raw")),
    ]
    head, rule, append, read = measure.table(rows).splitlines()
    assert len(head) == len(rule) == len(append) == len(read)
    assert " ".join(append.split()) == "append 50 1,234 not installed – – ≤ 100 2.00x yes"
    assert read.split()[-3:] == ["1.00", "0.40x", "NO"]


def test_the_results_file_names_the_kind_of_machine(tmp_path):
    row = Row("append", {"esker": 50.12345}, Goal.at_most(100), details={"records": 10})
    day = datetime.date(2024, 2, 29)
    path = measure.write_results([row], directory=tmp_path / "new", today=day, runs=3)
    assert path.name.startswith("2024-02-29-")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["runs"] == 3
    assert set(document["machine"]) == {"system", "architecture", "cpus", "python"}
    assert document["rows"] == [
        {
            "operation": "append",
            "figures": {"esker": 50.123},
            "goal": 100,
            "ratio": 1.995,
            "met": True,
            "details": {"records": 10},
        }
    ]
