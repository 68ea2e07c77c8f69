"""The demo shows what it says, and its checker can tell when it does not."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import esker
from esker.cli.demo_check import Verdict, check
from esker.cli.demo_producer import AckList, authentic, maker, payload
from tests.helpers import PATIENCE, wait_until
from tests.test_cli import command, start


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a demo that was run, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    done = command("demo", "--fast", "--dir", folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder, done.stdout.decode()


@pytest.mark.crash
def test_nothing_acknowledged_is_lost_when_the_producer_is_killed(shown: tuple[Path, str]) -> None:
    _, text = shown
    assert "acknowledged lost: 0" in text
    assert len(re.findall(r"kill -9 \d+", text)) == 2
    assert len(re.findall(r"opened in", text)) == 2
    acknowledged = int(re.search(r"^acknowledged: ([\d,]+)$", text, re.M)[1].replace(",", ""))
    assert acknowledged > 1000


@pytest.mark.crash
def test_the_commands_at_its_end_work_as_pasted(shown: tuple[Path, str]) -> None:
    _, text = shown
    lines = text.split("next:\n")[1].splitlines()
    assert len(lines) == 4
    for line in lines:
        for part in line.strip().split(" && "):
            done = subprocess.run(shlex.split(part), capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, (part, done.stderr)
            assert done.stdout


@pytest.mark.crash
def test_the_demo_goes_on_with_what_it_left_and_touches_nothing_else(
    shown: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = shown
    assert command("demo", "--check", "--dir", folder).returncode == 0
    (tmp_path / "letter.txt").write_text("dear")
    done = command("demo", "--fast", "--dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(b"esker: demo: ")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.crash
@pytest.mark.slow
def test_the_demo_fails_when_an_acknowledged_record_is_removed(
    shown: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shown[0], folder)
    log = max((folder / "store").rglob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    esker.repair(folder / "store")  # the record is gone for good, and the store is whole
    done = command("demo", "--check", "--dir", folder)
    assert done.returncode == 1
    lost = int(re.search(rb"acknowledged lost: (\d+)", done.stdout)[1])
    assert lost > 0
    assert b"broken promise" in done.stderr


@pytest.mark.crash
def test_ctrl_c_ends_the_demo_and_its_producer(tmp_path: Path) -> None:
    demo = start("demo", "--dir", tmp_path / "demo")
    try:
        wait_until(lambda: list(tmp_path.rglob("*.acks")), "the first ack list")
        (producer,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        demo.send_signal(signal.SIGINT)
        _, error = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, error) == (130, b"")
    assert not Path(f"/proc/{producer}").exists()


# --- the checker, on a small scale ----------------------------------------------------------------


@pytest.fixture
def acks(tmp_path: Path) -> Path:
    (tmp_path / "acks").mkdir()
    return tmp_path / "acks"


def written(store: esker.Store, acks: Path, *, skip: int = -1, alter: int = -1) -> Verdict:
    """Five acknowledged batches, one of them perhaps not as acknowledged."""
    noted = AckList(str(acks), 1, 0)
    for batch in range(5):
        values = [payload(1, 0, batch * 3 + row) for row in range(3)]
        there = list(values)
        if batch == skip:
            there.pop()
        if batch == alter:
            there[1] = there[1][:-1] + b"!"
        span = store["events"].append_many(there)
        assert isinstance(span, esker.Span)
        noted.add("events", 0, batch * 3, values)
    return check(store, str(acks))


def test_the_checker_is_content_with_what_was_acknowledged(store, acks: Path) -> None:
    verdict = written(store, acks)
    assert (verdict.acknowledged, verdict.holds, verdict.kept) == (15, True, 0)


def test_the_checker_misses_a_record(store, acks: Path) -> None:
    verdict = written(store, acks, skip=2)
    assert not verdict.holds
    assert verdict.lost == 1


def test_the_checker_sees_an_altered_record(store, acks: Path) -> None:
    verdict = written(store, acks, alter=3)
    assert verdict.altered == 3  # of its batch
    assert verdict.phantom == 1


def test_the_checker_sees_what_nobody_wrote_and_what_is_there_twice(store, acks: Path) -> None:
    store["events"].append_many([payload(1, 0, 0), payload(1, 0, 0), b"a ghost"])
    verdict = check(store, str(acks))
    assert (verdict.phantom, verdict.kept) == (2, 3)


def test_an_ack_that_was_not_finished_counts_for_nothing(store, acks: Path) -> None:
    (acks / "001-00.acks").write_bytes(b"events 0 0 1 0123")
    assert check(store, str(acks)).acknowledged == 0


def test_a_value_tells_who_made_it() -> None:
    assert maker(payload(3, 1, 77)) == (3, 1, 77)
    assert authentic(payload(3, 1, 77))
    assert not authentic(payload(3, 1, 77) + b"x")
    assert not authentic(b"not one of ours")


def test_the_producer_is_started_with_this_interpreter() -> None:
    assert subprocess.run([sys.executable, "-c", "import esker.cli.demo_producer"], check=True)
