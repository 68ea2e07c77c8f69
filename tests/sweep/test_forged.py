"""Numbers that lie, with checksums that are right: bounded time, bounded memory, our own errors.

No disk does this; a bug in another version might, and so might whoever hands you a store. What is
read is then not promised. That nothing hangs, that a length is not believed before it is held
against the file, and that every complaint is one of Esker's, is.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

import esker
from esker.format import frame, journal, marks
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.checksum import MASK64, checksum
from tests.helpers import abandon
from tests.suites import SEED, scaled
from tests.sweep.judge import watchdog
from tests.sweep.shapes import MAKERS, ROOT, Platter, Shape, opened, shape

pytestmark = [pytest.mark.crash]

NUMBERS: Final = (0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
LIMIT: Final = 4 << 20  # besides four times what is on the disk

Edit = tuple[str, bytes]


def forgeries(of: Shape) -> Iterator[tuple[str, str, bytes]]:
    """What was forged, the path, and the file as it is then."""
    for path, content in sorted(of.disk.files.items()):
        data = bytes(content)
        if path in of.salts:
            yield from _in_segment(path, data, of.salts[path])
        elif path.endswith(".journal"):
            yield from _in_journal(path, data)
        elif path.endswith("/state"):
            for begin in state_format.SLOT_POSITIONS:
                if any(data[begin : begin + 512]):
                    for at in (*range(8, 80, 8), 472, 480):
                        yield from _numbers(path, data, begin + at, 8, [(begin, begin + 504, 0)])
        elif "/deletions-" in path:
            yield from _in_deletions(path, data)
        elif "/catalog-" in path:
            yield from _in_catalog(path, data)
        elif path.endswith("/counters"):
            for at in (*range(0, 64, 8), *range(832, 960, 8)):
                yield from _numbers(path, data, at, 8, [])


Sums = list[tuple[int, int, int]]
"""Checksums to make right, in order: of [begin, end), which lies at `end`, with this seed."""


def _numbers(
    path: str, data: bytes, at: int, width: int, sums: Sums
) -> Iterator[tuple[str, str, bytes]]:
    for number in sorted({number & (256**width - 1) for number in NUMBERS}):
        forged = bytearray(data)
        forged[at : at + width] = number.to_bytes(width, "little")
        for begin, end, seed in sums:
            forged[end : end + 8] = struct.pack("<Q", checksum(bytes(forged[begin:end]), seed))
        yield f"{number} at byte {at}", path, bytes(forged)


def _in_segment(path: str, data: bytes, salt: int) -> Iterator[tuple[str, str, bytes]]:
    for at in (12, 40, 44):
        yield from _numbers(path, data, at, 4, [(0, 120, 0)])
    for at in (32, 48, 56, 64, 80, 88, 96, 104):
        yield from _numbers(path, data, at, 8, [(0, 120, 0)])
    at = segment_format.HEADER_SIZE
    while isinstance(head := frame.decode_header(data, at, at, salt), frame.Header):
        own = (at, at + 56, (salt + at) & MASK64)
        for field in (8, 12, 16, 20, 40, 44):
            yield from _numbers(path, data, at + field, 4, [own])
        for field in (24, 32):
            yield from _numbers(path, data, at + field, 8, [own])
        if head.kind == frame.FOOTER:
            yield from _in_footer(path, data, at, head, salt)
        at += head.size
    if path.endswith(".seg"):
        end = len(data) - segment_format.TRAILER_SIZE
        yield from _numbers(path, data, end + 8, 8, [(end, end + 24, 0)])


def _in_deletions(path: str, data: bytes) -> Iterator[tuple[str, str, bytes]]:
    header = marks.decode_header(data[: marks.HEADER_SIZE])
    assert not isinstance(header, str)
    for at, width in ((8, 8), (16, 8), (24, 4), (48, 8)):
        yield from _numbers(path, data, at, width, [(0, 56, 0)])
    at, salt = marks.HEADER_SIZE, header.salt
    while isinstance(head := frame.decode_header(data, at, at, salt), frame.Header):
        own = (at, at + 56, (salt + at) & MASK64)
        for field in (8, 12, 16, 20, 40, 44):
            yield from _numbers(path, data, at + field, 4, [own])
        at += head.size


def _in_footer(
    path: str, data: bytes, at: int, head: frame.Header, salt: int
) -> Iterator[tuple[str, str, bytes]]:
    body = at + frame.HEADER_SIZE
    for field in range(0, head.body_size, 8):
        for what, _, forged in _numbers(path, data, body + field, 8, []):
            made = bytearray(forged)
            inside = bytes(made[body : body + head.body_size])
            made[at + 48 : at + 56] = struct.pack("<Q", checksum(inside, salt))
            own = checksum(bytes(made[at : at + 56]), (salt + at) & MASK64)
            made[at + 56 : at + 64] = struct.pack("<Q", own)
            yield f"{what} of the footer", path, bytes(made)


def _in_journal(path: str, data: bytes) -> Iterator[tuple[str, str, bytes]]:
    header = journal.decode_header(data[: journal.HEADER_SIZE])
    assert not isinstance(header, str)
    yield from _numbers(path, data, 12, 4, [(0, 56, 0)])
    at = journal.HEADER_SIZE
    while not isinstance(entry := journal.decode_entry(data[at : at + 64], at, header.salt), str):
        own = (at, at + 56, (header.salt + at) & MASK64)
        for field, width in ((4, 4), (8, 8), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8)):
            yield from _numbers(path, data, at + field, width, [own])
        at += journal.ENTRY_SIZE + frame.padded(entry.size)


def _in_catalog(path: str, data: bytes) -> Iterator[tuple[str, str, bytes]]:
    for at, width in ((8, 8), (16, 4)):
        yield from _numbers(path, data, at, width, [(0, 56, 0)])
    for field in (b'"next_id":', b'"id":', b'"shards":', b'"segment_bytes":', b'"epoch":'):
        begin = data.find(field, 64) + len(field)
        end = min(at for at in (data.find(b",", begin), data.find(b"}", begin)) if at > 0)
        for number in (*NUMBERS, -1, 10**30):
            made = bytearray(data[:begin] + str(number).encode() + data[end:])
            made[16:20] = struct.pack("<I", len(made) - 64)
            made[40:48] = struct.pack("<Q", checksum(bytes(made[64:])))
            made[56:64] = struct.pack("<Q", checksum(bytes(made[:56])))
            yield f"{field.decode()}{number}", path, bytes(made)


@pytest.mark.parametrize("name", MAKERS)
def test_a_number_that_lies_costs_neither_time_nor_memory(name: str) -> None:
    of = shape(name)
    every = list(forgeries(of))
    chance = random.Random(f"forged {SEED} {name}")
    with watchdog():
        for what, path, forged in chance.sample(every, min(len(every), scaled(200, least=20))):
            for mode in ("r", "rw", "verify"):
                disk = of.disk.copy()
                disk.files[path] = bytearray(forged)
                try:
                    _use(disk, of, mode)
                except BaseException as problem:
                    problem.add_note(f"shape {name!r}, {path}: {what}, {mode}")
                    raise


def _use(disk: Platter, of: Shape, mode: Any) -> None:
    allowed = 4 * sum(map(len, disk.files.values())) + LIMIT
    pool = pa.default_memory_pool()
    began, before = time.process_time(), pool.bytes_allocated()
    tracemalloc.start()
    try:
        if mode == "verify":
            esker.verify(ROOT, files=disk)
        else:
            _read_all(disk, of, mode)
    except esker.EskerError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= allowed, f"{peak:,} bytes, where {allowed:,} are"
    assert pool.bytes_allocated() - before <= allowed
    assert time.process_time() - began < 2, "takes too long"


def _read_all(disk: Platter, of: Shape, mode: Any) -> None:
    store = opened(disk, mode)
    try:
        for name, number in of.truth:
            at = 0
            for _ in range(20):  # behind every error there is an end to it, or another error
                try:
                    for batch in store[name].batches(at, shard=number, gaps="skip"):
                        at = batch.last + 1
                        batch.records()
                    break
                except esker.Corruption as problem:
                    if problem.last is None or problem.last < at:
                        break
                    at = problem.last + 1
                except esker.EskerError:
                    break
    finally:
        abandon(store)
