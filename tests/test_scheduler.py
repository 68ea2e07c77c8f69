"""Who is served next, and the ladder: every bound, with a clock that is moved by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esker.scheduler import governor, priority
from esker.scheduler.governor import Governor
from esker.scheduler.ready import DEBT, QUANTUM, ReadySet
from esker.testing import ManualClock

PRIORITY_OF_BAND = (-500.0, 100.0, 300.0, 600.0, 900.0)


def a_set(priorities: dict[str, float | None]) -> tuple[ReadySet, ManualClock]:
    clock = ManualClock()
    return ReadySet(clock, lambda topic: priorities.get(topic, 0.0)), clock


# ---- priority ---------------------------------------------------------------------------------


def test_what_is_being_read_is_worth_more_and_after_five_minutes_nothing() -> None:
    assert priority.worth(None, None) == 0
    assert priority.worth(None, 0) == 500
    assert priority.worth(None, 30) == pytest.approx(250)
    assert priority.worth(None, 60) == pytest.approx(125)
    assert priority.worth(None, 300) == 0


def test_an_explicit_priority_knows_no_recency_and_has_bounds() -> None:
    assert priority.worth(7, 0) == priority.worth(7, None) == 7
    assert priority.worth(5_000, None) == 1_000
    assert priority.worth(-5_000, 0) == -1_000


@pytest.mark.parametrize(
    ("value", "band"), [(1000, 4), (750, 4), (749, 3), (500, 3), (499, 2), (250, 2), (249, 1),
                        (0, 1), (-0.1, 0), (-1000, 0)],
)  # fmt: skip
def test_bands_begin_where_they_should(value: float, band: int) -> None:
    assert priority.band_of(value) == band


@given(st.floats(-1000, 1000), st.floats(0, 20), st.floats(0, 20))
def test_waiting_never_lowers_a_band_and_ten_seconds_are_enough(
    base: float, first: float, second: float
) -> None:
    shorter, longer = sorted((first, second))
    assert priority.band_after(base, shorter) <= priority.band_after(base, longer)
    assert priority.band_after(base, 10) == priority.TOP
    rises = priority.rises_after(base, priority.band_of(base))
    assert priority.band_of(base) == priority.TOP or 0 <= rises <= 10


# ---- the ready set ----------------------------------------------------------------------------


def test_a_dirty_topic_stands_in_the_set_once() -> None:
    ready, _ = a_set({})
    assert ready.mark("a")
    assert not ready.mark("a")
    assert len(ready) == 1
    turn = ready.next()
    assert turn is not None
    assert turn.topic == "a"
    assert ready.next() is None


def test_what_gets_dirty_while_it_is_drained_has_one_more_turn() -> None:
    ready, _ = a_set({})
    ready.mark("a")
    turn = ready.next()
    assert turn is not None
    assert ready.mark("a")
    assert not ready.mark("a")
    assert len(ready) == 0
    ready.served(turn, 1)
    assert len(ready) == 1
    again = ready.next()
    assert again is not None
    ready.served(again, 1)
    assert len(ready) == 0


def test_what_has_more_goes_to_the_end_of_its_band() -> None:
    ready, clock = a_set({})
    for name in "ab":
        ready.mark(name)
        clock.forward(0.001)
    order = []
    for _ in range(4):
        turn = ready.next()
        assert turn is not None
        order.append(turn.topic)
        clock.forward(0.001)
        ready.served(turn, 1, more=True)
    assert order == ["a", "b", "a", "b"]


def test_within_a_band_the_oldest_goes_first() -> None:
    ready, clock = a_set({})
    for name in "cab":
        ready.mark(name)
        clock.forward(0.001)
    assert [turn.topic for turn in iter(ready.next, None)] == ["c", "a", "b"]


def test_bands_share_the_work_by_their_weights() -> None:
    ready, _ = a_set({str(band): value for band, value in enumerate(PRIORITY_OF_BAND)})
    for band in range(5):
        ready.mark(str(band))
    work: Counter[str] = Counter()
    for _ in range(10_000):  # no time passes: nobody rises
        turn = ready.next()
        assert turn is not None
        work[turn.topic] += 100
        ready.served(turn, 100, more=True)
    total = sum(work.values())
    for band, weight in enumerate(priority.WEIGHTS):
        assert work[str(band)] / total == pytest.approx(weight / 16, rel=0.02)


def test_a_huge_service_is_a_bounded_debt() -> None:
    ready, _ = a_set({"low": 100.0, "high": 900.0})
    ready.mark("low")
    turn = ready.next()
    assert turn is not None
    ready.served(turn, 1e12, more=True)
    served = 0
    for _ in range(int(8 * (DEBT / QUANTUM + 2)) * 3):
        ready.mark("high")
        turn = ready.next()
        assert turn is not None
        if turn.topic == "low":
            break
        served += 1
        ready.served(turn, QUANTUM)
    else:
        pytest.fail("the lower band is shut out")
    assert served > 1


def test_credit_is_not_saved_up_by_a_band_that_has_nothing_to_do() -> None:
    ready, _ = a_set({"high": 900.0, "low": 100.0})
    for _ in range(1_000):
        ready.mark("low")
        turn = ready.next()
        assert turn is not None
        ready.served(turn, 100)
    ready.mark("high")
    ready.mark("low")
    first = 0
    for _ in range(1_000):
        turn = ready.next()
        assert turn is not None
        if turn.topic == "low":
            break
        first += 1
        ready.served(turn, QUANTUM, more=True)
    assert first <= 8 + 8  # one turn's credit, and that of the next


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nobody_starves(data: st.DataObject) -> None:
    """Whatever else comes: who has waited ten seconds is served before all who came later."""
    names = [f"t{n}" for n in range(8)]
    given_priorities = {
        name: data.draw(st.one_of(st.none(), st.floats(-1000, 1000))) for name in names
    }
    ready, clock = a_set(dict(given_priorities))
    ready.deferring = data.draw(st.booleans())
    ready.mark("t0")
    waited = 0.0
    for _ in range(400):
        for name in names[1:]:
            ready.mark(name)
        turn = ready.next()
        step = data.draw(st.floats(0.05, 0.2))
        clock.forward(step)
        if turn is not None:
            if turn.topic == "t0":
                waited = turn.waited
                break
            ready.served(turn, data.draw(st.floats(1, 1024)), more=True)
    else:
        pytest.fail("it was never served")
    # ten seconds to the top band; there at most its elders are before it, and bands that share
    # the work with it: a round of credits, in services of one record's cost
    assert waited <= 10 + 0.2 * (len(names) + 32)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("mnfs"), st.integers(0, 5)), max_size=200))
def test_the_set_agrees_with_a_simple_one(steps: list[tuple[str, int]]) -> None:
    ready, clock = a_set({str(n): PRIORITY_OF_BAND[n % 5] for n in range(6)})
    dirty: set[str] = set()
    draining: dict[str, bool] = {}
    turns = {}
    for step, number in steps:
        name = str(number)
        clock.forward(0.3)
        if step == "m":
            ready.mark(name)
            if name in draining:
                draining[name] = True
            else:
                dirty.add(name)
        elif step == "n":
            turn = ready.next()
            assert (turn is None) == (not dirty)
            if turn is not None:
                dirty.remove(turn.topic)
                draining[turn.topic] = False
                turns[turn.topic] = turn
        elif step == "f":
            ready.forget(name)
            dirty.discard(name)
            draining.pop(name, None)
        elif name in draining:
            ready.served(turns[name], 10)
            if draining.pop(name):
                dirty.add(name)
        assert len(ready) == len(dirty)
        assert sum(ready.sizes()) == len(dirty)
        assert all(each in ready for each in dirty)


def test_the_lowest_band_rests_while_deferred_but_rises_out_of_it() -> None:
    ready, clock = a_set({"low": -300.0})
    ready.mark("low")
    ready.deferring = True
    assert ready.next() is None
    assert ready.rises_in() == pytest.approx(3.0)
    clock.forward(2.9)
    assert ready.next() is None
    clock.forward(0.2)
    turn = ready.next()
    assert turn is not None
    assert (turn.topic, turn.band, turn.began) == ("low", 1, 0)


def test_deferring_ends_at_once_when_it_is_over() -> None:
    ready, _ = a_set({"low": -300.0})
    ready.mark("low")
    ready.deferring = True
    assert ready.next() is None
    ready.deferring = False
    assert ready.next() is not None


def test_what_is_forgotten_has_no_turn_and_leaves_nothing() -> None:
    ready, _ = a_set({})
    ready.mark("a")
    ready.forget("a")
    assert ready.next() is None
    assert ready.rises_in() is None
    ready.mark("b")
    turn = ready.next()
    assert turn is not None
    ready.forget("b")
    ready.mark("b")
    ready.served(turn, 1, more=True)  # of the one that was forgotten
    assert len(ready) == 1


def test_the_heaps_do_not_grow_with_what_was_served() -> None:
    ready, clock = a_set({})
    for _ in range(5_000):
        ready.mark("a")
        turn = ready.next()
        assert turn is not None
        ready.served(turn, 1)
        clock.forward(0.0001)
    assert len(ready._rising) < 200
    assert sum(map(len, ready._bands)) < 10


def test_reading_makes_a_topic_without_a_priority_more_important() -> None:
    ready, clock = a_set({"a": None, "b": None})
    ready.consumed("b")
    assert ready.worth("b") == 500
    assert ready.worth("a") == 0
    clock.forward(30)
    assert ready.worth("b") == pytest.approx(250)


# ---- the governor -----------------------------------------------------------------------------


def sampled(made: Governor, clock: ManualClock, seconds: float, **load: float) -> None:
    for _ in range(round(seconds / governor.SAMPLE_SECONDS)):
        clock.forward(governor.SAMPLE_SECONDS)
        made.waited(load.get("waited", 0.0))
        made.sample(int(load.get("ready", 0)), load.get("busy", 0.0))


def test_an_idle_server_has_no_pressure_and_a_drowning_one_has_all() -> None:
    clock = ManualClock()
    made = Governor(clock, workers=4)
    sampled(made, clock, 1)
    assert made.pressure == 0
    assert made.rung == 0
    sampled(made, clock, 5, ready=1_000, waited=0.1, busy=1.0)
    assert made.pressure == pytest.approx(1.0, abs=0.01)
    assert made.saturated
    assert made.rung == 4


def test_a_busy_pool_alone_is_no_pressure_to_speak_of() -> None:
    clock = ManualClock()
    made = Governor(clock, workers=4)
    sampled(made, clock, 5, busy=1.0)
    assert made.coalesce == 0.0
    assert made.commit_window is None
    assert made.rung == 0


def test_latency_is_forgotten_when_nobody_waits_any_more() -> None:
    clock = ManualClock()
    made = Governor(clock, workers=1)
    sampled(made, clock, 2, waited=0.05)
    assert made.pressure > governor.COALESCE_ABOVE
    for _ in range(30):
        clock.forward(0.1)
        made.sample(0, 0.0)
    assert made.pressure < 0.01


def test_low_value_push_is_deferred_only_when_it_lasts_and_resumes_below() -> None:
    clock = ManualClock()
    made = Governor(clock, workers=1)
    heavy = {"ready": 1_000, "waited": 1.0, "busy": 0.5}
    sampled(made, clock, 0.9, **heavy)
    assert made.pressure > governor.DEFER_ABOVE
    assert not made.deferring  # not yet a second
    sampled(made, clock, 1.0, **heavy)
    assert made.deferring
    made.pressure = 0.7
    made._defer()
    assert made.deferring  # between the two it stays as it is
    made.pressure = 0.59
    made._defer()
    assert not made.deferring
    made.pressure = 0.7
    made._defer()
    assert not made.deferring


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_pressure_never_takes_a_lower_rung(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert governor.coalesce_at(low) <= governor.coalesce_at(high) <= governor.COALESCE_SECONDS
    assert (governor.commit_at(low) or 0.0) <= (governor.commit_at(high) or 0.0)
    clock = ManualClock()
    rungs = []
    for pressure in (low, high):
        made = Governor(clock, 1)
        made.pressure = pressure
        rungs.append(made.rung)
    assert rungs[0] <= rungs[1]


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 2), st.floats(0, 10)), max_size=60))
def test_the_pressure_stays_between_nothing_and_all(
    load: list[tuple[int, float, float]],
) -> None:
    clock = ManualClock()
    made = Governor(clock, 2)
    for ready, busy, waited in load:
        clock.forward(0.1)
        made.waited(waited)
        assert 0.0 <= made.sample(ready, busy) <= 1.0
        assert not (made.deferring and made.pressure < governor.DEFER_BELOW)


def test_the_windows_at_their_ends() -> None:
    assert governor.coalesce_at(0.2) == 0
    assert governor.coalesce_at(1.0) == pytest.approx(0.020)
    assert governor.commit_at(0.4) is None
    assert governor.commit_at(1.0) == pytest.approx(0.010)
