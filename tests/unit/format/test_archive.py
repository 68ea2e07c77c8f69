"""A manifest is believed when its books balance, and never changes under anybody's hands."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import archive as fmt
from esker.format import names
from esker.format.archive import ArchivedFile, ArchivedGap, ArchivedShard, Manifest

GOLDEN = Path(__file__).parents[2] / "golden" / "archive" / "manifest-1.json"
STORE = bytes(range(16)).hex()


def file(
    first: int, end: int, *, rows: int = -1, shard: int = 0, day: str = "2026-11-15", raw: int = 0
) -> ArchivedFile:
    name = names.archived(first, end, first.to_bytes(8, "big"))
    rows = end - first if rows < 0 else rows
    return ArchivedFile(
        shard=shard, day=day, name=name, first=first, end=end, rows=rows, bytes=1000 + first,
        raw_bytes=raw or 100 * rows, min_timestamp=1_794_700_800_000_000 + first,
        max_timestamp=1_794_700_800_000_000 + end, checksum=f"{first:016x}",
    )  # fmt: skip


def sample() -> Manifest:
    """Two shards, two days in one span, a gap, and a merge."""
    made = fmt.new(STORE, "orders:eu", 12)
    days = [file(0, 60, rows=50), file(10, 100, rows=40, day="2026-11-16")]
    made = made.with_span(0, 0, 100, days, [ArchivedGap(0, 20, 29, "power loss")])
    made = made.with_span(1, 500, 520, [file(500, 520, shard=1)], [])
    made = made.with_span(0, 100, 130, [file(100, 130, day="2026-11-16")], [])
    merged = file(10, 130, rows=70, day="2026-11-16")
    made = made.with_merges([([days[1], file(100, 130, day="2026-11-16")], merged)])
    return msgspec.structs.replace(made, generation=5)


def test_a_golden_manifest_reads_and_writes_as_it_did() -> None:
    data = GOLDEN.read_bytes()
    assert fmt.encode(sample()) == data
    found = fmt.decode(data)
    assert isinstance(found, Manifest)
    assert msgspec.structs.replace(found, checksum="") == sample()


def test_spans_add_up() -> None:
    made = sample()
    assert made.shards == (ArchivedShard(0, 0, 130), ArchivedShard(1, 500, 520))
    assert made.ends == {0: 130, 1: 520}
    assert [each.first for each in made.files] == [0, 10, 500]
    assert len(made.replaced) == 2
    assert made.replaced[0].startswith("partition=0/date=2026-11-16/")


def test_every_bit_counts() -> None:
    data = fmt.encode(sample())
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(fmt.decode(bytes(flipped)), str), f"bit {bit} was believed"


def test_a_part_of_it_is_no_manifest() -> None:
    data = fmt.encode(sample()).rstrip()
    for size in range(0, len(data), 7):
        assert isinstance(fmt.decode(data[:size]), str), f"{size} bytes were believed"


def test_it_says_what_is_wrong_with_it() -> None:
    later = msgspec.structs.replace(sample(), version=2)
    assert fmt.decode(fmt.encode(later)) == "version 2"
    other = msgspec.structs.replace(sample(), format="parquet")
    assert fmt.decode(fmt.encode(other)) == "not a manifest (its format is 'parquet')"
    edited = fmt.encode(sample()).replace(b'"rows": 50', b'"rows": 51')
    assert fmt.decode(edited) == "a damaged manifest (its checksum does not match)"
    assert str(fmt.decode(b"[]")).startswith("not a manifest")
    assert str(fmt.decode(b'{"format": "esker-archive", "version": 1}')).startswith("a damaged")


def test_books_that_do_not_balance_are_told() -> None:
    made = sample()
    lost = msgspec.structs.replace(made, files=made.files[1:])
    assert fmt.decode(fmt.encode(lost)) == "files and gaps of shard 0 do not make up its offsets"
    extra = msgspec.structs.replace(made, shards=made.shards[:1])
    assert fmt.decode(fmt.encode(extra)) == "files of shard 1, which is not archived"
    twice = fmt.new(STORE, "t", 1)
    files = (file(0, 20), file(10, 20))
    twice = msgspec.structs.replace(twice, files=files, shards=(ArchivedShard(0, 0, 30),))
    assert str(fmt.decode(fmt.encode(twice))).endswith("overlap")


def test_a_span_that_does_not_follow_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        sample().with_span(0, 131, 140, [file(131, 140)], [])
    with pytest.raises(AssertionError):
        sample().with_span(0, 130, 140, [file(130, 139)], [])


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (fmt.DAY_US - 1, "1970-01-01"),
        (fmt.DAY_US, "1970-01-02"),
        (1_794_700_800_000_000, "2026-11-15"),
        (-62_135_596_800_000_000, "0001-01-01"),
        (-62_135_596_800_000_001, fmt.NO_DAY),
        (1 << 61, fmt.NO_DAY),
    ],
)
def test_a_day_is_that_of_utc(timestamp: int, text: str) -> None:
    assert fmt.day_text(fmt.day_of(timestamp)) == text


SIZES = st.lists(st.integers(1, 500), max_size=30)


@given(SIZES, st.integers(1, 1000))
def test_merging_keeps_order_and_size_and_leaves_little(sizes: list[int], target: int) -> None:
    files = [file(n, n + 1, raw=size) for n, size in enumerate(sizes)]
    groups = fmt.merges(files, target)
    for group in groups:
        assert len(group) > 1
        assert [each.first + 1 for each in group[:-1]] == [each.first for each in group[1:]]
        assert sum(each.raw_bytes for each in group) <= target
    # what is left falls in size, or would be too large together
    inside = {each.first: group for group in groups for each in group}
    left = []
    for each in files:
        group = inside.get(each.first, [each])
        if group[0] is each or group[0].first == each.first:
            left.append(sum(one.raw_bytes for one in group))
    for before, after in pairwise(left):
        assert before > 2 * after or before + after > target


def test_a_little_at_a_time_is_copied_a_few_times_only() -> None:
    files: list[ArchivedFile] = []
    copied = 0
    for n in range(1000):
        files.append(file(n, n + 1, raw=10))
        for group in fmt.merges(files, 1 << 40):
            size = sum(each.raw_bytes for each in group)
            copied += size
            whole = file(group[0].first, group[-1].end, raw=size)
            files = [each for each in files if each not in group] + [whole]
        assert len(files) <= 11
    assert copied < 10 * 1000 * 10  # each record some log2(1000) times, not 500


def test_other_days_and_shards_are_not_merged() -> None:
    files = [file(0, 1), file(1, 2, day="2026-11-16"), file(2, 3), file(0, 1, shard=1)]
    (group,) = fmt.merges(files, 1 << 30)
    assert [each.first for each in group] == [0, 2]


def test_names_are_what_hive_makes_of_them() -> None:
    assert names.archived_topic("a:b.c-d") == "topic=a%3Ab.c-d"
    assert sample().files[0].path == (
        "partition=0/date=2026-11-15/"
        "00000000000000000000-00000000000000000060-0000000000000000.parquet"
    )
    token = bytes(8)
    assert names.is_archived(names.archived(0, 10**21, token))
    assert names.is_archived(names.archiving(token))
    for other in ("part-0000.parquet", "_manifest.json", "_lock", "_SUCCESS", "x.parquet.tmp"):
        assert not names.is_archived(other)
