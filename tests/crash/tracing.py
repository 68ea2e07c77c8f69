"""Processes whose system calls fail or kill them, with no seam of ours in between.

`strace` can answer a system call in the kernel's place. Here it is attached to a child of a warm
process (see nursery.py), which is unmodified: the real files, no wrapper, no test double. What is
injected is drawn from a seed: an error or a SIGKILL at the n-th call of one kind, or a lie, a write
that says that it wrote and did not.

After an error the child goes on with its steps, as a program would that logs and carries on. What
it then leaves is held against the ledger. After a lie nobody can promise that all is there, but
what is there must be what was written, and what is missing must be said.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import time
from typing import Any, NamedTuple

import esker
from esker.storage.files import SYSTEM_FILES
from tests.crash.driver import Step, mixed
from tests.crash.ledger import Ledger
from tests.crash.nursery import Child, Nursery, RealDriver, Telling, replay

SET_TRACER, ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
WRITES = "pwrite64,pwritev,pwritev2"
NAMES = "rename,renameat,renameat2,unlink,unlinkat,mkdir"
KINDS = {  # system calls, what can be done to them, up to which of them
    "fdatasync": ("fdatasync", ("error=EIO", "signal=SIGKILL"), 25),
    "directory": ("fsync", ("error=EIO", "signal=SIGKILL"), 12),
    "write": (WRITES, ("error=EIO", "error=ENOSPC", "signal=SIGKILL"), 40),
    "name": (NAMES, ("error=EIO", "error=ENOSPC", "signal=SIGKILL"), 12),
    "open": ("openat", ("error=EMFILE", "error=EIO", "signal=SIGKILL"), 40),
    "size": ("ftruncate,fallocate", ("error=EIO", "error=ENOSPC", "signal=SIGKILL"), 16),
    "lie": (WRITES, ("retval=10", "retval=64", "retval=1"), 30),
}


class Injection(NamedTuple):
    kind: str
    calls: str
    what: str
    when: int


def drawn(chance: random.Random, kind: str) -> Injection:
    calls, what, most = KINDS[kind]
    return Injection(kind, calls, chance.choice(what), chance.randrange(1, most))


def attach(pid: int, injection: Injection, report: str) -> subprocess.Popen[bytes]:
    """Have strace at a process; returns when it is."""
    tracer = subprocess.Popen(
        ["strace", "-q", "-y", "-p", str(pid), "-o", report, "-e", f"trace={injection.calls}",
         "-e", f"inject={injection.calls}:{injection.what}:when={injection.when}"],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            if "TracerPid:\t0\n" not in file.read():
                return tracer
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            raise RuntimeError(f"strace: {tracer.stderr.read().decode()}")
        time.sleep(0.001)
    raise RuntimeError("strace did not attach")


def matters(traced: str) -> bool:
    """Whether a sync failed that somebody relied on: not that of a seal, which was done again."""
    failed = [line for line in traced.splitlines() if "INJECTED" in line]
    paths = [line.partition("<")[2].partition(">")[0] for line in failed]
    return any(not os.path.exists(path.partition(".")[0] + ".seg") for path in paths)


class Traced(Nursery):
    """A nursery in which the kernel, as it seems, is unkind."""

    def live(self, injection: Injection) -> None:
        """One life under one injection, and a look at what it leaves."""
        steps = mixed(self.chance, 14, wide=self.chance.random() < 0.3)
        steps = [step for step in steps if step[0] != "reopen"]
        seed = self.chance.randrange(1 << 30)
        self.new_store()
        go, start = os.pipe()
        report = os.path.join(self.folder, "strace")

        def life(fd: int) -> None:
            os.close(start)
            ctypes.CDLL(None).prctl(SET_TRACER, ANYBODY, 0, 0, 0)
            os.write(fd, b"\0\0\0\0")
            os.read(go, 1)
            attempt(RealDriver(self.root, SYSTEM_FILES, Telling(fd, self.ledger), seed), steps)

        child = Child(life)
        os.close(go)
        try:
            assert os.read(child.pipe, 4) == b"\0\0\0\0"
            tracer = attach(child.pid, injection, report)
            os.write(start, b"g")
            said = child.listen()
            tracer.communicate(timeout=60)
        finally:
            os.close(start)
        with open(report, encoding="utf-8", errors="replace") as file:
            traced = file.read()
        hit = "INJECTED" in traced or "+++ killed by SIGKILL" in traced
        try:
            assert child.killed or child.status == 0, f"the child ended with {child.status}"
            done = replay(self.ledger, said)
            if injection.kind == "fdatasync" and not child.killed and matters(traced):
                assert done["failed"], f"a sync failed, and nobody was told:\n{traced}"
            if injection.kind == "lie" and hit:
                self.look_for_lies()
            else:
                self.look(steps)
        except BaseException as problem:
            problem.add_note(f"{injection}, lot {self.lot}, seed {self.seed}, steps {steps}")
            raise
        self.told["runs"] += 1
        self.told["injected"] += hit
        self.told[injection.kind] += hit

    def look_for_lies(self) -> None:
        """Every record is one that was submitted, and what is missing is said to be."""
        with_findings = 0
        try:
            store = esker.open(self.root, background=False)
        except esker.EskerError:
            self.told["refused to open"] += 1
            return
        with_findings = len(store.recovery.findings)
        for page in self.ledger.pages.values():
            told = 0
            try:
                found: list[Any] = list(store[page.name].read(0)) if page.name in store else []
            except (esker.Corruption, esker.DataGap):
                found, told = [], 1
            known = dict(page.written + page.pending)
            for record in found:
                said = known.get(record.offset, record.value)
                assert record.value == said, f"{page.name}: offset {record.offset} is another"
            missing = len(page.written) - len(found)
            report = esker.verify(self.root) if missing > 0 and not told else None
            silent = missing > 0 and not told and not with_findings and report and report.ok
            assert not silent, f"{page.name}: {missing} acknowledged are gone, and nobody says so"
        store._context.forked = True
        store.close()


def attempt(driver: RealDriver, steps: list[Step]) -> None:
    """Perform steps; one that fails by an error of Esker's is noted, and the next is tried."""
    for _ in range(6):  # strace counts each of the system calls by itself
        try:
            driver.open()
            break
        except esker.EskerError:
            driver.ledger.failed(esker.EskerError())
    for step in [*steps, ("close",)]:
        name = step[1] if len(step) > 1 else ""
        if step[0] != "create" and name and name not in driver.ledger.pages:
            continue
        try:
            driver.run([step])
        except esker.EskerError as problem:
            doubtful = isinstance(problem, esker.Poisoned)
            driver.ledger.failed(esker.Poisoned("in doubt") if doubtful else esker.EskerError())


def main() -> None:
    """Arguments: folder, lot, seed, runs."""
    folder, *numbers = sys.argv[1:]
    lot, seed, runs = map(int, numbers)
    nursery = Traced(folder, lot, seed)
    nursery.calls_of(mixed(random.Random(1)))
    nursery.ledger = Ledger()
    kinds = list(KINDS)
    for n in range(runs):
        nursery.live(drawn(nursery.chance, kinds[n % len(kinds)]))
    nursery.new_store()
    print(json.dumps(nursery.told))


if __name__ == "__main__":
    main()
