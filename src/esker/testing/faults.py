"""Calls that fail: which, how, and from when on.

    disk.fail(Fault(errno.EIO, at=3))                     the third call fails, the others do not
    disk.fail(Fault("KeyboardInterrupt", forever=True))   from the first call on nothing works

A fault counts the calls that its error can happen to (a full disk fails no read), fails the
`at`-th of them, and either that one only or all from there on. How a call can fail is the table
`KINDS`. Errors of the operating system come out as the real door would tell them; what is not one
(no memory left, a key pressed) comes out as it is, from before the call had an effect or, in the
kinds called late, from after it.

A write that fails has left a part of its bytes, none of them or all, by the seed of the disk: the
real door goes on after a short write, and what fails is the rest. In the same way a read that ends
before the file does is no short answer, but an error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

CALLS: Final = frozenset(
    {
        "open", "edit", "create", "read", "write", "sync", "truncate", "allocate", "map", "page",
        "rename", "unlink", "make_dir", "remove_dir", "sync_dir", "list", "kind", "size", "lock",
    }
)  # fmt: skip
"""Every call that the operating system may refuse; `edit` is opening to write."""

CHANGES: Final = frozenset(
    {
        "create", "write", "sync", "truncate", "allocate", "page", "rename", "unlink", "make_dir",
        "remove_dir", "sync_dir", "lock",
    }
)  # fmt: skip
"""Those after which a power cut may leave something else than before."""

_ROOM: Final = frozenset({"create", "write", "allocate", "page", "rename", "make_dir", "lock"})
_NAMES: Final = frozenset(
    {
        "open", "edit", "create", "page", "rename", "unlink", "make_dir", "remove_dir", "sync_dir",
        "list", "lock",
    }
)  # fmt: skip
HAPPENS_TO: Final[dict[int, frozenset[str]]] = {
    errno.EIO: CALLS,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: _ROOM | {"edit", "truncate", "unlink", "remove_dir"},
    errno.EMFILE: frozenset({"open", "edit", "create", "page", "sync_dir", "list", "lock"}),
    errno.EINTR: CALLS - {"kind", "list", "size", "rename", "unlink", "make_dir", "remove_dir"},
    errno.ESTALE: CALLS,
    errno.EACCES: _NAMES | {"kind"},
}
"""Which calls an error can come from; errors that are not listed can come from all of them."""

Arrives = Literal["any", "some", "none"]


class Kind(NamedTuple):
    """A way to fail."""

    error: Callable[[], BaseException]
    calls: frozenset[str]  # that can fail in this way
    late: bool = False  # the call does its work, and then raises
    arrives: Arrives = "any"  # of a write that fails: any part of it, a true part, or nothing


def _told(number: int) -> Kind:
    return Kind(lambda: OSError(number, os.strerror(number)), HAPPENS_TO.get(number, CALLS))


_LATE: Final = CHANGES | {"open", "edit"}  # the others leave nothing behind, early or late
_WRITE: Final = frozenset({"write"})
KINDS: Final[dict[str, Kind]] = {
    **{errno.errorcode[number]: _told(number) for number in HAPPENS_TO},
    "short write": Kind(_told(errno.ENOSPC).error, _WRITE, arrives="some"),
    "no write": Kind(lambda: OSError(errno.EIO, "the disk took no bytes"), _WRITE, arrives="none"),
    "short read": Kind(
        lambda: OSError(errno.EIO, "the read ended before the file"), frozenset({"read"})
    ),
    "MemoryError": Kind(MemoryError, CALLS),
    "late MemoryError": Kind(MemoryError, _LATE, late=True),
    "KeyboardInterrupt": Kind(KeyboardInterrupt, CALLS),
    "late KeyboardInterrupt": Kind(KeyboardInterrupt, _LATE, late=True),
}
"""Every way to fail, by name."""


class Fault:
    """Fails the `at`-th call that it applies to (from 1), once or `forever`.

    `kind` is an error number or a name in KINDS. `calls` narrows it down to some calls; by default
    it is every call that can fail in this way. `inside` narrows it down to paths that contain a
    text.
    """

    def __init__(
        self, kind: int | str, at: int = 1, *, forever: bool = False,
        calls: frozenset[str] | None = None, inside: str = "",
    ) -> None:  # fmt: skip
        self.number = kind  # as it was given
        self.kind = _told(kind) if isinstance(kind, int) else KINDS[kind]
        self.at = at
        self.forever = forever
        self.calls = self.kind.calls if calls is None else calls
        self.inside = inside
        self.seen = 0  # calls it could have failed so far
        self.hits = 0  # calls it did fail
        self.struck = ("", "")  # the first of these, and its path

    def strikes(self, call: str, path: str) -> bool:
        """Count this call, and say whether it is to fail."""
        if call not in self.calls or self.inside not in path:
            return False
        self.seen += 1
        strikes = self.seen >= self.at if self.forever else self.seen == self.at
        if strikes and not self.hits:
            self.struck = (call, path)
        self.hits += strikes
        return strikes
