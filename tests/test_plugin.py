"""The plug-in of pytest: its fixtures work as docs/testing.md says, and cost others nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import esker
from esker.testing import LYING, Machine, ManualClock

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "testing.md").read_text(encoding="utf-8")


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Pytest as somebody else would start it: with no setting of ours, and no other plug-in."""
    (folder / "test_theirs.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_tests_of_the_page_pass_as_they_are_pasted(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S))
    count = len(re.findall(r"^def test_", code, re.M))
    assert count >= 5
    told = run(tmp_path, code)
    assert told.returncode == 0, told.stdout
    assert f"{count} passed" in told.stdout


def test_a_run_that_does_not_ask_for_it_does_not_wait_for_it(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "def test_nothing_heavy_was_imported():\n"
        "    assert 'esker.testing.plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] == 'esker'}\n"
        "    assert ours == {'esker', 'esker.engine', 'esker.engine.verbs', 'esker.version',\n"
        "                    'esker.testing', 'esker.testing.plugin'}\n"
        "    assert not {'pyarrow', 'msgspec', 'xxhash'} & {*sys.modules}\n"
    )
    told = run(tmp_path, code, "-p", "no:schemathesis", "-p", "no:hypothesispytest")
    assert told.returncode == 0, told.stdout


def test_the_fixtures_are_listed_with_what_they_are(tmp_path: Path) -> None:
    told = run(tmp_path, "", "--fixtures")
    for name in ("esker_store", "esker_clock", "esker_machine"):
        assert re.search(rf"^{name}\b.*\n    \w+", told.stdout, re.M), name


def test_a_store_that_a_test_leaves_open_is_closed_behind_it(esker_store: esker.Store) -> None:
    esker_store["orders"].append(b"tea")
    assert esker_store.path.endswith("esker-store")


def test_a_store_runs_on_the_clock_that_is_asked_for(
    esker_store: esker.Store, esker_clock: ManualClock
) -> None:
    topic = esker_store.create("t", ttl="1h", segment_records=2)
    topic.append_many([b"a", b"b"])
    topic.append_many([b"c"])
    assert topic.get(0).timestamp == esker_clock.now_us()
    esker_clock.forward(7200)
    esker_store.tick()
    assert topic.earliest() == 3


def test_a_kill_takes_what_was_buffered_and_nothing_else(esker_machine: Machine) -> None:
    store = esker_machine.open()
    store["t"].append_many([b"written"])
    store["t"].append(b"pending")
    after = esker_machine.kill()
    assert after["t"][:].values == [b"written"]
    with pytest.raises(esker.StoreClosed):
        store["t"].append(b"from the grave")


def test_a_power_cut_takes_nothing_that_was_synced(esker_machine: Machine) -> None:
    store = esker_machine.open()
    store["t"].append_many([b"synced"])
    store["t"].sync()
    for _ in range(3):
        store["t"].append_many([b"in the page cache"])
        store = esker_machine.crash()
        assert store["t"].get(0).value == b"synced"


def test_cuts_end_in_different_ways_and_the_same_seed_in_the_same() -> None:
    def left(seed: int) -> list[bytes]:
        machine = Machine()
        store = machine.open()
        store["t"].sync()
        store["t"].append_many([b"%d" % n for n in range(4)])
        found = machine.crash(seed)["t"].slice(gaps="skip").values
        machine.close()
        return found

    seen = [left(seed) for seed in range(12)]
    assert seen == [left(seed) for seed in range(12)]
    assert {len(each) for each in seen} == {0, 4}, "all or nothing of a batch, and both happen"


def test_every_way_that_a_cut_can_end_is_shown(esker_machine: Machine) -> None:
    store = esker_machine.open()
    store.create("t", durability="fsync").append(b"acked", wait=True)
    store["t"].append_many([b"in doubt"])
    found = {tuple(after["t"].slice(gaps="skip").values) for after in esker_machine.crashes()}
    assert found == {(b"acked",), (b"acked", b"in doubt")}
    assert "off" in repr(esker_machine)


def test_it_opens_with_the_same_options_again_and_as_another_kind_of_disk() -> None:
    machine = Machine(profile=LYING)
    store = machine.open(linger=0)
    store["t"].append(b"acked", wait=True)
    store["t"].sync()
    after = machine.crash()
    assert "t" not in after or after["t"].slice(gaps="skip").values == []  # as such disks do
    assert after._context.options.linger_us == 0
    assert "lying" in repr(machine)
    machine.close()
