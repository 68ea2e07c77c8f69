"""A shard's state page on disk: two slots, written in turn, each synced."""

from __future__ import annotations

from functools import lru_cache

from esker.errors import FormatTooNew
from esker.format import names
from esker.format import state as fmt
from esker.format.state import State
from esker.storage.files import File, Files, join, parent


@lru_cache(1024)
def _slot(data: bytes) -> State | str:
    """`decode_slot`, remembered: opening looks at the same slots a few times."""
    return fmt.decode_slot(data)


class StateFile:
    """Reads and replaces the state of one shard."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = join(folder, names.STATE)
        self._file: File | None = None
        self._turn = 0
        self._named = False  # whether the name of the page is known to be durable
        self.state: State | None = None
        self.damage = ""

    def load(self) -> State | None:
        """The newest whole slot. `damage` says what was wrong with others, if anything."""
        if not self._files.kind(self._path):
            return None
        file = self._files.open(self._path, "r")
        try:
            page = file.read(0, fmt.FILE_SIZE)
        finally:
            file.close()
        slots = [_slot(page[at : at + fmt.SLOT_SIZE]) for at in fmt.SLOT_POSITIONS]
        newer = [slot for slot in slots if isinstance(slot, str) and slot.startswith("version")]
        if newer:
            raise FormatTooNew(f"{self._path} was written by a later Esker ({newer[0]})")
        self.damage = "; ".join(slot for slot in slots if isinstance(slot, str) and slot)
        whole = [(slot.generation, turn, slot) for turn, slot in enumerate(slots)
                 if isinstance(slot, State)]  # fmt: skip
        if whole:
            _, turn, self.state = max(whole)
            self._turn = 1 - turn
            self._named = self.state.generation > 1
        return self.state

    def store(self, state: State) -> State:
        """Make `state` the shard's state, durably, with the next generation number.

        The name is synced behind the first state. Who stored that may have died between; so it is
        synced again before the second one is written, which proves that it was.
        """
        generation = self.state.generation + 1 if self.state is not None else 1
        state = state._replace(generation=generation)
        if self._file is None:
            fresh = not self._files.kind(self._path)
            self._file = self._files.open(self._path, "create" if fresh else "rw")
        size = self._file.size()
        if size < fmt.FILE_SIZE:
            self._file.write(size, [bytes(fmt.FILE_SIZE - size)])
        if self.state is not None:
            self._sync_name()
        self._file.write(fmt.SLOT_POSITIONS[self._turn], [fmt.encode_slot(state)])
        self._file.sync()
        self._sync_name()
        if self.state is None and self.damage:  # both slots were bad, and one of them still is
            other = fmt.SLOT_POSITIONS[1 - self._turn]
            self._file.write(other, [bytes(fmt.SLOT_SIZE)])
            self._file.sync()
        self.state, self.damage = state, ""
        self._turn = 1 - self._turn
        return state

    def _sync_name(self) -> None:
        if not self._named:
            self._files.sync_dir(parent(self._path))
            self._named = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
