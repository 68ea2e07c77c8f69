"""Every decoder against noise, against good bytes with mistakes, and against forgeries.

Whatever the bytes, a decoder answers: a value, or why there is none. It raises nothing but what it
says it raises, it does not take long, and it allocates in proportion to what it was given. Mutants
come in two kinds: as a disk makes them, which checksums must catch, and with all checksums made
right again, as only a bug or a forger does, where a number may be anything.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pytest

import esker
from esker.format import catalog, columns, counters, frame, journal, names, segment, state
from esker.format.checksum import MASK64, checksum
from esker.options import TopicOptions
from esker.storage import merge
from esker.storage.counters import Counters
from tests.suites import SEED, scaled

pytestmark = [pytest.mark.crash]

ROUNDS: Final = 5_500  # of each decoder, checked or forged: 55,000 and more together
SALT: Final = 0x0123456789ABCDEF
STORE: Final = bytes(range(16))
NUMBERS: Final = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
LIMIT: Final = 1 << 20  # what an answer may take besides four times what was given

Mend = Callable[[bytearray], None]


def _sum(begin: int, end: int, seed: int = 0) -> Mend:
    """Makes the checksum of [begin, end), which lies behind it, right again."""

    def mend(data: bytearray) -> None:
        if len(data) >= end + 8:
            data[end : end + 8] = struct.pack("<Q", checksum(bytes(data[begin:end]), seed))

    return mend


def _mend_catalog(data: bytearray) -> None:
    if len(data) >= 64:
        size = int.from_bytes(data[16:20], "little")
        data[40:48] = struct.pack("<Q", checksum(bytes(data[64 : 64 + size])))
        _sum(0, 56)(data)


def _entry() -> catalog.TopicEntry:
    return catalog.TopicEntry(1, "orders", 1, 0, TopicOptions(shards=2))


def _body(rows: int = 9) -> tuple[bytes, columns.Body]:
    extras: dict[int, columns.Extra] = {
        row: (b"k%d" % row, f"t{row}", "n", {"h": b"v"}, row) for row in range(0, rows, 2)
    }
    made = columns.from_arrow(columns.to_columns([b"value %d" % r for r in range(rows)], extras, 7))
    return b"".join(made.parts), made


def _decode_columns(data: bytes) -> Any:
    """A body as a frame has it: the first two bytes say which columns and how many rows."""
    bits, count = (data[0] & 31, data[1]) if len(data) > 2 else (31, 9)
    return columns.decode(pa.py_buffer(data[2:]), bits, count, 0)


def _decode_frame(data: bytes) -> Any:
    """A frame whose checksums are right, as a reader takes it apart: alone, and with others."""
    header = frame.decode_header(data, 0, 0, SALT)
    if not isinstance(header, frame.Header):
        return header
    body = memoryview(data)[frame.HEADER_SIZE : frame.HEADER_SIZE + header.body_size]
    flaw = frame.body_damage(header, body, SALT)
    if flaw is not None or header.kind != frame.DATA:
        return flaw
    return merge.decode(header, body, "f", 0).values, merge.merge([(0, header, body)], "f").values


def _frame(codec: int, rows: int, *, plain: bool = False) -> bytes:
    body, made = _body(rows)
    bits, low, high = made.bits, made.min_timestamp, made.max_timestamp
    if plain:
        few = columns.from_lists([b"value"] * rows, {}, 7)
        body, bits, low, high = b"".join(few.parts), 0, 7, 7
    stored = pa.compress(body, "zstd", asbytes=True) if codec else body
    head = frame.data_header(
        0, SALT, codec, bits, len(stored), len(body), rows, 0, low, high, 0, 0,
        checksum(stored, SALT),
    )  # fmt: skip
    return head + stored


def _mend_frame(data: bytearray) -> None:
    if len(data) >= 64:
        size = int.from_bytes(data[8:12], "little")
        data[48:56] = struct.pack("<Q", checksum(bytes(data[64 : 64 + size]), SALT))
        _sum(0, 56, SALT)(data)


def _footer() -> bytes:
    return segment.encode_footer(
        segment.Footer(30, 900, 800, 5, 1, 9, [200, 400, 600], [0, 10, 20], [1, 2, 3], [3, 6, 9])
    )


def _counters(data: bytes) -> Any:
    """The page, as recovery takes what it says."""
    page = bytearray(data[: counters.PAGE_SIZE].ljust(counters.PAGE_SIZE, b"\0"))
    return Counters(memoryview(page).cast("Q")).proven(1, 0)


def _names(data: bytes) -> Any:
    text = data.decode("latin-1")
    return (
        names.parse_segment(text), names.parse_catalog(text), names.parse_journal(text),
        names.parse_number(text),
    )  # fmt: skip


@cache
def _decoders() -> dict[str, tuple[bytes, Callable[[bytes], Any], Mend | None]]:
    """By name: good bytes, the decoder, and what makes the checksums of a forgery right."""
    header = segment.SegmentHeader(STORE, 1, 0, 1, 1, 0, 0, SALT)
    entry = journal.encode_entry(
        b"x" * 40, topic=1, shard=0, synced=64, segment=1, position=0, next_offset=3, at=64,
        salt=SALT,
    )  # fmt: skip
    listed = catalog.Catalog(2, (_entry(),))
    return {
        "identity": (catalog.encode_identity(STORE, 0), catalog.decode_identity, _sum(0, 40)),
        "catalog": (catalog.encode_catalog(listed, 1, STORE),
                    lambda data: catalog.decode_catalog(data, STORE), _mend_catalog),
        "config": (catalog.encode_config(_entry()), catalog.decode_config, None),
        "state": (state.encode_slot(state.State(1, 1, 1, 0, 1, 9, 1, 500, 9)),
                  state.decode_slot, _sum(0, 504)),
        "segment header": (segment.encode_header(header), segment.decode_header, _sum(0, 120)),
        "footer": (_footer(), segment.decode_footer, None),
        "trailer": (segment.encode_trailer(900, 7), segment.decode_trailer, _sum(0, 24)),
        "journal header": (journal.encode_header(journal.JournalHeader(STORE, 1, SALT, 0)),
                           journal.decode_header, _sum(0, 56)),
        "journal entry": (entry, lambda data: journal.decode_entry(data, 64, SALT),
                          _sum(0, 56, (SALT + 64) & MASK64)),
        "columns": (bytes([31, 9]) + _body()[0], _decode_columns, None),
        "frame": (_frame(frame.PLAIN, 9), _decode_frame, _mend_frame),
        "frame of one": (_frame(frame.PLAIN, 1, plain=True), _decode_frame, _mend_frame),
        "frame of few": (_frame(frame.PLAIN, 7, plain=True), _decode_frame, _mend_frame),
        "zstd frame": (_frame(frame.ZSTD, 60), _decode_frame, _mend_frame),
        "counters": (bytes(counters.PAGE_SIZE), _counters, None),
        "names": (b"00000005-00000000000000081920.log", _names, None),
    }  # fmt: skip


def mutant(good: bytes, chance: random.Random) -> bytearray:
    """Good bytes with one to three mistakes, or noise."""
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(data) or 1)
        match chance.randrange(8):
            case 0 | 1 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 2 | 3:  # a number that is absurd, where one may be
                width = chance.choice((4, 8))
                begin = at // width * width
                number = chance.choice(NUMBERS) & (256**width - 1)
                data[begin : begin + width] = number.to_bytes(width, "little")
            case 4:
                del data[at:]
            case 5:
                data[at : at + 9] = chance.randbytes(chance.randrange(20))
            case 6:
                data += chance.randbytes(chance.randrange(200))
            case 7:
                data = bytearray(chance.randbytes(chance.randrange(300)))
    return data


@pytest.mark.parametrize("name", _decoders())
def test_a_decoder_answers_whatever_the_bytes(name: str) -> None:
    good, decode, mend = _decoders()[name]
    chance = random.Random(f"fuzz {SEED} {name}")
    decode(good)
    for forged in (False, True) if mend else (False,):
        for number in range(scaled(ROUNDS, least=200)):
            data = mutant(good, chance)
            if forged and mend is not None:
                mend(data)
            _check(name, decode, bytes(data), measured=forged or number % 50 == 0)


def _check(name: str, decode: Callable[[bytes], Any], data: bytes, *, measured: bool) -> None:
    pool = pa.default_memory_pool()
    began, before = time.process_time(), pool.bytes_allocated()
    if measured:
        tracemalloc.start()
    try:
        answer = decode(data)  # kept while the pool is asked
        taken = pool.bytes_allocated() - before
        del answer
    except Exception as problem:
        taken = 0
        ours = (
            isinstance(problem, (esker.Corruption, pa.ArrowInvalid)) or type(problem) is ValueError
        )
        if not ours:
            problem.add_note(f"{name}: {data.hex()} (seed {SEED})")
            raise
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
    most = 4 * len(data) + LIMIT
    assert peak <= most, f"{name}: {peak} bytes for {data.hex()}"
    assert taken <= most, f"{name}: {taken} bytes of Arrow for {data.hex()}"
    assert time.process_time() - began < 2, f"{name}: too long for {data.hex()}"
