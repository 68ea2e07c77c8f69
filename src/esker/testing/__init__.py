"""Doubles of the world outside, for tests of Esker and of programs that use it.

    disk.py     a disk in memory that can lose power or fail at any call
    inodes.py   what such a disk keeps of a file and of a directory, and what a power cut leaves
    faults.py   which calls of a disk fail, how, and from when on
    clock.py    a clock that is moved by hand

    disk, clock = SimulatedDisk(seed=1), ManualClock()
    store = esker.open("/data", files=disk, clock=clock, background=False)
    ...
    after = disk.crash(seed=2)      # the same disk after a power cut, one of its legal states

Nothing of Esker imports this room. Everything here is deterministic: the same seeds and the same
calls give the same bytes.
"""

from __future__ import annotations

from esker.testing.clock import ManualClock
from esker.testing.disk import Call, Crash, SimulatedDisk
from esker.testing.faults import Fault
from esker.testing.inodes import KEPT, LOST, NAMES_ONLY, UNNAMED, Fate

__all__ = [
    "KEPT",
    "LOST",
    "NAMES_ONLY",
    "UNNAMED",
    "Call",
    "Crash",
    "Fate",
    "Fault",
    "ManualClock",
    "SimulatedDisk",
]
