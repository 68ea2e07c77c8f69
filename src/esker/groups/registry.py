"""What one store keeps open for its groups: the pages, their locks, and who is to be synced."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from esker.engine.context import LOG, Context
from esker.engine.topic import Topic
from esker.errors import EskerError, TopicNotFound
from esker.format.offsets import Owner
from esker.storage.files import parent
from esker.storage.members import MembersFile
from esker.storage.offsets import OffsetsFile

if TYPE_CHECKING:
    from esker.groups.group import Group


class Groups:
    """The groups of one store, as a guest of it (see engine/guests.py)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()  # guards the four below
        self._pages: dict[str, OffsetsFile] = {}
        self._members: dict[str, MembersFile] = {}
        self._open: dict[Group, None] = {}
        self.dirty: dict[OffsetsFile, None] = {}

    def __repr__(self) -> str:
        return f"the groups of {self._context.root}"

    @classmethod
    def of(cls, context: Context) -> Groups:
        """Those of a store; made when they are first needed."""
        for known in context.guests:
            if isinstance(known, cls):
                return known
        made = cls(context)
        context.guests.append(made)
        return made

    def page(self, topic: Topic, number: int) -> OffsetsFile:
        """The cursors of a shard. Class ephemeral has its own, in memory."""
        shard = topic._shards[number]
        with self._lock:
            page = self._pages.get(shard.folder)
            if page is None or page.files is not shard.files:
                owner = Owner(self._context.store, shard.entry.id, number)
                page = OffsetsFile(shard.files, shard.folder, owner, threading.Lock())
                self._pages[shard.folder] = page
            return page

    def members(self, topic: Topic) -> MembersFile:
        """The members of a topic's groups."""
        shard = topic._shards[0]
        folder = parent(shard.folder)
        with self._lock:
            page = self._members.get(folder)
            if page is None or page.files is not shard.files:
                page = MembersFile(shard.files, folder, threading.Lock())
                self._members[folder] = page
            return page

    def came(self, group: Group) -> None:
        with self._lock:
            self._open[group] = None
        self._context.background.tend_soon()

    def went(self, group: Group) -> None:
        with self._lock:
            self._open.pop(group, None)

    def touched(self, page: OffsetsFile) -> None:
        """A cursor was moved: its page is to be synced."""
        self.dirty[page] = None

    def sync(self, pages: list[OffsetsFile] | None = None) -> None:
        """Sync what was touched; of these pages, or of all.

        Owners store their cursors once more: a sync that failed may have dropped them, and the next
        one would say that all is well.
        """
        with self._lock:
            wanted = [page for page in self.dirty if pages is None or page in pages]
            groups = list(self._open)
        for page in wanted:
            self.dirty.pop(page, None)
            if not page.is_left():
                continue  # its topic was deleted
            try:
                for group in groups:
                    group._store_again(page)
                page.sync()
            except BaseException:
                self.dirty[page] = None
                raise

    # ---- a guest of the store ------------------------------------------------------------

    def tend(self) -> None:
        """Move cursors up to what is durable by now, and sync what was moved."""
        for group in list(self._open):
            try:
                group._flush()
            except TopicNotFound:  # deleted, and the group with it
                self.went(group)
                group._let_go()
        self.sync()

    def close(self) -> None:
        problems: list[EskerError] = []
        for group in list(self._open):
            try:
                group.close()
            except EskerError as problem:
                problems.append(problem)
        try:
            self.sync()
        except EskerError as problem:
            problems.append(problem)
        self.let_go()
        for first in problems:
            raise first

    def let_go(self) -> None:
        for group in list(self._open):
            group._let_go()
        self._open.clear()
        for page in self._pages.values():
            page.close()
        for members in self._members.values():
            members.close()
        self._pages.clear()
        self._members.clear()
        self._lock = threading.RLock()


def tell(text: str, *about: object) -> None:
    """Something that nobody asked for, and that is not to pass in silence."""
    LOG.warning(text, *about)
