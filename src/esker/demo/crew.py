"""The processes of the demo, as their parent has them.

Each is a session of its own, so that Ctrl-C reaches the parent alone, which then ends them in its
own way; and so that a kill takes whatever a child has started itself, such as a JVM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Final

from esker.clock import SYSTEM_CLOCK
from esker.demo import DemoFailed

PATIENCE: Final = 60.0  # seconds for a child to end in order
_SAID: Final = 2_000  # characters of what it said on stderr


class Child:
    """One process."""

    def __init__(self, name: str, module: str, *arguments: object) -> None:
        self.name = name
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"esker.demo.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9, and whatever it has started with it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-self.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def tell_to_end(self) -> None:
        """Have it end in order; `end` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, patience: float = PATIENCE) -> None:
        """Have it end in order. One that cannot is an error."""
        self.tell_to_end()
        self.wait(patience)

    def wait(self, patience: float = PATIENCE) -> None:
        """Until it has ended by itself, and well."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{self.name} did not end within {patience:.0f} s") from None
        if code:
            raise self.failure()
        self._close()

    def failure(self) -> DemoFailed:
        """What to say of one that has ended and should not have."""
        self._said.seek(0)
        said = self._said.read().decode("utf-8", "replace").strip()[-_SAID:]
        return DemoFailed(
            f"{self.name} ended by itself with {self._process.returncode}"
            + (f"; it said:\n{said}" if said else ", and said nothing")
        )

    def _close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._said.close()


class Crew:
    """All of them. At the end of the block none is left, whatever has happened in it."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, name: str, module: str, *arguments: object) -> Child:
        child = Child(name, module, *arguments)
        self._children.append(child)
        return child

    def kill(self, child: Child) -> float:
        """kill -9. Returns when that was."""
        at = SYSTEM_CLOCK.monotonic()
        child.kill()
        self._children.remove(child)
        return at

    def end(self, *children: Child) -> None:
        """End these in order, side by side."""
        for child in children:
            child.tell_to_end()
        for child in children:
            child.wait()
            self._children.remove(child)

    def end_all(self) -> None:
        """End whoever is left, in order."""
        self.end(*list(self._children))

    def wait(self, child: Child) -> None:
        """Until it has ended by itself."""
        child.wait()
        self._children.remove(child)

    def check(self, *but: Child) -> None:
        """Raise if one has ended that should not have."""
        for child in self._children:
            if child not in but and not child.running:
                raise child.failure()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with deaf():
            for child in self._children:
                child.kill()
            self._children.clear()


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """A second Ctrl-C does not disturb who cleans up after the first."""
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread, which alone has signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
