"""The page of a topic's group members, and the locks that tell who of them lives.

A member holds the lock of its slot for life: the kernel drops it when its process dies, so a dead
member is seen at once, by whoever looks. Coming, going and clearing away the dead is done alone
(see offsets.py) and moves the generation, which all members look at before they go on reading.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from esker.errors import GroupsFull, StorageError
from esker.format import members as fmt
from esker.format import names
from esker.format.members import Member
from esker.storage.files import Files, Holder, Lock, join
from esker.storage.shared import SharedPage


class MembersFile(SharedPage):
    """The members of all groups of a topic."""

    def __init__(self, files: Files, folder: str, guard: AbstractContextManager[Any]) -> None:
        super().__init__(files, folder, names.MEMBERS, names.MEMBERS_LOCK, guard)

    def map(self, *, writable: bool) -> bool:
        """Have the page mapped. False if there is none, or only one of another boot."""
        if self.is_mapped(writable):
            return True
        boot = self.files.boot_id()
        if not writable:
            try:
                words = self.files.page(self.path, fmt.PAGE_SIZE, writable=False)
            except StorageError:
                return False
            if not fmt.is_current(words, boot):
                return False
            self._maps[False] = words
            return True
        self.files.make_dir(join(self.folder, names.MEMBER_LOCKS))
        with self.alone():
            words = self.files.page(self.path, fmt.PAGE_SIZE, writable=True)
            if not fmt.is_current(words, boot):
                for at in range(fmt.HEADER_WORDS, len(words)):
                    words[at] = 0
                for at, word in enumerate(fmt.encode_header(boot, 1)):
                    words[at] = word
            self._maps[True] = words
        return True

    @property
    def generation(self) -> int:
        """Moves whenever somebody comes or goes."""
        return int(self.words[fmt.GENERATION])

    def moved(self) -> None:
        """Somebody came or went; everybody looks again."""
        self.words[fmt.GENERATION] = (self.words[fmt.GENERATION] + 1) & fmt.MASK

    def at(self, slot: int) -> Member | None:
        """The member in a slot."""
        place = _place(slot)
        return fmt.decode_member(slot, self.words[place : place + fmt.SLOT_WORDS])

    def of(self, group: str) -> list[Member]:
        """The members of a group, in the order of their slots."""
        found = (self.at(s) for s in range(fmt.SLOTS) if self.words[_place(s) + fmt.TOKEN])
        return [member for member in found if member is not None and member.group == group]

    def lives(self, slot: int) -> bool:
        """Whether the process of the member in a slot lives, or is about to begin."""
        return self.files.holder(self._lock(slot)) is not None

    def join(self, member: Member, note: str) -> tuple[Member, Lock]:
        """Take the first free slot. Done alone."""
        for slot in range(fmt.SLOTS):
            if self.words[_place(slot) + fmt.TOKEN] and self.lives(slot):
                continue
            lock = self.files.lock(self._lock(slot), note)
            if isinstance(lock, Holder):
                continue  # of one that was thought dead, and does not know it yet
            made = member._replace(slot=slot)
            place = _place(slot)
            self.words[place + fmt.TOKEN] = 0
            words = fmt.encode_member(made)
            for at in (*range(fmt.TOKEN), *range(fmt.TOKEN + 1, fmt.SLOT_WORDS), fmt.TOKEN):
                self.words[place + at] = words[at]
            self.moved()
            return made, lock
        raise GroupsFull(
            f"a topic has room for {fmt.SLOTS} members of groups, and all of them live; close some"
        )

    def leave(self, member: Member) -> None:
        """Free a slot, if it is still that member's. Done alone."""
        place = _place(member.slot) + fmt.TOKEN
        if self.words[place] == member.token:
            self.words[place] = 0
            self.moved()

    def seen(self, member: Member, now_us: int) -> bool:
        """Say that a member is at work. False if its slot is not its own any more."""
        place = _place(member.slot)
        if self.words[place + fmt.TOKEN] != member.token:
            return False
        self.words[place + fmt.SEEN] = now_us
        return True

    def _lock(self, slot: int) -> str:
        return join(self.folder, names.MEMBER_LOCKS, names.member(slot))


def _place(slot: int) -> int:
    return fmt.HEADER_WORDS + slot * fmt.SLOT_WORDS
