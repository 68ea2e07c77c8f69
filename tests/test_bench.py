"""The benchmark's own parts, at a size where only correctness can be seen."""

import contextlib
import datetime
import json
import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench import measure, peers, queue_peers, subject
from bench.measure import NOT_INSTALLED, Goal, Row
from bench.queue_peers import absent

pytestmark = pytest.mark.bench

COUNT = 4_321  # more than one commit, and not a whole number of them
VALUE = b"seven b"


INSTALLED = [subject.Esker, *(peers.PEERS[name] for name in peers.PEERS if peers.installed(name))]


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


def test_the_bare_file_holds_values_of_one_size(tmp_path):
    first, second = b"a" * subject.VALUE_BYTES, b"b" * subject.VALUE_BYTES
    with contextlib.closing(subject.Raw(tmp_path)) as raw:
        raw.append_one_by_one([first] * COUNT)
        raw.append_many([[first], [first, first]])
    with contextlib.closing(subject.Raw(tmp_path, durable=True)) as raw:
        raw.append_committed([second])
        assert raw.read_all() == (COUNT + 4, (COUNT + 4) * subject.VALUE_BYTES)
        assert raw.random_lookup([0, COUNT + 3]) == (2, 2 * subject.VALUE_BYTES)


@pytest.mark.parametrize("kind", INSTALLED, ids=lambda peer: peer.name)
def test_threads_share_a_durable_peer_and_no_record_is_lost(kind, tmp_path):
    with contextlib.closing(kind(tmp_path / "store", durable=True)) as peer:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(peer.append_committed, [[VALUE] * 5] * 4))
        peer.settle()
        assert peer.read_all() == (20, 20 * len(VALUE))


def test_every_peer_says_what_it_is(peer):
    assert peer.configuration
    if peer.name in peers.PEERS:
        assert peers.version(peer.name)


QUEUES = [peer for peer in (*queue_peers.ON_SQLITE, queue_peers.Redis) if not absent(peer)]


@pytest.mark.parametrize("kind", QUEUES, ids=lambda peer: peer.name)
def test_a_queue_beside_ours_hands_out_every_job_once(kind, tmp_path):
    with contextlib.closing(kind(tmp_path, [VALUE] * 25)) as queue:
        assert [queue.step(10), queue.step(1), queue.step(100), queue.step(1)] == [10, 1, 14, 0]


def test_a_queue_that_cannot_be_measured_says_why(monkeypatch):
    monkeypatch.setattr(queue_peers.shutil, "which", lambda _: None)
    assert absent(queue_peers.Redis) in (queue_peers.NO_SERVER, "not installed")
    monkeypatch.setattr(queue_peers.Huey, "library", "a_library_that_is_not_there")
    assert absent(queue_peers.Huey) == "not installed"
    assert absent(queue_peers.Table) == ""


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
    def hold():
        """Pages of their own: what the allocator hands out may have been resident before."""
        held = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.write(b"x" * len(held))
        return held

    held, grown = measure.residency_growth(hold)
    with held:
        assert len(held) == 32 << 20
    if grown is not None:  # None where there is no /proc
        assert grown.anonymous_bytes > 24 << 20


def test_contenders_take_turns_and_the_best_run_of_each_counts(monkeypatch):
    ticks = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0, 30.0, 34.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(ticks))
    turns = []
    contenders = {name: measure.Contender(lambda n=name: n, turns.append) for name in ("a", "b")}
    assert measure.round_robin(2, contenders) == {"a": 2.0, "b": 1.0}
    assert turns == ["a", "b", "a", "b"]


FIGURES = {"esker": 50.0, "lmdb": 200.0, "rocksdb": NOT_INSTALLED, "sqlite": 90.0, "bare": 45.0}


@pytest.mark.parametrize(
    ("goal", "text", "allowed", "reached", "met"),
    [
        (Goal.at_most(100), "≤ 100", 100, "50", True),
        (Goal.at_most(40), "≤ 40", 40, "50", False),
        (Goal.times_faster(2, than="lmdb"), "≥ 2x lmdb", 100, "4.00x", True),
        (Goal.times_faster(2), "≥ 2x lmdb or rocksdb or sqlite", 45, "1.80x", False),  # the best
        (Goal.times_faster(0.5, than="bare"), "≥ 0.5x bare", 90, "0.90x", True),
        (Goal.times_slower(1.2, than="bare"), "≤ 1.2x bare", 54, "1.11x", True),
        (Goal.times_slower(1.1, than="bare"), "≤ 1.1x bare", 49.5, "1.11x", False),
        (Goal.times_faster(2, than="raw"), "≥ 2x raw", None, "–", None),
        (Goal.times_faster(2, than="rocksdb"), "≥ 2x rocksdb", None, "–", None),
    ],
)
def test_a_goal_is_judged_by_what_was_measured(goal, text, allowed, reached, met):
    row = Row("append", FIGURES, (goal,))
    assert goal.text == text
    assert goal.allowed(row.figures) == (None if allowed is None else pytest.approx(allowed))
    assert goal.reached(row.figures) == reached
    assert row.met(goal) is met


def test_a_cost_of_nothing_meets_any_limit():
    row = Row("syncs", {"esker": 0}, (Goal.at_most(20),))
    assert row.met(row.goals[0]) is True
    assert row.margin(row.goals[0]) is None


def test_the_table_is_aligned_and_says_what_is_missing():
    rows = [
        Row(
            "append",
            {"esker": 50.0, "lmdb": 1234.5, "rocksdb": NOT_INSTALLED},
            (Goal.at_most(100), Goal.times_faster(10, than="lmdb")),
        ),
        Row("read a lot", {"esker": 2.5, "raw": 1.0}, unit="µs"),
    ]
    lines = measure.table(rows).splitlines()
    assert len(set(map(len, lines))) == 1
    words = [" ".join(line.split()) for line in lines]
    assert words[0] == "operation unit esker lmdb rocksdb sqlite raw goal reached margin met"
    assert words[2] == "append ns/record 50 1,234 not installed – – ≤ 100 50 2.00x yes"
    assert words[3] == "≥ 10x lmdb 24.69x 2.47x yes"
    assert words[4] == "read a lot µs 2.50 – – – 1 – – – –"


def test_the_results_file_names_the_kind_of_machine(tmp_path):
    row = Row("append", {"esker": 50.12345}, (Goal.at_most(100),), details={"records": 10})
    day = datetime.date(2024, 2, 29)
    path = measure.write_results([row], tmp_path / "new", today=day, kind_of_run="part", runs=3)
    assert path.name.startswith("2024-02-29-")
    assert path.name.endswith("-part.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["runs"] == 3
    assert set(document["machine"]) == {"system", "architecture", "cpus", "python"}
    assert document["rows"] == [
        {
            "operation": "append",
            "unit": "ns/record",
            "figures": {"esker": 50.123},
            "goals": [
                {"goal": "≤ 100", "allowed": 100, "reached": "50", "margin": 1.995, "met": True}
            ],
            "details": {"records": 10},
        }
    ]
