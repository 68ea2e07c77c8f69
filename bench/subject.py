"""Esker and a bare file, in the dress of the peers, so that one loop can drive all columns.

`Esker` runs with default options: class `disk`, segments of 64 MiB, its background threads on. So
it also syncs five times a second beside what is timed, which no peer does. When durability is asked
for, its topic is of class `fsync`.

`Raw` is the floor under every column: the values alone in one file, without frames, checksums or
an index. Nothing that keeps its promises can be much faster than it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import esker
from bench.peers import PEERS, Peer, Tally, commits, installed, tally

VALUE_BYTES = 110
TOPIC = "log"
_PIECE_BYTES = 1 << 20


class Esker:
    """One topic of one store."""

    name: ClassVar[str] = "esker"
    library: ClassVar[str] = "esker"
    configuration: ClassVar[str] = "defaults: class disk (durable: fsync), segments of 64 MiB"

    def __init__(self, directory: Path, durable: bool = False, **options: Any) -> None:
        self.store = esker.open(directory)
        if TOPIC not in self.store:
            self.store.create(TOPIC, durability="fsync" if durable else "disk", **options)
        self.topic = self.store[TOPIC]

    def append_one_by_one(self, values: Sequence[bytes]) -> None:
        append = self.topic.append
        for commit in commits(values):
            for value in commit:
                append(value)
            self.topic.flush()

    def append_committed(self, values: Iterable[bytes]) -> None:
        append = self.topic.append
        for value in values:
            append(value, wait=True)

    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None:
        append_many = self.topic.append_many
        for batch in batches:
            append_many(batch)

    def append_arrow(self, batches: Iterable[Any]) -> None:
        append_arrow = self.topic.append_arrow
        for batch in batches:
            append_arrow(batch)

    def settle(self) -> None:
        self.store.sync()

    def read_all(self) -> Tally:
        """To Python bytes: the same work per value that a peer's tally does."""
        records = size_bytes = 0
        for batch in self.topic.batches("earliest"):
            values = batch.values
            records += len(values)
            size_bytes += sum(map(len, values))
        return Tally(records, size_bytes)

    def read_arrow(self) -> Tally:
        """To Arrow: every batch with all its columns, every checksum compared."""
        records = size_bytes = 0
        for batch in self.topic.batches("earliest"):
            records += batch.arrow.num_rows
            size_bytes += batch.nbytes
        return Tally(records, size_bytes)

    def read_records(self) -> Tally:
        """To Record objects, one at a time, as a plain loop gets them."""
        records = size_bytes = 0
        for record in self.topic.read("earliest"):
            records += 1
            size_bytes += len(record.value)
        return Tally(records, size_bytes)

    def random_lookup(self, offsets: Iterable[int]) -> Tally:
        topic = self.topic
        return tally(topic[offset].value for offset in offsets)

    def close(self) -> None:
        self.store.close()


class Raw:
    """A bare file. Lookup by number works because all values have one size."""

    name: ClassVar[str] = "raw"
    library: ClassVar[str] = "os"
    configuration: ClassVar[str] = "pwrite and pread on one file (durable: fdatasync)"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(directory / "log.raw", os.O_RDWR | os.O_CREAT, 0o600)
        self._end = os.fstat(self._fd).st_size
        self._durable = durable

    def write(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            self._end += os.pwrite(self._fd, chunk, self._end)

    def append_one_by_one(self, values: Sequence[bytes]) -> None:
        self.write(map(b"".join, commits(values)))

    def append_committed(self, values: Iterable[bytes]) -> None:
        for value in values:
            self._end += os.pwrite(self._fd, value, self._end)
            if self._durable:
                os.fdatasync(self._fd)

    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None:
        self.write(map(b"".join, batches))

    def settle(self) -> None:
        """Nothing to do: the page cache has it."""

    def read_all(self) -> Tally:
        for position in range(0, self._end, _PIECE_BYTES):
            os.pread(self._fd, _PIECE_BYTES, position)
        return Tally(self._end // VALUE_BYTES, self._end)

    def random_lookup(self, offsets: Iterable[int]) -> Tally:
        fd = self._fd
        return tally(os.pread(fd, VALUE_BYTES, offset * VALUE_BYTES) for offset in offsets)

    def close(self) -> None:
        os.close(self._fd)


STORES: dict[str, type[Peer]] = {Esker.name: Esker, **PEERS, Raw.name: Raw}


def available(name: str) -> bool:
    return name not in PEERS or installed(name)
