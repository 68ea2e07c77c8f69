"""A file of routes is believed whole, in its own store, or not at all; a mark tells an offset."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from esker.format import routes as fmt
from esker.format.checksum import checksum
from esker.format.routes import RouteEntry, Routes

STORE = bytes(range(16))


def entry(number: int = 1, name: str = "a->b") -> RouteEntry:
    return RouteEntry(
        id=number, name=name, source=1, source_name="a", destination=2, destination_name="b",
        created=5, where='tag == "eu"', since=(3, 4),
    )  # fmt: skip


def forged(body: bytes, version: int = 1) -> bytes:
    """A file with a body and a version of one's own choice, and the right checksums."""
    head = struct.pack(
        "<4sHHQII16sQQ", b"ESKR", version, 0, 5, len(body), 0, STORE, checksum(body), 0
    )
    return head + struct.pack("<Q", checksum(head)) + body


@given(st.integers(0, 2**60), st.text(max_size=20))
def test_routes_read_back_as_they_were_written(generation: int, name: str) -> None:
    routes = Routes(4, (entry(1, name), entry(3, "other")))
    assert fmt.decode(fmt.encode(routes, generation, STORE), STORE) == (routes, generation)


def test_every_bit_counts() -> None:
    data = fmt.encode(Routes(2, (entry(),)), 7, STORE)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert isinstance(fmt.decode(bytes(flipped), STORE), str), (at, bit)
    for size in range(len(data)):
        assert isinstance(fmt.decode(data[:size], STORE), str)


def test_routes_of_another_store_or_version_are_told() -> None:
    data = fmt.encode(Routes(2, (entry(),)), 7, STORE)
    assert fmt.decode(data, bytes(16)) == fmt.FOREIGN
    assert fmt.decode(forged(b"{}", 2), STORE) == "version 2"


def test_a_body_that_no_esker_wrote_is_refused() -> None:
    for body in (b"[]", b"\xff", b'{"next_id": 1, "routes": [{"id": 1}]}'):
        assert "cannot be read" in str(fmt.decode(forged(body), STORE))
    for routes in (
        Routes(1, (entry(1),)),
        Routes(5, (entry(1), entry(1))),
        Routes(5, (entry(-1),)),
    ):
        assert "ids" in str(fmt.decode(fmt.encode(routes, 1, STORE), STORE))
    assert fmt.decode(fmt.encode(Routes(), 1, STORE), STORE) == (Routes(), 1)


def test_a_mark_tells_whose_it_is_and_an_offset() -> None:
    prefix = fmt.mark_prefix(STORE, 7, 2, 3)
    mark = fmt.encode_mark(prefix, 1234)
    assert len(mark) == fmt.MARK_SIZE
    assert mark.startswith(prefix)
    assert fmt.decode_mark(mark) == 1234
    assert fmt.decode_mark(mark[:-1]) == -1
    others = {fmt.mark_prefix(s, r, e, n) for s in (STORE, b"x" * 16) for r in (7, 8)
              for e in (1, 2) for n in (0, 3)}  # fmt: skip
    assert len(others) == 16
