"""The command line: each command once, as a process; exit codes, JSON, errors, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import esker
from esker.cli.main import main
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
        orders = store.create("orders", shards=2, durability="fsync")
        for number in range(10):
            orders.append(b"order %d" % number, key=b"user-%d" % number, tag="t", wait=True)
        store["events"].append(b"\xff\xfe", headers={"h": b"v"}, wait=True)
    return tmp_path / "data"


def damage(data: Path) -> None:
    path = next((data / "topics" / "00000002").rglob("*.log"))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_append_creates_reads_arguments_and_says_where_they_went(tmp_path: Path) -> None:
    done = command("append", tmp_path / "data", "orders", "one", "two")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"orders: 2 records appended (shard 0: 0..1)\n"
    done = command("append", tmp_path / "data", "orders", stdin=b"three\n\nfive")
    assert done.stdout == b"orders: 3 records appended (shard 0: 2..4)\n"
    with esker.open(tmp_path / "data", "r") as store:
        values = [record.value for record in store["orders"].read()]
    assert values == [b"one", b"two", b"three", b"", b"five"]


def test_append_answers_in_json(data: Path) -> None:
    done = command("append", data, "orders", "x", "-k", "user-1", "--json")
    answer = json.loads(done.stdout)
    assert answer["records"] == 1
    assert len(answer["spans"]) == 1


def test_read_prints_values_and_lines_go_round_trip(tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    command("append", tmp_path / "data", "t", stdin=lines)
    assert command("read", tmp_path / "data", "t").stdout == lines
    assert command("read", tmp_path / "data", "t", "-s", "-2").stdout == b"line 998\nline 999\n"
    assert command("read", tmp_path / "data", "t", "-s", "5", "-n", "1").stdout == b"line 5\n"


def test_read_in_json_has_all_fields_and_keeps_bytes_that_are_no_text(data: Path) -> None:
    first = json.loads(command("read", data, "orders", "--json").stdout.splitlines()[0])
    assert first["value"].startswith("order ")
    assert first["key"].startswith("user-")
    assert {"offset", "shard", "time", "tag"} <= first.keys()
    event = json.loads(command("read", data, "events", "--json").stdout)
    assert event["value_base64"] == "//4="
    assert event["headers"] == {"h": "v"}


def test_read_follows_a_writer_until_it_has_enough(data: Path) -> None:
    reader = start("read", data, "events", "-f", "-s", "latest", "-n", "2")
    try:
        with esker.open(data) as store:
            deadline = time.monotonic() + PATIENCE
            while reader.poll() is None and time.monotonic() < deadline:
                store["events"].append(b"tick", wait=True)
                time.sleep(0.05)
        out, error = reader.communicate(timeout=PATIENCE)
    finally:
        reader.kill()
        reader.wait()
    assert (reader.returncode, out, error) == (0, b"tick\ntick\n", b"")


def test_ctrl_c_ends_a_follower_with_130(data: Path) -> None:
    reader = start("read", data, "events", "-f", "-s", "earliest")
    try:
        assert reader.stdout is not None
        reader.stdout.readline()  # it is running
        reader.send_signal(signal.SIGINT)
        _, error = reader.communicate(timeout=PATIENCE)
    finally:
        reader.kill()
        reader.wait()
    assert (reader.returncode, error) == (130, b"")


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"x" * 1000] * 5000)
    read, write = os.pipe()
    reader = subprocess.Popen(
        [sys.executable, "-m", "esker", "read", str(tmp_path / "data"), "t"],
        stdout=write, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    os.read(read, 100)
    os.close(read)
    _, error = reader.communicate(timeout=PATIENCE)
    assert (reader.returncode, error) == (0, b"")


def test_info_lists_topics_shards_offsets_and_sizes(data: Path) -> None:
    done = command("info", data)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "orders: fsync" in text
    assert "events: disk" in text
    assert "recovery: clean" in text
    found = json.loads(command("info", data, "--json").stdout)
    orders = next(topic for topic in found["topics"] if topic["name"] == "orders")
    assert sum(shard["end"] for shard in orders["shards"]) == 10
    assert all(shard["bytes"] > 0 for shard in orders["shards"])
    assert found["recovery"] == []


def test_verify_exits_with_1_when_something_is_wrong(data: Path) -> None:
    assert command("verify", data).returncode == 0
    damage(data)
    done = command("verify", data)
    assert done.returncode == 1
    assert b"error: frame" in done.stdout
    found = json.loads(command("verify", data, "--json").stdout)
    assert found["ok"] is False
    (problem,) = found["problems"]
    assert problem["kind"] == "frame"
    assert problem["advice"]
    assert command("verify", data, "--shallow").returncode == 0


def test_repair_says_what_it_does_and_does_it(data: Path) -> None:
    damage(data)
    dry = json.loads(command("repair", data, "--dry-run", "--json").stdout)
    assert dry["actions"][0]["what"] == "hole"
    assert command("verify", data).returncode == 1
    done = command("repair", data)
    assert done.returncode == 0
    assert b"1 record" in done.stdout
    assert command("verify", data).returncode == 0
    read = command("read", data, "events")
    assert read.returncode == 0
    assert b"esker: gap:" in read.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["verify", "nowhere"], "not_a_store"),
        (["info", "nowhere"], "not_a_store"),
        (["read", "DATA", "ordesr"], "topic_not_found"),
        (["read", "DATA", "orders", "-s", "yesterday"], "invalid_position"),
        (["append", "DATA", "no/name", "x"], "invalid_name"),
    ],
)
def test_an_error_is_one_line_with_its_code(data: Path, arguments: list[str], code: str) -> None:
    given = [str(data) if part == "DATA" else part for part in arguments]
    done = command(*given)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode().startswith(f"esker: {code}: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [[], ["fly"], ["read"], ["read", "a", "b", "-n", "-3"]])
def test_a_command_line_that_makes_no_sense_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_version_and_help_do_not_wait_for_arrow() -> None:
    code = (
        "import sys; from esker.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: print('pyarrow' in sys.modules, 'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == [f"esker {esker.__version__}", "False False"]


def test_to_import_esker_is_not_to_import_pandas() -> None:
    """Where it is installed, pyarrow imports it as soon as an array is made of Python's values."""
    code = "import sys, esker, esker.engine.store; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"


def test_every_command_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    for name in ("demo", "info", "append", "read", "verify", "repair", "serve", "key"):
        assert name in text
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert f"esker {name}" in capsys.readouterr().out
