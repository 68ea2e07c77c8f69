"""The append buffer: records that have an offset and are not yet written.

A buffer is a list that knows the offset of its first record. One thread, its owner, may append to
it without a lock; that is what makes a lone `append` cheap. Everybody else, and whoever drains it,
holds the shard's lock and *replaces* the buffer. The protocol, which needs only that list appends
and attribute stores are atomic (they are, with or without a GIL):

    owner, no lock                          drainer, holding the lock
    1  buffer = topic.buffer                a  topic.buffer = CLOSED
    2  buffer.append(value)                 b  taken = len(buffer); use buffer[:taken]
    3  if topic.buffer is buffer: done      c  buffer.taken = taken
       else: take the lock, and look

If 2 happens after b, then 3 happens after a, so the owner notices, takes the lock, and finds its
record at an index >= taken: it was not drained, and is appended again, to the new buffer. No record
is lost, none is written twice, and the offset that is returned is the one it gets.
"""

from __future__ import annotations

from typing import Final

from esker.format.columns import Extra


class Buffer(list[bytes]):
    """Values, in order; `extras` holds what some of them carry besides."""

    __slots__ = ("base", "bytes", "extras", "limit", "opened", "owner", "taken")

    def __init__(self, base: int, owner: int, limit: int) -> None:
        super().__init__()
        self.base = base  # offset of the first record
        self.owner = owner  # the thread that may append without the lock; 0 for none
        self.limit = limit  # how many records fit
        self.taken = -1  # how many the drainer took; -1 while in use
        self.bytes = 0  # of the records too large to be left uncounted
        self.extras: dict[int, Extra] = {}
        self.opened = 0.0


CLOSED: Final = Buffer(0, 0, 0)
"""Stands where no buffer is open: belongs to nobody and takes nothing."""
