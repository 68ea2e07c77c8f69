"""Doubles of the world outside, for tests of Esker and of programs that use it.

    disk.py       a disk in memory that can lose power or fail at any call
    profiles.py   kinds of disks: strict, ext4-ordered, 4K-sector, btrfs-eio, lying
    cuts.py       power cuts: what one decides, what it may leave, which of that to look at
    inodes.py     what such a disk keeps of a file and of a directory
    faults.py     which calls of a disk fail, how, and from when on
    clock.py      a clock that is moved by hand
    monitor.py    around any file system: whether things become durable in the right order
    looks.py      what the bytes of a file say, for the monitor
    machine.py    a store on such a disk, to be killed and to lose power in one call
    plugin.py     fixtures for pytest

    disk, clock = SimulatedDisk(seed=1), ManualClock()
    store = esker.open("/data", files=disk, clock=clock, background=False)
    ...
    after = disk.crash(seed)        # the same disk after a power cut, one of its legal states
    esker.open("/data", files=after, clock=clock, background=False)     # what is left?

To look at every state that a power cut can leave, around every call that changes the disk:

    def watch(call: Call, when: str) -> None:
        for after in disk.crashes():
            ...                     # open it, and see whether it keeps what you were promised

    disk.watch = watch              # and now run the program

Nothing of Esker imports this room. Everything here is deterministic: the same seeds and the same
calls give the same bytes. Names are imported when they are first used, because pytest imports this
room in every run of everybody who has Esker installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esker.testing.clock import ManualClock
    from esker.testing.cuts import (
        CORNERS,
        FILLINGS,
        KEPT,
        LOST,
        NAMES_ONLY,
        UNNAMED,
        Choice,
        Cut,
        Fate,
        Filling,
    )
    from esker.testing.disk import Call, Crash, SimulatedDisk
    from esker.testing.faults import CALLS, CHANGES, KINDS, Fault
    from esker.testing.machine import Machine
    from esker.testing.monitor import Monitor
    from esker.testing.profiles import (
        BTRFS_EIO,
        EXT4_ORDERED,
        LYING,
        PROFILES,
        SECTORS_4K,
        STRICT,
        Profile,
    )

__all__ = [
    "BTRFS_EIO",
    "CALLS",
    "CHANGES",
    "CORNERS",
    "EXT4_ORDERED",
    "FILLINGS",
    "KEPT",
    "KINDS",
    "LOST",
    "LYING",
    "NAMES_ONLY",
    "PROFILES",
    "SECTORS_4K",
    "STRICT",
    "UNNAMED",
    "Call",
    "Choice",
    "Crash",
    "Cut",
    "Fate",
    "Fault",
    "Filling",
    "Machine",
    "ManualClock",
    "Monitor",
    "Profile",
    "SimulatedDisk",
]

_HOMES = {
    "clock": ("ManualClock",),
    "cuts": (
        "CORNERS", "FILLINGS", "KEPT", "LOST", "NAMES_ONLY", "UNNAMED", "Choice", "Cut", "Fate",
        "Filling",
    ),
    "disk": ("Call", "Crash", "SimulatedDisk"),
    "faults": ("CALLS", "CHANGES", "KINDS", "Fault"),
    "machine": ("Machine",),
    "monitor": ("Monitor",),
    "profiles": (
        "BTRFS_EIO", "EXT4_ORDERED", "LYING", "PROFILES", "SECTORS_4K", "STRICT", "Profile",
    ),
}  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(f"esker.testing.{home}"), name)
                return value
        raise AttributeError(f"module 'esker.testing' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
