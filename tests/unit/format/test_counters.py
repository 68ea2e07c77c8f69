"""The counters page holds every counter that Comet's users know, at the line they know."""

from __future__ import annotations

import pytest

from esker.format.counters import PAGE_SIZE, WORD

# C21 to C30: the lines of Comet's state file, its counters, and what they are called here.
COMET = {
    0: ("version", "write_position", "last_offset", "last_index_update_ns", "active_segment",
        "file_bytes", "last_segment"),
    1: ("total_records", "total_bytes", "total_writes", "last_write_ns", "last_batch_records",
        "total_batches", "failed_writes"),
    2: ("compressed_bytes", "compressed_records", "compression_skipped", "compression_ratio_x100",
        "compression_ns"),
    3: ("write_ns_sum", "write_ns_count", "write_ns_min", "write_ns_max", "sync_ns_last"),
    4: ("segments_created", "segments_deleted", "segments_rolled", "roll_ns", "segments_current",
        "segments_bytes", "failed_rolls", "syncs"),
    5: ("checkpoints", "last_checkpoint_ns", "checkpoint_ns", "seals", "seal_errors",
        "directory_bytes", "directory_frames"),
    6: ("readers_active", "readers_total", "max_reader_lag", "records_read", "groups",
        "records_acked", "reader_cache_hits"),
    7: ("errors", "last_error_ns", "corruptions", "recoveries", "recoveries_clean",
        "partial_writes", "read_errors"),
    8: ("retention_runs", "last_retention_ns", "retention_ns", "records_deleted",
        "bytes_reclaimed", "oldest_offset", "retention_errors", "protected_by_groups"),
    10: ("maps", "unmaps", "mapped_bytes", "mapped_files", "remaps", "map_evictions"),
}  # fmt: skip


@pytest.mark.parametrize("line", COMET)
def test_every_counter_of_comet_is_there_at_its_cache_line(line: int) -> None:
    for name in COMET[line]:
        assert name in WORD, f"{name} is missing"
        assert WORD[name] // 8 == line, f"{name} is at another line"


def test_no_two_counters_share_a_word() -> None:
    assert len(set(WORD.values())) == len(WORD)


def test_all_counters_lie_inside_the_page() -> None:
    assert min(WORD.values()) >= 0
    assert (max(WORD.values()) + 1) * 8 <= PAGE_SIZE


def test_words_that_are_read_together_lie_in_one_cache_line() -> None:
    together = ("sequence", "next_visible", "visible_segment", "visible_position", "durable",
                "segments_generation")  # fmt: skip
    assert {WORD[name] // 8 for name in together} == {13}
