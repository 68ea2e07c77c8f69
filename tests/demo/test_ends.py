"""However the demo ends, none of its processes is left."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from esker.demo.bell import hearing
from tests.demo.running import alive, children, start
from tests.helpers import PATIENCE, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.damages]  # nobody closes the store


def begun(folder: Path) -> tuple[subprocess.Popen[bytes], set[int]]:
    """A demo whose shop sells, and all processes that it has by then."""
    demo = start("--no-spark", "--dir", folder)
    try:
        wait_until(lambda: list(folder.glob("notes/*.bills")), "the first bill")
        found = children(demo.pid)
        assert len(found) >= 6  # server, shop, three workers, billing
    except BaseException:
        demo.kill()
        demo.communicate()
        raise
    return demo, found


def test_ctrl_c_ends_all_and_says_so(tmp_path: Path) -> None:
    demo, started = begun(tmp_path / "demo")
    try:
        demo.send_signal(signal.SIGINT)
        out, error = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, error) == (130, b"")
    assert b"interrupted: all processes of the demo have ended" in out
    assert [pid for pid in started if alive(pid)] == []


def test_a_reader_that_stops_early_ends_all_and_is_no_error(tmp_path: Path) -> None:
    """esker demo | head"""
    demo, started = begun(tmp_path / "demo")
    try:
        assert demo.stdout is not None
        assert demo.stderr is not None
        demo.stdout.close()
        error = demo.stderr.read()
        demo.wait(PATIENCE)
    finally:
        demo.kill()
        demo.wait()
        demo.stderr.close()
    assert (demo.returncode, error) == (0, b"")
    assert [pid for pid in started if alive(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with hearing() as bell:
        bell.check()
        signal.raise_signal(number)  # what is under way goes on
        with pytest.raises(KeyboardInterrupt):
            bell.wait(0)
        with pytest.raises(KeyboardInterrupt):  # now it is serious
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_its_children_end_when_the_demo_itself_is_killed(tmp_path: Path) -> None:
    demo, started = begun(tmp_path / "demo")
    demo.kill()
    demo.communicate()
    wait_until(lambda: not any(map(alive, started)), "the end of all children")


def test_a_child_that_fails_ends_the_demo_with_its_words(tmp_path: Path) -> None:
    """The server is killed behind the demo's back."""
    demo, _ = begun(tmp_path / "demo")
    try:
        (server,) = (
            pid
            for pid in children(demo.pid)
            if b"esker.demo.house" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        subprocess.run(["kill", "-9", str(server)], check=True)
        _, error = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 1
    assert error.startswith(b"esker: demo: the server ended by itself with -9")
