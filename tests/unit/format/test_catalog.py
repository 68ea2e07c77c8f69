"""The store's identity, its catalog, and the topic that each segment names."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import catalog as fmt
from esker.format.catalog import Catalog, Former, TopicEntry
from esker.format.checksum import checksum
from esker.options import TopicOptions

STORE = bytes(range(16))
ENTRY = TopicEntry(7, "orders", 1, 1_800_000_000_000_000, TopicOptions(shards=4))
CATALOG = Catalog(8, (ENTRY,))


@given(st.binary(min_size=16, max_size=16), st.integers(-(2**63), 2**63 - 1))
def test_an_identity_reads_back_and_each_of_its_bits_counts(store: bytes, created: int) -> None:
    data = fmt.encode_identity(store, created)
    assert len(data) == fmt.IDENTITY_SIZE
    assert fmt.decode_identity(data) == (store, created)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_identity(bytes(flipped))
        assert isinstance(found, str), f"bit {bit} was believed"
        assert not found.startswith("version")


@given(
    st.integers(2**40 + 1, 2**50),
    st.lists(
        st.builds(
            TopicEntry,
            st.integers(1, 2**40),
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,30}", fullmatch=True),
            st.integers(1, 9),
            st.integers(0, 2**60),
            st.builds(
                TopicOptions,
                shards=st.integers(1, 1024),
                durability=st.sampled_from(["fsync", "disk", "memory", "ephemeral"]),
                compression=st.sampled_from(["none", "zstd"]),
                compress_at=st.sampled_from(["seal", "commit"]),
                compression_level=st.integers(1, 22),
            ),
        ),
        max_size=5,
        unique_by=(lambda entry: entry.id, lambda entry: entry.name),
    ),
    st.integers(1, 2**40),
)
def test_a_catalog_reads_back_as_it_was_written(
    next_id: int, topics: list[TopicEntry], generation: int
) -> None:
    catalog = Catalog(next_id, tuple(topics))
    data = fmt.encode_catalog(catalog, generation, STORE)
    assert fmt.decode_catalog(data, STORE) == (catalog, generation)


@pytest.mark.parametrize(
    ("field", "number"),
    [("id", 0), ("id", -1), ("id", 2**70), ("epoch", -1), ("epoch", 2**40), ("name", "../x")]
    + [("shards", n) for n in (0, -1, 1025, 10**12)]
    + [("segment_bytes", n) for n in (0, 2**31, -4096)]
    + [("max_record_bytes", n) for n in (0, 2**40)],
)
def test_numbers_that_nobody_can_have_written_are_told(field: str, number: Any) -> None:
    entry = {"id": 1, "name": "t", "epoch": 1, "created": 0, "options": {}}
    place: Any = entry if field in entry else entry["options"]
    place[field] = number
    body = msgspec.json.encode({"next_id": 2, "topics": [entry]})
    data = bytearray(fmt.encode_catalog(Catalog(), 1, STORE)[:64] + body)
    data[16:20] = struct.pack("<I", len(body))
    data[40:48] = struct.pack("<Q", checksum(body))
    data[56:64] = struct.pack("<Q", checksum(bytes(data[:56])))
    assert isinstance(fmt.decode_catalog(bytes(data), STORE), str)
    assert isinstance(fmt.decode_config(msgspec.json.encode(entry)), str)


def test_two_topics_of_one_name_or_id_are_told() -> None:
    one, two = (TopicEntry(n, f"t{n}", 1, 0, TopicOptions()) for n in (1, 2))
    for topics in ((one, one), (one, msgspec.structs.replace(two, name="t1"))):
        assert isinstance(
            fmt.decode_catalog(fmt.encode_catalog(Catalog(9, topics), 1, STORE), STORE), str
        )
    assert isinstance(
        fmt.decode_catalog(fmt.encode_catalog(Catalog(2, (two,)), 1, STORE), STORE), str
    )


def test_topics_that_were_deleted_are_remembered_with_their_ends_and_not_for_ever() -> None:
    gone = CATALOG.without({7: (3, 4), 9: (5,)})
    assert gone == Catalog(8, (), (Former(7, "orders", (3, 4)),))
    assert fmt.decode_catalog(fmt.encode_catalog(gone, 2, STORE), STORE) == (gone, 2)
    assert b"former" not in fmt.encode_catalog(CATALOG, 1, STORE)
    for number in range(8, 8 + fmt.FORMER_MAX):
        gone = Catalog(number + 1, (msgspec.structs.replace(ENTRY, id=number),), gone.former)
        gone = gone.without({number: ()})
    assert [each.id for each in gone.former] == list(range(8, 8 + fmt.FORMER_MAX))


def test_a_deleted_topic_that_nobody_can_have_made_is_told() -> None:
    wrong = Catalog(8, (), (Former(8, "later"),))
    found = fmt.decode_catalog(fmt.encode_catalog(wrong, 1, STORE), STORE)
    assert found == "catalog body cannot be read: a topic was deleted whose id is not below 8"


def test_any_flipped_bit_of_a_catalog_is_told() -> None:
    data = fmt.encode_catalog(CATALOG, 3, STORE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_catalog(bytes(flipped), STORE)
        assert isinstance(found, str), f"bit {bit} was believed"
        assert not found.startswith("version")


def test_a_catalog_that_is_cut_short_is_told() -> None:
    data = fmt.encode_catalog(CATALOG, 3, STORE)
    for kept in range(len(data)):
        assert isinstance(fmt.decode_catalog(data[:kept], STORE), str)


def test_a_catalog_of_another_store_is_told() -> None:
    data = fmt.encode_catalog(CATALOG, 3, bytes(16))
    assert fmt.decode_catalog(data, STORE) == "catalog of another store"


def resealed(data: bytearray) -> bytes:
    data[56:64] = struct.pack("<Q", checksum(bytes(data[:56])))
    return bytes(data)


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_a_catalog_that_claims_a_huge_body_is_told_and_allocates_nothing(size: int) -> None:
    data = bytearray(fmt.encode_catalog(CATALOG, 3, STORE))
    data[16:20] = struct.pack("<I", size)
    assert isinstance(fmt.decode_catalog(resealed(data), STORE), str)


def test_later_versions_are_told_apart_from_damage() -> None:
    catalog = bytearray(fmt.encode_catalog(CATALOG, 3, STORE))
    catalog[4:6] = struct.pack("<H", fmt.VERSION + 1)
    assert fmt.decode_catalog(resealed(catalog), STORE) == f"version {fmt.VERSION + 1}"
    identity = bytearray(fmt.encode_identity(STORE, 1))
    identity[8:10] = struct.pack("<H", fmt.VERSION + 1)
    identity[40:] = struct.pack("<Q", checksum(bytes(identity[:40])))
    assert fmt.decode_identity(bytes(identity)) == f"version {fmt.VERSION + 1}"


def test_a_body_that_is_not_a_catalog_is_told() -> None:
    for body in (b"", b"[]", b'{"next_id":"x"}', b'{"topics":[{"id":1}]}', b"\xff\xfe"):
        data = bytearray(fmt.encode_catalog(CATALOG, 3, STORE)[:64] + body)
        data[16:20] = struct.pack("<I", len(body))
        data[40:48] = struct.pack("<Q", checksum(body))
        found = fmt.decode_catalog(resealed(data), STORE)
        assert isinstance(found, str)
        assert "cannot be read" in found


def test_the_topic_that_a_segment_names_reads_back() -> None:
    assert fmt.decode_config(fmt.encode_config(ENTRY)) == ENTRY
    assert isinstance(fmt.decode_config(b"{"), str)
    assert isinstance(fmt.decode_config(b'{"id":1}'), str)


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    body = fmt.encode_config(ENTRY)
    assert fmt.decode_config(body[:-1] + b',"later":[1,2]}') == ENTRY


def test_options_that_came_later_are_written_where_they_are_used() -> None:
    plain = TopicEntry(1, "t", 1, 0, TopicOptions())
    capped = TopicEntry(2, "u", 1, 0, TopicOptions(cap_records=5, discard="reject"))
    assert b"cap_" not in fmt.encode_config(plain)
    assert b'"cap_records":5,"discard":"reject"' in fmt.encode_config(capped)
    assert fmt.decode_config(fmt.encode_config(capped)) == capped
    catalog = Catalog(3, (plain, capped))
    data = fmt.encode_catalog(catalog, 7, bytes(16))
    assert fmt.decode_catalog(data, bytes(16)) == (catalog, 7)


def test_an_entry_that_may_be_an_old_one_evicts_nothing() -> None:
    def kept(**options: Any) -> TopicOptions:
        return fmt.keeping_all(TopicEntry(1, "t", 1, 0, TopicOptions(**options))).options

    assert kept(shards=3) == TopicOptions(shards=3)
    assert kept(shards=3, cap_bytes=9, cap_records=8, ttl_us=7) == TopicOptions(shards=3)
    refusing = TopicOptions(cap_records=8, discard="reject")
    assert kept(cap_records=8, discard="reject") == refusing
    assert kept(cap_records=8, discard="reject", ttl_us=7) == refusing
