"""A topic is a list that survives: whatever is done in whatever order, they agree.

A Hypothesis state machine does the same drawn steps to the engine, to the engine with
optimisations switched off, and to a plain list: appends of all kinds, reads from every kind of
position, restarts, kills, power cuts, clocks that jump. See machine.py for the steps, plain.py for
the list, switches.py for what can be switched off, events.py for the boundaries that must have
been hit.

A failure prints the shortest program that shows it. `ESKER_SEED` and the lot fix everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import run_state_machine_as_test

from tests.model import events
from tests.model.machine import Machine
from tests.model.switches import ALL_OFF, PLAIN_READS, SMALL, SMALL_PLAIN_READS, Switches
from tests.suites import SEED, Tallies, scaled

LOTS = 8
STEPS = 60  # of one example
EXAMPLES = 92  # of a lot, at scale 1
ROUNDS = 7  # of a lot, until it was at every boundary; all but the first are short


@contextmanager
def _seed_alone() -> Iterator[None]:
    """Examples follow from the seed, and from nothing else.

    Hypothesis also draws constants that it finds in the sources of all modules loaded so far, so
    that the same seed would mean other examples for a test run alone and for one among all tests.
    """
    with patch.object(providers, "_get_local_constants", providers.Constants):
        providers.CONSTANTS_CACHE.cache.clear()
        yield
    providers.CONSTANTS_CACHE.cache.clear()


pytestmark = [pytest.mark.crash, pytest.mark.suite, pytest.mark.timeout(900)]


@pytest.mark.parametrize("lot", range(LOTS))
def test_a_topic_is_a_list_that_survives(lot: int, tally: Tallies) -> None:
    suite = tally("model steps", lots=LOTS)
    small = lot % 2 == 1
    others = [SMALL_PLAIN_READS if small else PLAIN_READS, ALL_OFF]
    examples = scaled(EXAMPLES)
    events.HITS.clear()

    def step() -> None:
        suite.count += 1

    def machine() -> Machine:
        suite.also["examples"] += 1
        return Machine(others, step)

    unseen: list[str] = []
    with Switches("small limits", SMALL if small else ()), events.WATCH, _seed_alone():
        for again in range(ROUNDS):
            run_state_machine_as_test(
                seed(SEED * 1000 + lot + again * LOTS)(machine),
                settings=settings(
                    max_examples=examples // 3 if again else examples, stateful_step_count=STEPS,
                    deadline=None, database=None, suppress_health_check=list(HealthCheck),
                    phases=(Phase.generate, Phase.shrink),
                ),
            )  # fmt: skip
            unseen = events.missing(small)
            if examples < EXAMPLES or not unseen:  # fewer steps than these cannot be everywhere
                break
        else:
            pytest.fail(f"seed {SEED}, lot {lot}: never at these boundaries: {unseen}")
    suite.also["boundary events"] += sum(events.HITS.values())
