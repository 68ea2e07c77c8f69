"""Every mutant of the zoo is killed by the tests that it names.

Tests are worth what they notice. Each mutant is the source with one bug in it; its tests run, each
in a process of its own (see keeper.py), until the first one fails. A mutant whose tests pass is a
hole in them; one whose tests cannot run, say because it cannot be imported, proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.suites import FLOORS, Tallies
from tests.zoo.keeper import ROOT, Keeper
from tests.zoo.mutants import Mutant, mutants

pytestmark = [pytest.mark.crash, pytest.mark.suite]

MUTANTS = mutants()
SOURCE = ROOT / "src" / "esker"
LOTS = 8  # of the tests that all of them name


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    made = Keeper(tmp_path_factory.mktemp("zoo"))
    yield made
    made.close()


def test_there_are_enough_of_them_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= FLOORS["mutants"]
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.edits for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("lot", range(LOTS))
def test_the_healthy_source_lives(lot: int, keeper: Keeper) -> None:
    """As its own test says of every mutant; here a failure means that the zoo is ill."""
    tests = sorted({name for each in MUTANTS for name in each.tests})
    code, output = keeper.run({}, tuple(tests[lot::LOTS]))
    assert code == 0, output[-3000:]


@pytest.mark.parametrize(
    ("text", "tests", "code"),
    [
        ("syntax error", ("tests/unit/format/test_names.py",), 4),
        ("import nothing_of_this_name", ("tests/unit/format/test_names.py",), 4),
        ("", ("tests/unit/format/test_names.py::test_that_there_is_not",), 4),
    ],
    ids=["a mutant that is no Python", "a mutant that cannot be imported", "a test that is gone"],
)
def test_what_does_not_run_is_no_kill(
    keeper: Keeper, text: str, tests: tuple[str, ...], code: int
) -> None:
    healthy = (SOURCE / "__init__.py").read_text()
    found, output = keeper.run({"__init__.py": f"{healthy}\n{text}\n"}, tests)
    assert found == code, output[-3000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_it_is_killed(mutant: Mutant, keeper: Keeper, tally: Tallies) -> None:
    suite = tally("mutants", lots=len(MUTANTS))
    suite.floor = min(suite.floor, 1)  # there is one of each, however much a run is to do
    code, output = keeper.run(mutant.sources(SOURCE), mutant.tests)
    assert code != 0, f"{mutant.name}: it lives; {mutant.tests} let it pass"
    assert code == 1, f"{mutant.name}: its tests did not run ({code})\n{output[-3000:]}"
    suite.count += 1
