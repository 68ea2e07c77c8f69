"""File names are numbers, and sort as numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import names
from esker.format.names import SegmentName

NUMBER = st.integers(0, 10**12)
OFFSET = st.integers(0, 2**63 - 1)


@given(NUMBER, OFFSET, st.booleans())
def test_a_segment_is_named_and_the_name_read_back(number: int, base: int, sealed: bool) -> None:
    name = names.segment(number, base, sealed=sealed)
    assert names.parse_segment(name) == SegmentName(number, base, sealed)


@given(NUMBER)
def test_other_names_read_back_too(number: int) -> None:
    assert names.parse_catalog(names.catalog(number)) == number
    assert names.parse_journal(names.journal(number)) == number
    assert names.parse_number(names.topic(number)) == number
    assert names.parse_number(names.shard(number)) == number
    assert names.parse_deletions(names.deletions(number)) == number
    assert names.parse_leases(names.leases(number)) == number
    assert names.parse_worker(names.worker(number)) == number
    assert names.parse_tags(names.tags(number, 7)) == SegmentName(number, 7, True)
    assert names.parse_staged(names.staged(number, bytes(8))) == number
    assert names.parse_commit(names.commit("ab" * 16, number)) == ("ab" * 16, number)
    assert names.parse_slot(names.slot(number % 10_000)) == number % 10_000


@given(NUMBER, st.integers(0, 9999), NUMBER, OFFSET)
def test_a_key_in_a_cold_store_is_read_back(topic: int, shard: int, number: int, base: int) -> None:
    prefix = names.cold_prefix(bytes(range(16)), topic, shard)
    assert prefix.startswith(names.cold_prefix(bytes(range(16))))
    key = names.cold(prefix, names.segment(number, base, sealed=True), 7, bytes(8))
    told = names.ColdName(bytes(range(16)).hex(), topic, shard, SegmentName(number, base, True))
    assert names.parse_cold(key) == told
    assert names.parse_cold(key + names.TEMPORARY) == told
    for other in (key[1:], key + "x", "/" + key, key.replace(".seg", ".log")):
        assert names.parse_cold(other) is None


@given(st.lists(st.tuples(NUMBER, OFFSET), unique_by=lambda pair: pair[0], max_size=8))
def test_segments_sort_by_number_whatever_its_width(pairs: list[tuple[int, int]]) -> None:
    found = sorted(
        parsed
        for number, base in pairs
        if (parsed := names.parse_segment(names.segment(number, base, sealed=False))) is not None
    )
    assert [name.segment for name in found] == sorted(number for number, _ in pairs)


def test_the_segment_after_99999999_comes_after_it() -> None:
    before, after = (names.segment(n, n, sealed=False) for n in (99_999_999, 100_000_000))
    assert after < before, "as text they are in the wrong order"
    assert names.parse_segment(before) < names.parse_segment(after)  # type: ignore[operator]


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", "00000001-00000000000000000000.log.tmp", "00000001-0.log", "1-2.seg",
     "00000001-00000000000000000000.seg ", "00000001-00000000000000000000.SEG",
     "٠٠٠٠٠٠٠١-00000000000000000000.log", "00000001-00000000000000000000.log\n",
     "-0000001-00000000000000000000.log", "../00000001-00000000000000000000.log",
     "0123456789abcdef.staged", "0123456789abcdef0123456789ABCDEF.staged",
     "0123456789abcdef0123456789abcdef-7.commit", "deletions-0000001", "deletions-00000001.tmp",
     "deletions-٠٠٠٠٠٠٠١", "Deletions-00000001", "deletions-00000001\n", "leases-0000001",
     "leases-00000001.tmp", "0123456789abcdeF", "0123456789abcde"],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_not_taken_for_ours(name: str) -> None:
    parsers: list[Callable[[str], object]] = [
        names.parse_segment, names.parse_catalog, names.parse_journal, names.parse_number,
        names.parse_staged, names.parse_commit, names.parse_deletions, names.parse_leases,
        names.parse_worker, names.parse_slot,
    ]  # fmt: skip
    assert [parse(name) for parse in parsers] == [None] * len(parsers)


def test_what_is_left_of_a_deleted_topic_is_known_by_its_number() -> None:
    assert names.parse_deleted(names.topic(12) + names.DELETED) == 12
    assert names.parse_deleted(names.topic(12)) is None
    assert names.parse_deleted("notes" + names.DELETED) is None
