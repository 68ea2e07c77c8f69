"""The page of a shard's group cursors: mapped by every process that reads or moves them.

Who makes, takes over or forgets a group does so alone (`alone`: a kernel lock between processes and
the caller's own lock between threads). Who owns a cursor moves it without any lock; the format says
why that is safe. Reading needs none either.

A page is made by its first group. It is never replaced and never cut while a store is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from esker.errors import Corruption, FormatTooNew, GroupsFull
from esker.format import names
from esker.format import offsets as fmt
from esker.format.offsets import Owner, Slot, Term
from esker.storage.files import Files, content_of, sync_file
from esker.storage.shared import SharedPage

ADVICE = (
    "`esker.verify(path)` shows it; `esker.repair(path)` keeps the page as evidence and frees the "
    "slot, after which the group begins anew, from the start that you name."
)


class OffsetsFile(SharedPage):
    """One page."""

    def __init__(
        self, files: Files, folder: str, owner: Owner, guard: AbstractContextManager[Any]
    ) -> None:
        super().__init__(files, folder, names.OFFSETS, names.OFFSETS_LOCK, guard)
        self.seed = owner.seed
        self.flaw = ""  # what was wrong with the header, and is no more
        self._owner = owner

    # ---- the page ------------------------------------------------------------------------

    def map(self, *, writable: bool) -> bool:
        """Have the page mapped. False if there is none, and none may be made."""
        if self.is_mapped(writable):
            return True
        if not self._is_there() and not writable:
            return False
        words = self.files.page(self.path, fmt.PAGE_SIZE, writable=writable)
        wrong = fmt.decode_header(words, self._owner)
        if wrong.startswith("version"):
            raise FormatTooNew(f"{self.path} was written by a later Esker ({wrong})")
        if wrong == "the page of another shard":
            raise Corruption(wrong, path=self.path, advice=ADVICE)
        if writable and wrong:  # each slot vouches for itself: a header can be made anew
            self.flaw = "" if wrong == "no header" else wrong
            for at, word in reversed([*enumerate(fmt.encode_header(self._owner))]):
                words[at] = word
        self._maps[writable] = words
        return True

    def _is_there(self) -> bool:
        """Whether there is a whole page. One that was being made holds nothing."""
        if self.files.kind(self.path) != "file":
            return False
        data = content_of(self.files, self.path, fmt.PAGE_SIZE)
        if len(data) < fmt.PAGE_SIZE and any(data):
            raise Corruption(
                "the page of offsets is cut short", path=self.path, position=len(data),
                advice=ADVICE,
            )  # fmt: skip
        return len(data) == fmt.PAGE_SIZE

    def sync(self, *, name: bool = False) -> None:
        """Make what the page says durable; and that there is one."""
        sync_file(self.files, self.path)
        if name:
            self.files.sync_dir(self.folder)

    def is_left(self) -> bool:
        """Whether the shard is still there; its topic may have been deleted."""
        return bool(self.files.kind(self.folder))

    # ---- looking -------------------------------------------------------------------------

    def slots(self) -> Iterator[Slot | tuple[int, str]]:
        """What is in the page; of a damaged slot its number and what is wrong."""
        if self.words is None:
            return
        for number in range(fmt.SLOTS):
            found = self.at(number)
            if isinstance(found, str):
                yield number, found
            elif found is not None:
                yield found

    def at(self, number: int) -> Slot | str | None:
        """What is in a slot; None if it is free, or why nobody can tell."""
        at = place_of(number)
        words = self.words
        if not words[at + fmt.HEAD[0]] and not words[at + fmt.HEAD[1]]:
            return None
        return fmt.decode_slot(self.seed, number, words[at : at + fmt.SLOT_WORDS])

    def find(self, name: str) -> Slot | None:
        """A group's slot. A damaged one might be its: then nobody knows."""
        damaged: tuple[int, str] | None = None
        for found in self.slots():
            if not isinstance(found, Slot):
                damaged = found
            elif found.name == name:
                return found
        if damaged is not None:
            raise Corruption(
                f"slot {damaged[0]} of the groups' offsets is damaged ({damaged[1]}), and may be "
                f"that of group {name!r}", path=self.path, position=place_of(damaged[0]) * 8,
                reason=damaged[1], advice=ADVICE,
            )  # fmt: skip
        return None

    # ---- changing; all of these are done alone -------------------------------------------

    def make(self, name: str, cursor: int) -> Slot:
        """A slot for a new group, durably: before anybody relies on where it starts."""
        home = fmt.home_of(name)
        for number in (*range(home, fmt.SLOTS), *range(home)):
            if self.at(number) is None:
                break
        else:
            raise GroupsFull(
                f"a topic has room for {fmt.SLOTS} groups, and all of it is taken; "
                "topic.forget_group(name) forgets one that nobody needs"
            )
        at, words = place_of(number), self.words
        for word, value in enumerate(fmt.encode_name(name)):
            words[at + word] = value
        words[at + fmt.UPDATED] = words[at + fmt.ACKS] = 0
        return self.settle(self._begin(number, name, Term(cursor, 1)))

    def settle(self, slot: Slot) -> Slot:
        """Make a slot durable that may not be: who made it may have died before it was."""
        if slot.term.flags & fmt.SETTLED:
            return slot
        self.sync(name=True)
        return self.flag(slot, slot.term.flags | fmt.SETTLED)

    def take(self, slot: Slot, owner: int, cursor: int | None = None) -> Slot:
        """The next term: somebody, or nobody, has the group's cursor from now on.

        What the last owner stores until it is published is not forgotten. With a cursor, that is
        where the group is from now on; it stands in both terms, so that the loss of one cannot
        bring back the other.
        """
        words, at, old = self.words, place_of(slot.number), slot.term
        generation = fmt.next_generation(old.generation)
        base = slot.cursor if cursor is None else cursor
        new = self._begin(slot.number, slot.name, Term(base, generation, owner, old.flags))
        if cursor is not None:
            generation = fmt.next_generation(generation)
            return self._begin(slot.number, slot.name, Term(base, generation, owner, old.flags))
        seed = fmt.cell_seed(self.seed, slot.number, fmt.encode_name(slot.name), old)
        late = fmt.decode_cell(seed, words[at + fmt.CELL + old.generation % 4])
        if late is not None and old.base + late > base:
            own = fmt.cell_seed(self.seed, slot.number, fmt.encode_name(slot.name), new.term)
            cell = fmt.encode_cell(own, old.base + late - base)
            words[at + fmt.CELL + generation % 4] = cell
            return new._replace(cursor=old.base + late)
        return new

    def cut(self, end: int) -> list[Slot]:
        """Put groups that are behind the end of a log back to it, durably; returns where they were.

        Only class `memory` loses records that were acked, and gives their offsets to others.
        """
        if not self.map(writable=False):
            return []
        with self.alone():
            beyond = [each for each in self.slots() if isinstance(each, Slot) and each.cursor > end]
            if beyond:
                self.map(writable=True)
                for slot in beyond:
                    self.take(slot, 0, end)
                self.sync()
        return beyond

    def flag(self, slot: Slot, flags: int) -> Slot:
        """The same term with other flags; who owns it goes on."""
        term = slot.term._replace(flags=flags)
        name = fmt.encode_name(slot.name)
        at = place_of(slot.number) + fmt.HEAD[term.generation % 2]
        self.words[at] = fmt.encode_head(self.seed, slot.number, name, term)
        return slot._replace(term=term)

    def clear(self, number: int) -> None:
        """Free a slot, whatever is in it; the older term goes first."""
        at, words = place_of(number), self.words
        first, second = (words[at + head] for head in fmt.HEAD)
        older = fmt.is_newer(fmt.generation_of(first), fmt.generation_of(second))
        for head in reversed(fmt.HEAD) if older else fmt.HEAD:
            words[at + head] = 0

    def renew(self, slot: Slot) -> bool:
        """Write a term once more that a failed sync has taken back. False if it has a successor."""
        found = self.at(slot.number)
        if isinstance(found, Slot) and found.name == slot.name:
            if found.term.generation == slot.term.generation:
                return True
            if fmt.is_newer(slot.term.generation, found.term.generation):
                self._begin(slot.number, slot.name, slot.term)
                return True
        return False

    def _begin(self, number: int, name: str, term: Term) -> Slot:
        """Write a term: the cell, the base, and last of all the head."""
        words, at, text = self.words, place_of(number), fmt.encode_name(name)
        seed = fmt.cell_seed(self.seed, number, text, term)
        words[at + fmt.CELL + term.generation % 4] = fmt.encode_cell(seed, 0)
        words[at + fmt.BASE[term.generation % 2]] = term.base
        words[at + fmt.HEAD[term.generation % 2]] = fmt.encode_head(self.seed, number, text, term)
        return Slot(number, name, term, term.base, words[at + fmt.UPDATED], words[at + fmt.ACKS])


def place_of(number: int) -> int:
    """The first word of a slot."""
    return fmt.HEADER_WORDS + number * fmt.SLOT_WORDS
