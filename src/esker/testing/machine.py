"""A machine that can be switched off: a store on a simulated disk, and what is left of it.

    machine = Machine()
    store = machine.open()
    store["orders"].append(b"tea", wait=True)
    store = machine.kill()      # the process died: all that was written is there
    store = machine.crash()     # the power went: what was not synced may be gone
    for store in machine.crashes():
        ...                     # the same cut, each way that it can end

The engine is the real one; only the disk and the clock are not. It runs without threads: what they
would do happens in `store.tick()`, and time passes by `machine.clock.forward(seconds)`. The same
seed and the same calls leave the same bytes, so a test that fails once fails again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from esker.engine.store import Store, open_store
from esker.testing.clock import ManualClock
from esker.testing.disk import Crash, SimulatedDisk
from esker.testing.profiles import STRICT, Profile

PLACE = "/data"


class Machine:
    """A disk in memory, a clock moved by hand, and one store that runs on them."""

    def __init__(
        self, seed: int = 0, profile: Profile = STRICT, clock: ManualClock | None = None
    ) -> None:
        self.disk = SimulatedDisk(seed, profile)
        """What is in the machine now; another one after each `kill` and `crash`."""
        self.clock = clock or ManualClock()
        self._cuts = 0
        self._options: dict[str, Any] = {}
        self._store: Store | None = None

    def __repr__(self) -> str:
        state = "on" if self._store is not None else "off"
        return f"<esker machine, {state}, {self.disk.profile.name} disk, seed {self.disk.seed}>"

    def open(self, **options: Any) -> Store:
        """The store, with options as `esker.open` takes them; one that was open is closed first.

        It is opened with the same options again after a `kill` or `crash`.
        """
        self.close()
        self._options = options
        return self._start()

    def kill(self) -> Store:
        """End the process, as `kill -9` does, and open the store again.

        What was buffered is gone, what was written is there. The store from before is dead: its
        calls raise `StoreClosed`.
        """
        self._off()
        self.disk = self.disk.kill()
        return self._start()

    def crash(self, seed: int | None = None) -> Store:
        """Cut the power, and open the store again after the restart.

        What was synced is there. Of all else each sector, size and name is there or not, as the
        seed has it; without one, each cut gets the next.
        """
        if seed is None:
            seed, self._cuts = self._cuts, self._cuts + 1
        self._off()
        self.disk = self.disk.crash(seed)
        return self._start()

    def crashes(self, *, most: int = 64, **how: Any) -> Iterator[Store]:
        """The store after the power was cut now, once for each way that this can end.

        At most about `most` of them, the telling ones first; see `SimulatedDisk.crashes`. After the
        last the machine is off; `open` starts it as it was left by that one.
        """
        self._off()
        for after in self.disk.crashes(most=most, **how):
            self.disk = after
            yield self._start()
            self._off()

    def close(self) -> None:
        """Close the store in order, if it is open."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _start(self) -> Store:
        options = {"background": False, **self._options}
        self._store = open_store(PLACE, files=self.disk, clock=self.clock, **options)
        return self._store

    def _off(self) -> None:
        """From here on nothing that the dying program does reaches the disk."""
        store, self._store = self._store, None
        if store is None:
            return
        self.disk.stopped = True
        with suppress(Crash):
            store._let_go()
