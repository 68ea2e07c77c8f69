"""Calls that fail: which, how, and from when on.

A fault counts the calls that its error can happen to (a full disk fails no read), fails the
`at`-th of them, and either that one only or all from there on. `Faults` is what a disk asks before
every call.
"""

from __future__ import annotations

import errno
import os
from typing import Final

CALLS: Final = frozenset(
    {
        "open", "edit", "create", "read", "write", "sync", "truncate", "allocate", "map", "page",
        "rename", "unlink", "make_dir", "remove_dir", "sync_dir", "list", "kind", "lock",
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

HAPPENS_TO: Final[dict[int, frozenset[str]]] = {
    errno.EIO: CALLS,
    errno.ENOSPC: frozenset(
        {"create", "write", "allocate", "page", "rename", "make_dir", "lock"}
    ),
    errno.EROFS: frozenset(
        {"edit", "create", "write", "truncate", "allocate", "page", "rename", "unlink",
         "make_dir", "remove_dir", "lock"}
    ),
    errno.EMFILE: frozenset({"open", "edit", "create", "page", "sync_dir", "list", "lock"}),
}  # fmt: skip
"""Which calls an error can come from; errors that are not listed can come from all of them."""


class Fault:
    """Fails the `at`-th call that it applies to (from 1), once or `forever`.

    `calls` narrows it down to some calls; by default it is every call that can give this error.
    `inside` narrows it down to paths that contain a text.
    """

    def __init__(
        self, number: int, at: int = 1, *, forever: bool = False,
        calls: frozenset[str] | None = None, inside: str = "",
    ) -> None:  # fmt: skip
        self.number = number
        self.at = at
        self.forever = forever
        self.calls = HAPPENS_TO.get(number, CALLS) if calls is None else calls
        self.inside = inside
        self.seen = 0  # calls it could have failed so far
        self.hits = 0  # calls it did fail

    def strikes(self, call: str, path: str) -> bool:
        """Count this call, and say whether it is to fail."""
        if call not in self.calls or self.inside not in path:
            return False
        self.seen += 1
        strikes = self.seen >= self.at if self.forever else self.seen == self.at
        self.hits += strikes
        return strikes

    def error(self) -> OSError:
        return OSError(self.number, os.strerror(self.number))
