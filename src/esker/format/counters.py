"""The counters page: 1 KiB a shard, mapped by its writer and readable by any process.

Sixteen cache lines of eight 64-bit words. Lines 0 to 12 are the counters that Comet's users know
(C20 to C31), at the same lines; line 13 onwards is Esker's own: what a reader in another process
needs to follow the log. Words are written with aligned 8-byte stores. The words that must be read
together (line 13) are guarded by `sequence`: odd while they change.

The page tells; it never decides. Damage to it costs metrics, never data.
"""

from __future__ import annotations

from typing import Final

PAGE_SIZE: Final = 1024
VERSION: Final = 1
MAGIC: Final = int.from_bytes(b"ESKCOUNT", "little")

_LINES: Final[dict[int, tuple[str, ...]]] = {
    0: ("version", "write_position", "last_offset", "last_index_update_ns", "active_segment",
        "file_bytes", "last_segment", "magic"),
    1: ("total_records", "total_bytes", "total_writes", "last_write_ns", "last_batch_records",
        "total_batches", "failed_writes"),
    2: ("compressed_bytes", "compressed_records", "compression_skipped", "compression_ratio_x100",
        "compression_ns"),
    3: ("write_ns_sum", "write_ns_count", "write_ns_min", "write_ns_max", "sync_ns_last",
        "sync_ns_sum", "sync_ns_max"),
    4: ("segments_created", "segments_deleted", "segments_rolled", "roll_ns", "segments_current",
        "segments_bytes", "failed_rolls", "syncs"),
    5: ("checkpoints", "last_checkpoint_ns", "checkpoint_ns", "seals", "seal_errors",
        "directory_bytes", "directory_frames", "seal_ns"),
    6: ("readers_active", "readers_total", "max_reader_lag", "records_read", "groups",
        "records_acked", "reader_cache_hits", "last_read_ns"),
    7: ("errors", "last_error_ns", "corruptions", "recoveries", "recoveries_clean",
        "partial_writes", "read_errors"),
    8: ("retention_runs", "last_retention_ns", "retention_ns", "records_deleted",
        "bytes_reclaimed", "oldest_offset", "retention_errors", "protected_by_groups"),
    10: ("maps", "unmaps", "mapped_bytes", "mapped_files", "remaps", "map_evictions"),
    13: ("sequence", "next_visible", "visible_segment", "visible_position", "durable",
         "writer_pid", "segments_generation", "next_issued"),
    14: ("boot_high", "boot_low", "topic", "shard", "segments_replaced"),
}  # fmt: skip

WORD: Final[dict[str, int]] = {
    name: line * 8 + column for line, names in _LINES.items() for column, name in enumerate(names)
}
"""Counter name to its 8-byte word in the page."""
