"""A commit is believed whole, in its own store, or not at all."""

from __future__ import annotations

import struct

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from esker.format import commit as fmt
from esker.format.checksum import checksum, fingerprint
from esker.format.commit import Commit, Ticket

STORE = bytes(range(16))
NUMBER = st.integers(0, 2**62)
TICKETS = st.builds(
    Ticket, NUMBER, NUMBER, st.text(max_size=9), NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER
)
COMMITS = st.builds(Commit, st.text(max_size=9), NUMBER, st.lists(TICKETS, max_size=3).map(tuple))
TICKET = Ticket(7, 0, "a.staged", 2, 500, 300, 1, 2, 3)
BATCH = Commit("nightly", 5, (TICKET,))


def forged(body: bytes, **fields: int) -> bytes:
    """A commit with a body and a header of one's own choice, and the right checksums."""
    version, sequence = fields.get("version", 1), fields.get("sequence", 5)
    head = struct.pack(
        "<4sHHQII16sQQ", b"ESKB", version, 0, sequence, len(body), 0, STORE, checksum(body), 0
    )
    return head + struct.pack("<Q", checksum(head)) + body


@given(COMMITS)
def test_a_commit_reads_back_as_it_was_written(batch: Commit) -> None:
    assert fmt.decode(fmt.encode(batch, STORE), STORE) == batch


def test_a_commit_without_a_mark_has_the_bytes_that_it_always_had() -> None:
    marked = msgspec.structs.replace(BATCH, once=b"\x93\xa1k\xc4\x01a\x01")
    assert fmt.decode(fmt.encode(marked, STORE), STORE) == marked
    assert b"once" in fmt.encode(marked, STORE)
    assert b"once" not in fmt.encode(BATCH, STORE)


def test_every_bit_counts() -> None:
    data = fmt.encode(BATCH, STORE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(fmt.decode(bytes(flipped), STORE), str), f"bit {bit} was believed"


def test_a_part_of_it_or_more_than_it_is_no_commit() -> None:
    data = fmt.encode(BATCH, STORE)
    for size in range(len(data)):
        assert isinstance(fmt.decode(data[:size], STORE), str), f"{size} bytes were believed"
    assert fmt.decode(data + b"\0", STORE) == "commit body does not match its checksum"


def test_it_says_what_is_wrong_with_it() -> None:
    data = fmt.encode(BATCH, STORE)
    body = msgspec.json.encode(BATCH)
    assert forged(body) == data
    assert fmt.decode(b"ESKB", STORE) == "not a commit"
    assert fmt.decode(b"ESKC" + data[4:], STORE) == "not a commit"
    assert fmt.decode(data, bytes(16)) == "a commit of another store"
    assert fmt.decode(forged(body, version=2), STORE) == "version 2"
    assert fmt.decode(forged(body, sequence=6), STORE) == "commit header and body disagree"
    assert str(fmt.decode(forged(b'{"writer": 7}'), STORE)).startswith("commit: ")


def test_a_fingerprint_is_the_same_in_every_run() -> None:
    assert fingerprint("nightly") == "6e8b0a4e822e45ee7d78f5bf9df189d8"
    assert fingerprint("nightly") != fingerprint("nightlz")
