"""Numbers that verify and cannot be right, and pages that speak of somebody else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from esker.format import columns, frame, segment
from esker.format.frame import Header
from esker.format.segment import SegmentHeader
from esker.storage import merge, scan
from esker.storage.counters import Counters
from esker.storage.memory import MemoryFiles
from esker.storage.scan import Flaw, Walk


def test_a_body_with_more_than_its_columns_is_refused() -> None:
    body = columns.one(b"value", 1)
    data = b"".join(body.parts)
    assert columns.decode(pa.py_buffer(data), 0, 1, 1).values.to_pylist() == [b"value"]
    with pytest.raises(ValueError, match="are used"):
        columns.decode(pa.py_buffer(data + bytes(8)), 0, 1, 1)


def test_a_zstd_body_that_does_not_tell_its_size_is_none() -> None:
    whole = pa.compress(b"x" * 1000, "zstd", asbytes=True)
    assert frame.zstd_size(whole) == 1000
    assert frame.zstd_size(b"no") is None
    assert frame.zstd_size(b"not zstd at all") is None
    assert frame.zstd_size(whole[:4] + b"\0" + bytes(20)) is None  # a frame of unknown size
    assert frame.zstd_size(whole[:6]) is None


def test_a_header_of_another_shard_or_segment_is_misplaced() -> None:
    store = bytes(16)
    header = SegmentHeader(
        store=store, topic=1, shard=2, epoch=1, segment=3, base=40, created=0, salt=5,
        previous_end=40, previous_chain=0, previous_salt=0, previous_high=0, gap=0,
    )  # fmt: skip
    assert segment.misplaced(header, 3, 40, (store, 1, 2)) == ""
    assert "another store" in segment.misplaced(header, 3, 40, (store, 1, 0))
    assert "another segment's name" in segment.misplaced(header, 4, 40, (store, 1, 2))


def test_a_page_is_evidence_for_its_own_shard_only_and_while_it_is_plausible() -> None:
    files = MemoryFiles()
    files.make_dir("/s")
    page = Counters.open(files, "/s", writable=True)
    assert page is not None
    page.belongs_to(7, 1)
    page.publish(50, 1, 4096, 40)
    assert page.proven(7, 1) == 40
    assert page.proven(7, 2) == page.proven(8, 1) == 0
    page.publish(30, 1, 4096, 40)  # no writer lets `durable` pass `visible`
    assert page.proven(7, 1) == 0


def test_a_small_body_shorter_than_its_count_is_not_cut_into_values() -> None:
    assert not merge._plausible(100, bytes(8))
    assert merge._plausible(1, b"".join(columns.one(b"v", 1).parts))


def test_a_frame_that_is_cut_off_tells_how_many_rows_were_before_it() -> None:
    """Damage below the watermark, then a whole frame behind a torn place: rows 0 to 4 are lost."""
    header = Header(frame.DATA, 0, 0, 64, 64, 3, 5, 0, 0, 0, 0, 0, 0)
    flaws = [Flaw(128, 256, "damaged"), Flaw(256, 384, "torn")]
    seen = Walk([(384, header)], flaws, 512, 512, 200)
    found = scan.verdict(seen, 0)
    assert (found.rows, found.dropped) == (5, 3)
    assert [flaw.position for flaw in found.corrupt] == [128]
