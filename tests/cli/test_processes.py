"""The command as a process: exit codes, signals, pipes, and what is imported for its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import esker
from tests.helpers import PATIENCE


def command(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run `esker` with these arguments and wait for it."""
    return subprocess.run(
        [sys.executable, "-m", "esker", *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "esker", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with esker.open(tmp_path / "data") as store:
        store["events"].append(b"first", wait=True)
    return tmp_path / "data"


def test_a_pipe_into_append_and_out_of_read(tmp_path: Path) -> None:
    done = command("append", "t", "--data", tmp_path / "data", stdin=b"three\n\nfive")
    assert (done.returncode, done.stderr) == (0, b"")
    assert command("read", "t", "-o", "raw", "--data", tmp_path / "data").stdout == (
        b"three\n\nfive\n"
    )


@pytest.mark.parametrize("verb", [["read", "-f", "-s", "latest", "-n", "2"], ["tail", "-n0", "-f"]])
def test_a_follower_gets_what_comes(data: Path, verb: list[str]) -> None:
    reader = start(verb[0], "events", *verb[1:], "-o", "raw", "--data", data)
    out = b""
    try:
        assert reader.stdout is not None
        os.set_blocking(reader.stdout.fileno(), False)
        with esker.open(data) as store:
            deadline = time.monotonic() + PATIENCE
            while out.count(b"\n") < 2 and time.monotonic() < deadline:
                store["events"].append(b"tick", wait=True)
                time.sleep(0.05)
                out += reader.stdout.read() or b""
        if verb[0] == "tail":  # read has enough by itself
            reader.send_signal(signal.SIGINT)
        _, error = reader.communicate(timeout=PATIENCE)
    finally:
        reader.kill()
        reader.wait()
    assert out.startswith(b"tick\ntick\n")
    assert reader.returncode == (130 if verb[0] == "tail" else 0)
    assert error == b""


def test_ctrl_c_ends_a_follower_with_130(data: Path) -> None:
    reader = start("read", "events", "-f", "-s", "earliest", "--data", data)
    try:
        assert reader.stdout is not None
        reader.stdout.readline()  # it is running
        reader.send_signal(signal.SIGINT)
        _, error = reader.communicate(timeout=PATIENCE)
    finally:
        reader.kill()
        reader.wait()
    assert (reader.returncode, error) == (130, b"")


@pytest.mark.parametrize("form", ["raw", "ndjson", "csv", "arrow", "table"])
def test_a_reader_that_stops_early_is_no_error(tmp_path: Path, form: str) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"x" * 1000] * 5000)
    read, write = os.pipe()
    reader = subprocess.Popen(
        [sys.executable, "-m", "esker", "read", "t", "-o", form, "--data", tmp_path / "data"],
        stdout=write, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    os.read(read, 100)
    os.close(read)
    _, error = reader.communicate(timeout=PATIENCE)
    assert (reader.returncode, error) == (0, b"")


def test_what_was_taken_is_kept_when_append_is_interrupted(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "esker", "append", "t", "--data", str(tmp_path / "data")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert writer.stdin is not None
        writer.stdin.write(b"kept\n")
        writer.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:  # it came at once: nobody waits for a full buffer
            if (tmp_path / "data" / "esker.store").exists():
                with esker.open(tmp_path / "data", "r") as store:
                    if "t" in store and len(store["t"]):
                        break
            time.sleep(0.02)
        writer.send_signal(signal.SIGINT)
        _, error = writer.communicate(timeout=PATIENCE)
    finally:
        writer.kill()
        writer.wait()
    assert (writer.returncode, error) == (130, b"")
    with esker.open(tmp_path / "data", "r") as store:
        assert store["t"][:].values == [b"kept"]


def test_help_and_version_import_neither_arrow_nor_a_server() -> None:
    code = (
        "import sys; from esker.cli.main import main\n"
        "for given in (['--version'], ['--help'], ['read', '--help'], ['queue', '--help'],\n"
        "              ['raed'], ['read', '--dta', 'x']):\n"
        "    main(given)\n"
        "heavy = ('pyarrow', 'uvicorn', 'asyncio', 'duckdb', 'esker.engine.store')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"esker {esker.__version__}", "[]")


def test_to_import_esker_is_not_to_import_pandas() -> None:
    """Where it is installed, pyarrow imports it as soon as an array is made of Python's values."""
    code = "import sys, esker, esker.engine.store; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"


def test_a_few_records_are_written_and_read_without_pandas(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys, esker
        for word in (b"once", b"again"):
            with esker.open({str(tmp_path / "data")!r}) as store:
                store["t"].append(word)
                store["t"].append_many([b"one", esker.Record(b"two", key=b"k", tag="x")])
                store["t"].append(word, wait=True)
                read = [record.value for record in store["t"]]
                assert len(list(store["t"].batches())) > 0
        print(len(read), "pandas" in sys.modules)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "8 False\n"
