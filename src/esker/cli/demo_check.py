"""The checker of `esker demo`: the producer's ack lists on one side, the store on the other.

It knows nothing of how the store works: it reads records with the public API, and compares them
with what the producer noted when it was told that they are safe.

    lost      acknowledged, and not there
    altered   acknowledged, there, and not byte for byte the same
    phantom   there, and never made by a producer; or there twice
    kept      there, made by a producer, not acknowledged before it was killed: neither wrong nor
              promised
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

import esker
from esker.cli.demo_producer import EVENTS, ORDERS, authentic, digest, maker
from esker.storage.files import SYSTEM_FILES, content_of, join


class Ack(NamedTuple):
    """A line of an ack list: these offsets hold these values."""

    first: int
    records: int
    hash: str


class Verdict(msgspec.Struct):
    """What the comparison says."""

    acknowledged: int = 0
    lost: int = 0
    altered: int = 0
    phantom: int = 0
    kept: int = 0
    records: dict[str, int] = {}  # acknowledged, by topic
    bytes: dict[str, int] = {}  # of all values, by topic

    @property
    def holds(self) -> bool:
        return not (self.lost or self.altered or self.phantom)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged:,} acknowledged: {self.lost} lost, {self.altered} altered, "
            f"{self.phantom} phantom; {self.kept:,} more were on their way and are there"
        )


def read_acks(folder: str) -> dict[tuple[str, int], list[Ack]]:
    """All ack lists of all runs, by topic and shard, in order of offset."""
    found: dict[tuple[str, int], list[Ack]] = {}
    for name in sorted(SYSTEM_FILES.list(folder)):
        if not name.endswith(".acks"):
            continue
        data = content_of(SYSTEM_FILES, join(folder, name))
        whole, _, _ = data.rpartition(b"\n")  # a line without an end was never finished
        for line in whole.decode().splitlines():
            topic, shard, first, count, hashed = line.split(" ")
            found.setdefault((topic, int(shard)), []).append(Ack(int(first), int(count), hashed))
    for acks in found.values():
        acks.sort()
    return found


def check(store: esker.Store, folder: str) -> Verdict:
    """Compare everything that was acknowledged with everything that is there."""
    verdict = Verdict()
    acks = read_acks(folder)
    seen = Seen()
    places = {
        (name, shard)
        for name in (ORDERS, EVENTS)
        if name in store
        for shard in range(store[name].shards)
    }
    for place in sorted(places | set(acks)):
        values = _values(store, *place) if place in places else iter(())
        _check_shard(verdict, place[0], acks.get(place, []), values, seen)
    return verdict


def _values(store: esker.Store, topic: str, shard: int) -> Iterator[tuple[int, bytes]]:
    """Offsets and values of a shard, up to the first damage."""
    try:
        for batch in store[topic].batches(shard=shard, gaps="skip"):
            yield from enumerate(batch.values, batch.first)
    except esker.Corruption as problem:
        if problem.last is not None:
            yield from _values_from(store, topic, shard, problem.last + 1)


def _values_from(
    store: esker.Store, topic: str, shard: int, start: int
) -> Iterator[tuple[int, bytes]]:
    """What lies behind damage; damage again ends it."""
    try:
        for batch in store[topic].batches(start, shard=shard, gaps="skip"):
            yield from enumerate(batch.values, batch.first)
    except esker.Corruption:
        return


class Seen:
    """Which values were met before: a bit for each, by run and thread."""

    def __init__(self) -> None:
        self._bits: dict[tuple[int, int], bytearray] = {}

    def again(self, value: bytes) -> bool:
        """Whether this value was here already; it is from now on."""
        said = maker(value)
        if said is None or not 0 <= said[2] < 1 << 32:
            return False
        bits = self._bits.setdefault(said[:2], bytearray())
        place, bit = said[2] >> 3, 1 << (said[2] & 7)
        if place >= len(bits):
            bits.extend(bytes(place + 1024 - len(bits)))
        before = bits[place] & bit
        bits[place] |= bit
        return bool(before)


def _check_shard(
    verdict: Verdict, topic: str, acks: list[Ack], values: Iterator[tuple[int, bytes]], seen: Seen
) -> None:
    """Go through the records and the acks of one shard side by side, both in order of offset."""
    at, total, size = 0, 0, 0
    held: list[bytes] = []  # the values of the ack at hand that were found so far
    for offset, value in values:
        total += 1
        size += len(value)
        while at < len(acks) and acks[at].first + acks[at].records <= offset:
            _close(verdict, acks[at], held)
            at, held = at + 1, []
        if at < len(acks) and acks[at].first <= offset:
            held.append(value)
        elif not authentic(value):
            verdict.phantom += 1
        verdict.phantom += seen.again(value)
    for ack in acks[at:]:
        _close(verdict, ack, held)
        held = []
    promised = sum(ack.records for ack in acks)
    verdict.acknowledged += promised
    verdict.kept += max(0, total - promised)
    verdict.records[topic] = verdict.records.get(topic, 0) + promised
    verdict.bytes[topic] = verdict.bytes.get(topic, 0) + size


def _close(verdict: Verdict, ack: Ack, held: list[bytes]) -> None:
    """All that was found for an ack is in `held`: is it what was acknowledged?"""
    if len(held) == ack.records and digest(held) == ack.hash:
        return
    verdict.lost += ack.records - len(held)
    if len(held) == ack.records:
        verdict.altered += ack.records
    verdict.phantom += sum(not authentic(value) for value in held)
