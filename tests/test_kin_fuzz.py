"""Decoders of foreign bytes: 20,000 damaged buffers each, and none may crash, hang or grow.

What a decoder gives must be cut out of the bytes that it got: not more values than there is room
for, and not more bytes than there are, but for zstd, which says so by its size.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from esker.format.columns import Columns
from esker.kin import KINDS, aof2, comet, comet_state, cursus, rustlog, topics
from esker.kin.family import Flaw, Part
from tests.suites import scaled

MUTANTS = min(20_000, scaled(20_000, least=1_000))
WORDS = [0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 12, 1 << 20, 10 << 20]


def records(count: int = 6) -> pa.Array:
    return pa.array([b"%d" % n * (n % 7 * 3) for n in range(count)], pa.binary())


def stamps(count: int = 6) -> pa.Array:
    return pa.array([1_700_000_000_000_000 + n * 1000 for n in range(count)], pa.int64())


def aof2_segment() -> bytes:
    data = aof2.encode(records(), stamps())
    header = aof2.Header(0, 0, 0, 1024, 1, 1)
    footer = aof2.Footer(0, 0, 6, 64 + len(data), 1, 2, 3)
    body = aof2.encode_header(header) + bytes(data)
    return body.ljust(1024 - 64, b"\0") + aof2.encode_footer(footer)


def topics_wal() -> bytes:
    made = [topics.Frame(n, 1, n, 5, b"x" * n, b"t" if n % 2 else None) for n in range(1, 7)]
    return b"".join(map(topics.frame, made))


SEEDS: dict[str, tuple[Callable[[], bytes], str, object]] = {
    "rustlog": (lambda: bytes(rustlog.encode(records(), 5)), "rustlog", None),
    "cursus": (lambda: bytes(cursus.encode(records())), "cursus", ""),
    "comet": (lambda: bytes(comet.encode(records(), stamps(), 8)), "comet", None),
    "topics": (lambda: bytes(topics.encode(Columns(records(), stamps()), 0)[0]), "topics", None),
    "wal": (topics_wal, "topics", topics.OfWal(1, 0)),
    "aof2": (aof2_segment, "aof2", 0),
}


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """The bytes, with a few things done to them that disks, crashes and people do."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 5))):
        what, at = chance.randrange(6), chance.randrange(len(data)) if data else 0
        if what == 0 and data:
            data[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del data[at:]
        elif what == 2:
            data[at : at + chance.randrange(40)] = b""
        elif what == 3:
            data[at : at + 4] = struct.pack(chance.choice("<>") + "I", chance.choice(WORDS))
        elif what == 4:
            data[at:at] = chance.randbytes(chance.randrange(20))
        else:
            data[at : at + 24] = bytes(24)
    return bytes(data)


def mutants(seed: bytes, name: str, count: int = MUTANTS) -> Iterator[bytes]:
    chance = random.Random(f"kin {name}")
    for _ in range(count):
        yield mutated(seed, chance)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SEEDS)
def test_a_damaged_file_is_read_as_far_as_it_goes(name: str) -> None:
    make, which, extra = SEEDS[name]
    seed, kind = make(), KINDS[which]
    part = Part("damaged", 0, True, extra)
    first = 5 if name == "rustlog" else 0
    whole = sum(
        len(item.columns.values) for item in kind.pieces(memoryview(seed), part, kind.begin, first)
    )
    assert whole == (1 if name == "wal" else 6)
    flaws = shorter = 0
    # the frames of a WAL are decoded as those of a segment; below, they are once more, one by one
    wanted = MUTANTS // 5 if name == "wal" else MUTANTS
    for data in mutants(seed, name, wanted):
        end, count, before = first, 0, pa.total_allocated_bytes()
        for item in kind.pieces(memoryview(data), part, kind.begin, first):
            if isinstance(item, Flaw):
                flaws += 1
                assert 0 <= item.position <= max(len(data), 1024)
                continue
            assert item.first >= end
            end = item.end
            count += len(item.columns.values)
            if name != "comet":
                assert item.columns.nbytes <= len(data)
            assert pa.total_allocated_bytes() - before < 1 << 20
        assert count <= len(data) // 4
        shorter += count < whole
    assert shorter > wanted // 10
    assert (flaws > wanted // 10) == (name != "wal")  # where a WAL is damaged, it ends


@pytest.mark.parametrize(
    ("seed", "decode"),
    [
        (
            comet_state.encode_index(
                comet_state.Index(
                    9, 9, [comet_state.Node(0, 0, 0)] * 3,
                    [comet_state.FileInfo("p", 0, 9, 0, 9, 1, 2)] * 2, {"g": 4},
                )
            ),
            comet_state.decode_index,
        ),
        (b"\1\2\0\0\0\1a" + bytes(8) + b"\2bc" + bytes(8), comet_state.decode_old_offsets),
        (topics_wal(), lambda data: topics.frames(memoryview(data))),
        (rustlog.ENTRY.pack(1, 0) + rustlog.ENTRY.pack(9, 99), rustlog.index_entries),
        (comet.compress(b"some text " * 20), comet.decompress),
    ],
    ids=["comet index", "old offsets", "wal frames", "rustlog index", "zstd"],
)  # fmt: skip
def test_a_damaged_file_beside_a_log_is_told_and_nothing_breaks(
    seed: bytes, decode: Callable[[bytes], object]
) -> None:
    for data in mutants(seed, repr(decode)[:20]):
        decode(data)


def test_pages_of_comet_survive_damage() -> None:
    chance = random.Random("pages")
    state = comet_state.encode_state({"TotalEntries": 5})
    offsets = comet_state.encode_offsets({"a": comet_state.Consumer(1)})
    for _ in range(2_000):
        comet_state.decode_state(mutated(state, chance))
    for _ in range(200):
        comet_state.decode_offsets(mutated(offsets, chance))
