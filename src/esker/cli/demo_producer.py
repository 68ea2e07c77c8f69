"""The producer of `esker demo`: writes as fast as it can, and notes what it was told is safe.

    python -m esker.cli.demo_producer STORE ACKS RUN

Several threads append to two topics: `orders` (class fsync, keyed, one by one and in batches) and
`events` (class disk, in batches). Whenever an append returns, and only then, the thread adds a line
to its own ack list, with one write to the kernel: the list outlives the process, and says neither
more nor less than what was acknowledged.

    ack list := line*       line := topic shard first-offset count hash

Every value tells who made it (run, thread, sequence number), and the rest of it follows from that.
So whoever finds a value can tell whether this producer ever made it. The process is meant to be
killed; it ends by itself only when its parent does.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Sequence

import esker
from esker.storage.files import SYSTEM_FILES, File, join

ORDERS = "orders"  # class fsync
EVENTS = "events"  # class disk
SINGLES, BATCHES, BULK = 4, 1, 1  # threads of each kind
BATCH, BULK_BATCH = 20, 500  # records in a batch


def payload(run: int, thread: int, sequence: int) -> bytes:
    """The value that this thread makes as its n-th: 60 to 187 bytes that nobody makes by chance."""
    name = b"%d %d %d " % (run, thread, sequence)
    filler = hashlib.blake2b(name, digest_size=32).hexdigest().encode()
    return (name + filler * 3)[: 60 + sequence % 128]


def maker(value: bytes) -> tuple[int, int, int] | None:
    """Who says to have made this value: run, thread, sequence number."""
    try:
        run, thread, sequence, _ = value.split(b" ", 3)
        return int(run), int(thread), int(sequence)
    except ValueError:
        return None


def authentic(value: bytes) -> bool:
    """Whether a producer made this value."""
    said = maker(value)
    return said is not None and payload(*said) == value


def digest(values: Sequence[bytes]) -> str:
    """One hash for the values of a batch, in order."""
    hasher = hashlib.blake2b(digest_size=16)
    for value in values:
        hasher.update(len(value).to_bytes(4, "little"))
        hasher.update(value)
    return hasher.hexdigest()


class AckList:
    """What one thread was told is safe."""

    def __init__(self, folder: str, run: int, thread: int) -> None:
        self._file: File = SYSTEM_FILES.open(join(folder, f"{run:03d}-{thread:02d}.acks"), "create")
        self._end = 0

    def add(self, topic: str, shard: int, first: int, values: Sequence[bytes]) -> None:
        line = f"{topic} {shard} {first} {len(values)} {digest(values)}\n".encode()
        self._file.write(self._end, [line])
        self._end += len(line)


class Producer:
    """All threads of one run."""

    def __init__(self, store: esker.Store, acks: str, run: int) -> None:
        self._acks = acks
        self._run = run
        self._orders = store.create(
            ORDERS, exist_ok=True, shards=4, durability="fsync", segment_bytes="1MiB"
        )
        self._events = store.create(EVENTS, exist_ok=True, segment_bytes="4MiB")

    def start(self) -> None:
        kinds = [self.singles] * SINGLES + [self.batches] * BATCHES + [self.bulk] * BULK
        for number, work in enumerate(kinds):
            acks = AckList(self._acks, self._run, number)
            threading.Thread(target=_or_die, args=(work, number, acks), daemon=True).start()

    def singles(self, thread: int, acks: AckList) -> None:
        """Durable appends, one by one."""
        topic, sequence = self._orders, 0
        while True:
            value = payload(self._run, thread, sequence)
            offset = topic.append(value, key=b"user-%d" % (sequence % 97), wait=True)
            acks.add(ORDERS, getattr(offset, "shard", 0), int(offset), [value])
            sequence += 1

    def batches(self, thread: int, acks: AckList) -> None:
        """Durable batches, whose keys spread them over the shards."""
        topic, sequence = self._orders, 0
        while True:
            numbers = range(sequence, sequence + BATCH)
            records = [
                esker.Record(payload(self._run, thread, n), key=b"user-%d" % (n % 97))
                for n in numbers
            ]
            by_shard: dict[int, list[bytes]] = {}
            for record in records:
                shard = topic.shard_of(record.key or b"")
                by_shard.setdefault(shard, []).append(record.value)
            result = topic.append_many(records, wait=True)
            spans = [result] if isinstance(result, esker.Span) else list(result)
            for span in spans:
                acks.add(ORDERS, span.shard, span.first, by_shard[span.shard])
            sequence += BATCH

    def bulk(self, thread: int, acks: AckList) -> None:
        """Batches that are safe from a kill as soon as the kernel has them."""
        topic, sequence = self._events, 0
        while True:
            values = [payload(self._run, thread, n) for n in range(sequence, sequence + BULK_BATCH)]
            span = topic.append_many(values, wait=True)
            assert isinstance(span, esker.Span)
            acks.add(EVENTS, span.shard, span.first, values)
            sequence += BULK_BATCH


def _or_die(work, thread, acks) -> None:  # type: ignore[no-untyped-def]
    """A thread that fails ends the whole producer, loudly."""
    try:
        work(thread, acks)
    except BaseException as problem:
        sys.stderr.write(f"esker demo: the producer failed: {problem!r}\n")
        sys.stderr.flush()
        os._exit(3)


def main() -> None:
    store, acks, run = sys.argv[1], sys.argv[2], int(sys.argv[3])
    parent = os.getppid()
    Producer(esker.open(store), acks, run).start()
    forever = threading.Event()
    while os.getppid() == parent:
        forever.wait(0.2)
    os._exit(0)


if __name__ == "__main__":
    main()
