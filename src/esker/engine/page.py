"""The state page of a shard, as its writer keeps it: what was promised before it was needed.

Whoever answers before the disk has synced must not give an offset out twice, also after a power
cut that takes the records. So the page names a *ceiling*: offsets are set aside in blocks, durably,
and only then given out. After a power cut the log goes on at the ceiling, for a page says whether
it was closed in order. It also says where the shard begins, what was lost below that, and which
deletions count (format/state.py has the bytes).

    Rule 1  The ceiling is durable before the first offset that needs it.
    Rule 2  What is in the page counts, and memory follows it: whoever moves the beginning or adds
            a deletion holds `lock` until it is known in both, or the background, which moves the
            ceiling beside the shard's lock, would write the page back as it was.
    Rule 3  The page is written by who writes the shard, and by nobody after `close`: it may belong
            to another process by then, and a block that was asked for before comes too late.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from esker.format import state as fmt
from esker.format.state import Losses, State
from esker.options import RESERVE_OFFSETS, RESERVE_OFFSETS_MAX
from esker.storage.state import StateFile

if TYPE_CHECKING:
    from esker.engine.shard import Shard

_NEVER = 1 << 62  # no offset is as large


class Page:
    """The ceiling, and the file it is in."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.lock = threading.Lock()  # guards everything below; may be taken inside of the shard's
        self._file = StateFile(shard.context.files, shard.folder)
        self._open = False
        self.ceiling = 0  # no offset at or above it may be given out
        self.enough = 0  # the writer asks again when it comes past this
        self._block = RESERVE_OFFSETS
        self._moved_at = -100.0

    @property
    def state(self) -> State | None:
        """What the page says, as far as we have read or written it."""
        return self._file.state

    def load(self) -> State | None:
        """What it says on the disk. Nothing may be stored yet."""
        self._file = StateFile(self._shard.context.files, self._shard.folder)
        return self._file.load()

    def open(self, end: int) -> None:
        """The shard is ours, goes on at this offset, and this page says so from now on."""
        self.ceiling = max(end, self.state.ceiling if self.state is not None else 0)
        self.enough = 0
        self._open = True

    # -- the ceiling --

    def need(self, end: int) -> None:
        """Offsets below `end` are about to be given out. Assumes the shard's lock.

        Half-way through a block the background is asked for the next one, so that a writer hardly
        ever waits for it.
        """
        shard = self._shard
        if shard.durability not in ("disk", "ephemeral"):
            self.enough = _NEVER
        elif end > self.ceiling:
            self.reserve(end)
        else:
            self.enough = self.ceiling
            shard.context.background.reserve_soon(shard)

    def reserve(self, end: int) -> None:
        """Set a block aside behind `end`. Called by the writer that needs it or by the background.

        About a second's worth at the pace of the writer: fewer would sync too often, more would
        make the gap after a power cut look larger than it is.
        """
        with self.lock:
            if not self._open or end + (self._block >> 1) <= self.ceiling:
                return
            now = self._shard.context.clock.monotonic()
            if now - self._moved_at < 1.0:
                self._block = min(self._block * 8, RESERVE_OFFSETS_MAX)
            elif now - self._moved_at > 10.0:
                self._block = max(self._block >> 2, RESERVE_OFFSETS)
            self._moved_at = now
            ceiling = end + self._block
            self.store(ceiling=ceiling)
            self.enough = ceiling - (self._block >> 1)

    def cover(self, end: int) -> None:
        """The ceiling is at `end` at least: what takes these offsets is durable, and all of it."""
        if self._shard.durability == "disk" and end > self.ceiling:
            with self.lock:
                self.store(ceiling=end)
                self.enough = 0

    # -- the page --

    def store(
        self, *, clean: bool = False, ceiling: int | None = None,
        begin: tuple[int, Losses] | None = None, marked: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Write how the shard is, but for what is given here. Assumes the lock."""
        shard, log = self._shard, self._shard.active
        ceiling = self.ceiling if ceiling is None else ceiling
        earliest, losses = begin or (shard.earliest, shard.losses)
        marks, end = marked or (shard._marks.number, shard._marks.end)
        self._file.store(
            State(
                flags=fmt.CLEAN if clean else 0, generation=0, topic=shard.entry.id,
                shard=shard.number, epoch=shard.entry.epoch, ceiling=ceiling,
                segment=log.header.segment if log is not None else 0,
                end_position=log.end if log is not None else 0,
                end_offset=shard.next if clean else shard.durable,
                earliest=earliest, boot=shard.context.boot, store=shard.context.store,
                losses=losses, marks=marks, marks_end=end,
            )
        )  # fmt: skip
        self.ceiling = ceiling

    def say_again(self) -> None:
        """Write it as it is, into the other slot too; nothing once it was settled."""
        with self.lock:
            if self._open:
                self.store()

    def settle(self) -> None:
        """All is written and in order: say so, as the last thing that is said."""
        with self.lock:
            self.store(clean=True, ceiling=self._shard.next)
            self._open = False

    def close(self) -> None:
        """Let go of it."""
        with self.lock:
            self._open = False
            self._file.close()
