"""Fixtures for pytest, there as soon as Esker is installed: docs/testing.md.

    def test_an_order_is_kept(esker_store):
        ...                                     # a real store in a temporary directory

pytest imports this module at the start of every run, also of those that have nothing to do with
Esker. So it imports nothing but pytest: the engine, and Arrow below it, come with the first fixture
that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from esker.engine.store import Store
    from esker.testing.clock import ManualClock
    from esker.testing.machine import Machine


@pytest.fixture
def esker_clock() -> ManualClock:
    """A clock that stands still until `esker_clock.forward(seconds)`."""
    from esker.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def esker_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on the real disk, in a directory of this test alone; closed when it ends.

    In a test that asks for `esker_clock` too it runs on that clock and without threads: what they
    would do happens in `esker_store.tick()`.
    """
    from esker.engine.store import open_store

    place = tmp_path / "esker-store"
    if "esker_clock" in request.fixturenames:
        clock = request.getfixturevalue("esker_clock")
        opened = open_store(place, clock=clock, background=False)
    else:
        opened = open_store(place)
    with opened:
        yield opened


@pytest.fixture
def esker_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine that can be killed (`kill()`) and lose power (`crash()`), with a disk in memory.

    In a test that asks for `esker_clock` too it has that clock.
    """
    from esker.testing.machine import Machine

    used = "esker_clock" in request.fixturenames
    machine = Machine(clock=request.getfixturevalue("esker_clock") if used else None)
    yield machine
    machine.close()
