"""System calls fail, lie and kill, by `strace`, in a process that knows nothing of tests.

The simulated disk is only as good as what we think of disks; here the calls are the kernel's own.
tests/crash/tracing.py has the processes. Skipped, with the reason, where there is no strace or
where the machine does not let one process trace another.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

import esker
from tests.suites import SEED, scaled

pytestmark = [pytest.mark.crash, pytest.mark.slow]

RUNS = 60  # of each lot


@cache
def reason_to_skip() -> str:
    """Why nothing can be traced here; empty when it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "-e", "inject=fsync:error=EIO", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if tried.returncode == 0 else f"strace cannot trace: {tried.stderr.strip()}"


@pytest.fixture(autouse=True)
def strace() -> None:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lot", range(4))
def test_what_was_acknowledged_survives_calls_that_fail_or_kill(lot: int, tmp_path: Path) -> None:
    runs = scaled(RUNS, least=7)
    run = subprocess.run(
        [sys.executable, "-m", "tests.crash.tracing", str(tmp_path), str(lot), str(SEED),
         str(runs)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "strace: attach" in run.stderr and "not permitted" in run.stderr:
        pytest.skip(f"strace may not attach to another process: {run.stderr.splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["runs"] == runs
    assert told["injected"] >= runs // 2, told


# ---- a whole program, threads and all, from its first instruction on -------------------------

PROGRAM = """
    import sys, threading
    import esker

    store = esker.open(sys.argv[1], linger="1ms", sync_interval="5ms", journal_bytes="64KiB")
    lock = threading.Lock()

    def produce(name, durability):
        topic = store.create(name, durability=durability, segment_bytes="16KiB", exist_ok=True)
        for n in range(40):
            value = b"%s/%d/" % (name.encode(), n) + b"." * 300
            try:
                offset = topic.append(value, wait=True)
            except esker.EskerError as problem:
                with lock:
                    print("error", name, problem.code, flush=True)
                return
            with lock:
                print("acked", name, offset, n, flush=True)

    threads = [
        threading.Thread(target=produce, args=(name, durability))
        for name, durability in (("f", "fsync"), ("g", "fsync"), ("d", "disk"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        store.close()
    except esker.EskerError as problem:
        print("error", "close", problem.code, flush=True)
"""
INJECTIONS = [
    "fdatasync:signal=SIGKILL:when=3", "fdatasync:signal=SIGKILL:when=17",
    "pwrite64:signal=SIGKILL:when=9", "pwrite64:signal=SIGKILL:when=40",
    "fdatasync:error=EIO:when=6", "pwrite64:error=ENOSPC:when=12",
    "fsync:signal=SIGKILL:when=4", "fallocate:error=ENOSPC:when=1",
]  # fmt: skip
ERRORS = {"poisoned", "disk_full", "storage", "too_many_files"}


@pytest.mark.parametrize("injection", INJECTIONS[: scaled(len(INJECTIONS), least=2)])
def test_a_program_with_threads_keeps_what_it_said(injection: str, tmp_path: Path) -> None:
    call = injection.partition(":")[0]
    command = ["strace", "-f", "--seccomp-bpf", "-o", str(tmp_path / "report"), "-e",
               f"trace={call}", "-e", f"inject={injection}"]  # fmt: skip
    run = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "data")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    kills = "SIGKILL" in injection
    traced = (tmp_path / "report").read_text(errors="replace")
    assert run.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), run.stderr
    assert ("killed by SIGKILL" in traced) == (run.returncode != 0)
    assert "INJECTED" in traced or kills, "nothing was injected"
    told: dict[str, dict[int, bytes]] = {"f": {}, "g": {}, "d": {}}
    for line in run.stdout.splitlines(keepends=True):
        if line.startswith("acked") and line.endswith("\n"):
            _, name, offset, n = line.split()
            told[name][int(offset)] = f"{name}/{n}/".encode()
        elif line.startswith("error"):
            assert line.split()[2] in ERRORS, line
    with esker.open(tmp_path / "data") as store:
        bad = {label for label in store.recovery.labels if "corrupt" in label}
        assert not bad, str(store.recovery)
        for name, promised in told.items():
            found = list(store[name].read(0)) if promised else []
            assert [record.offset for record in found] == list(range(len(found)))
            for offset, start in promised.items():
                assert found[offset].value.startswith(start), f"{name}: {offset} is not there"
        for name in store:
            store[name].append(b"goes on", wait=True)
