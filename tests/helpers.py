"""What many tests need: a clock to move by hand, disks that refuse, processes to kill."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import esker
from esker.storage.files import SYSTEM_FILES, told
from esker.storage.memory import MemoryFiles

PATIENCE = 60.0  # seconds after which a test that waits is taken to hang
SPARK_PROGRAMS = re.compile(  # tests that start programs with a JVM of their own
    r"/test_(cluster|demo|examples|exactly_once|pipeline)\.py::(?!test_two_batch_writes)"
    r"|::test_(a_session_of_spark_connect|classes_that_were_written)"
)


def dealt_with(nodeid: str) -> str:
    """What a test is dealt out with, to one worker: by itself, but for those of Spark and the demo.

    Most of these share a session, and so a JVM; others start programs, and share what lets these
    start sooner. Each of the two lots takes minutes, most of them spent waiting for a JVM.
    """
    if nodeid.startswith(("tests/demo/test_show.py", "tests/demo/test_claims.py")):
        return nodeid.partition("::")[0]  # what one of them makes is looked at by many
    if not nodeid.startswith("tests/spark/"):
        return nodeid
    return "spark programs" if SPARK_PROGRAMS.search(nodeid) else "spark session"


class HandClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now_us: int = 1_800_000_000_000_000) -> None:
        self.us = now_us
        self.seconds = 1_000.0

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.seconds

    def forward(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)
        self.seconds += seconds


class Refusing:
    """A file system that passes calls on until it is told to refuse some of them.

    `refuse("write", errno.ENOSPC)` makes every write fail; with `paths` only those whose path
    contains the text. `calls` lists what was asked, so that a test can say what was not.
    """

    def __init__(self, files: Any = SYSTEM_FILES) -> None:
        self._files = files
        self._refused: dict[str, tuple[int, str]] = {}
        self.calls: list[tuple[str, str]] = []

    def refuse(self, call: str, number: int, paths: str = "") -> None:
        self._refused[call] = (number, paths)

    def allow(self) -> None:
        self._refused.clear()

    def check(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        number, paths = self._refused.get(call, (0, ""))
        if number and paths in path:
            raise told(OSError(number, os.strerror(number)), call, path)

    def open(self, path: str, mode: Any) -> RefusingFile:
        self.check("create" if mode == "create" else "open", path)
        return RefusingFile(self, self._files.open(path, mode))

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        self.check("page", path)
        return self._files.page(path, size, writable=writable)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        self._files.rename(old, new)

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        self._files.unlink(path)

    def make_dir(self, path: str) -> None:
        self.check("make_dir", path)
        self._files.make_dir(path)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        self._files.sync_dir(path)

    def lock(self, path: str, note: str, *, wait: bool = False) -> Any:
        self.check("lock", path)
        return self._files.lock(path, note, wait=wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class RefusingFile:
    """An open file of a `Refusing` file system."""

    def __init__(self, files: Refusing, file: Any) -> None:
        self._files = files
        self._file = file
        self.path = file.path

    def write(self, position: int, parts: Any) -> None:
        self._files.check("write", self.path)
        self._file.write(position, parts)

    def sync(self) -> None:
        self._files.check("sync", self.path)
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self.path)
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._files.check("allocate", self.path)
        self._file.allocate(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


WRITING = ("create", "write", "sync", "rename", "unlink", "make_dir", "truncate", "allocate")


def read_only_disk() -> Refusing:
    """A disk that answers everything that would change it with EROFS."""
    files = Refusing()
    for call in (*WRITING, "lock", "page"):
        files.refuse(call, errno.EROFS)
    return files


class FixedFiles(MemoryFiles):
    """A file system in memory on which nothing is left to chance."""

    def __init__(self, seed: int = 1, boot: bytes = bytes(range(16))) -> None:
        super().__init__()
        self._drawn = seed
        self._boot = boot

    def random(self, size: int) -> bytes:
        drawn = b""
        while len(drawn) < size:  # splitmix64, so that no library's generator is part of the format
            self._drawn = (self._drawn + 0x9E3779B97F4A7C15) & (2**64 - 1)
            z = self._drawn
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
            drawn += (z ^ (z >> 31)).to_bytes(8, "little")
        return drawn[:size]

    def boot_id(self) -> bytes:
        return self._boot

    def pid(self) -> int:
        return 4242

    def dump(self, target: Path, root: str) -> None:
        """Write what lies below `root` to a directory, as a disk would hold it."""
        for name in sorted(self.dirs):
            if f"{name}/".startswith(f"{root}/"):
                (target / name[len(root) :].lstrip("/")).mkdir(parents=True, exist_ok=True)
        contents = {**self.files, **self.pages}
        for name in sorted(contents):
            if name.startswith(f"{root}/"):
                (target / name[len(root) :].lstrip("/")).write_bytes(bytes(contents[name]))


def snapshot(root: Path) -> dict[str, bytes | str]:
    """Everything under a directory: contents of files, targets of links, names of directories."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = path.read_bytes()
    return found


def data_of(root: Path) -> dict[str, bytes | str]:
    """What a store has on disk, without what only labels it: locks and counters."""
    return {
        name: content
        for name, content in snapshot(root).items()
        if not name.endswith(("lock", "counters"))
    }


def only(root: Path, pattern: str) -> Path:
    """The one file below a directory that matches."""
    (found,) = root.rglob(pattern)
    return found


FORTY = [b"record %d" % n for n in range(40)]


def forty(root: Path, **options: Any) -> list[bytes]:
    """The values of the topic that the fixture `path` filled with forty records."""
    with esker.open(root, mode="r", **options) as store:
        return [record.value for record in store["t"].read()]


def abandon(store: esker.Store) -> None:
    """Forget a store without threads whose process is gone, so that nothing tries to close it.

    It is taken apart. The parts of a store hold each other, and thousands of stores that wait for
    the garbage collector cost whoever opens them a good part of his time.
    """
    context = store._context
    context.forked = True  # such a handle closes without touching the disk
    store.close()
    parts = [store, context, context.committer, context.background, *context.shards]
    for topic in store._topics.values():
        parts += [topic, *topic._followers]
    for part in parts:
        vars(part).clear()


def wait_until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Look again and again until the condition holds, and return what it gave."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.001)
    raise AssertionError(f"{what} did not come true within {PATIENCE:.0f} s")


class Threads:
    """Threads whose exceptions fail the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.problems: list[BaseException] = []

    def start(self, work: Callable[..., Any], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)
            except BaseException as problem:
                self.problems.append(problem)

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self.problems:
            raise self.problems[0]


class Child:
    """A Python process that talks to the test by lines."""

    def __init__(self, code: str, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that it prints; its error when it prints none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, error = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"the child ended ({self.process.returncode}): {error}")
        return line.rstrip("\n")

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.line()  # fails, and says what it died of
            raise

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> str:
        """Close its input, wait for it to end well, return the rest that it printed."""
        out, error = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, error
        return out


@contextmanager
def child(code: str, *args: object) -> Iterator[Child]:
    """A child that is gone when the block ends, whatever happened in it."""
    started = Child(code, *args)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()


def raised(call: Callable[[], Any]) -> BaseException | None:
    """The exception that a call raises, None if it raises none."""
    try:
        call()
    except Exception as problem:
        return problem
    return None


def lasting_port() -> int:
    """A port for a server that comes and goes: none that the kernel gives to whoever connects.

    Such a one might be taken while its server is dead, by the very client that looks for it.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = random.randrange(max(1024, lowest - 12_000), lowest)
        with socket.socket() as made, suppress(OSError):
            made.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
