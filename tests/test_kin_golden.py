"""The bytes of the five formats, as their documents show them: every example and every table.

A field is written by hand at the place where the document has it, and read back by the codec; and
the other way round. So a codec that moved a field, or swapped its bytes, fails here, however well
its two halves agree with each other.
"""

from __future__ import annotations

import ast
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

import esker
import esker.kin
from esker.format.columns import Columns
from esker.kin import aof2, comet, comet_state, crc64, cursus, rustlog, topics

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "esker" / "kin"


def binary(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary())


def values_of(piece: object) -> list[bytes]:
    return piece.columns.values.to_pylist()  # type: ignore[attr-defined,no-any-return]


# ---- cursus --------------------------------------------------------------------------------


def test_cursus_hello_and_world() -> None:
    golden = bytes([0, 0, 0, 5, 0x48, 0x65, 0x6C, 0x6C, 0x6F])
    golden += bytes([0, 0, 0, 6, 0x57, 0x6F, 0x72, 0x6C, 0x64, 0x21])
    assert bytes(cursus.encode(binary(b"Hello", b"World!"))) == golden
    assert cursus.message(b"Hello") + cursus.message(b"World!") == golden
    piece, torn, end = cursus.decode(memoryview(golden))
    assert values_of(piece) == [b"Hello", b"World!"]
    assert (torn, end) == (False, 19)


def test_cursus_offset_advances_by_four_and_the_length() -> None:
    assert len(cursus.message(b"x" * 100)) == 104


def test_cursus_reads_behind_so_many_messages_of_a_segment() -> None:
    data = memoryview(cursus.encode(binary(*(b"%d" % n for n in range(10)))))
    assert cursus.read_messages(data, 0, 3) == [b"0", b"1", b"2"]
    assert cursus.read_messages(data, 4, 2) == [b"4", b"5"]
    assert cursus.read_messages(data, 8, 100) == [b"8", b"9"]
    assert cursus.read_messages(data, 99, 1) == []


def test_cursus_segments_are_one_megabyte() -> None:
    assert cursus.SEGMENT_BYTES == 1_048_576


# ---- RustLog -------------------------------------------------------------------------------


def test_rustlog_record_is_length_offset_payload_in_big_endian() -> None:
    golden = (5).to_bytes(4, "big") + (1_234_567).to_bytes(8, "big") + b"hello"
    assert rustlog.record(1_234_567, b"hello") == golden
    assert bytes(rustlog.encode(binary(b"hello"), 1_234_567)) == golden
    piece, problem, end = rustlog.decode(memoryview(golden))
    assert (values_of(piece), piece.first, problem, end) == ([b"hello"], 1_234_567, "", 17)


def test_rustlog_index_entry_is_offset_and_position_in_big_endian() -> None:
    golden = bytes.fromhex("00000000000003e8 0000000000000000 000000000000044c 000000000000c800")
    assert rustlog.ENTRY.pack(1000, 0) + rustlog.ENTRY.pack(1100, 51200) == golden
    assert rustlog.index_entries(golden) == [(1000, 0), (1100, 51200)]


def test_rustlog_lookup_of_the_document() -> None:
    index = b"".join(rustlog.ENTRY.pack(*pair) for pair in ((100, 0), (110, 1530), (120, 3060)))
    assert rustlog.lookup(index, 115) == 1530
    assert rustlog.lookup(index, 110) == 1530
    assert rustlog.lookup(index, 120) == rustlog.lookup(index, 10**9) == 3060
    assert rustlog.lookup(index, 99) is None
    assert rustlog.lookup(b"", 0) is None


def test_rustlog_indexes_every_hundredth_record() -> None:
    data = memoryview(rustlog.encode(binary(*[b"x" * 500] * 250), 1000))
    entries = rustlog.index_entries(rustlog.build_index(data))
    assert entries == [(1000, 0), (1100, 51200), (1200, 102400)]


def test_rustlog_half_a_record_is_cut_off() -> None:
    whole = rustlog.record(49, b"y" * 10)
    torn = struct.pack(">IQ", 100, 50) + b"z" * 60
    piece, problem, end = rustlog.decode(memoryview(whole + torn))
    assert (values_of(piece), problem, end) == ([b"y" * 10], "torn", len(whole))
    assert rustlog.recovered(memoryview(whole + torn)) == len(whole)


# ---- Comet ---------------------------------------------------------------------------------


def test_comet_entry_is_length_and_time_before_the_data() -> None:
    golden = (3).to_bytes(4, "little") + (1_700_000_000_123_456_000).to_bytes(8, "little") + b"abc"
    assert comet.entry(b"abc", 1_700_000_000_123_456_000) == golden
    assert bytes(comet.encode(binary(b"abc"), 1_700_000_000_123_456)) == golden
    piece, problem, end = comet.decode(memoryview(golden))
    assert (values_of(piece), problem, end) == ([b"abc"], "", 15)
    assert piece.columns.timestamps.to_pylist() == [1_700_000_000_123_456]


def test_comet_zstd_is_told_by_its_magic_and_raw_data_that_begins_so_stays_raw() -> None:
    assert bytes.fromhex("28b52ffd") == comet.MAGIC == comet.compress(b"x")[:4]
    liar = comet.MAGIC + b" is how this text begins"
    stored = [comet.compress(b"large " * 1000), liar, comet.MAGIC, b"plain"]
    data = memoryview(b"".join(comet.entry(each, 1) for each in stored))
    assert values_of(comet.decode(data)[0]) == [b"large " * 1000, liar, comet.MAGIC, b"plain"]


def test_comet_data_that_begins_like_zstd_is_written_so_that_every_reader_gets_it_right() -> None:
    inner = comet.compress(b"a frame that was appended as it is")
    data = bytes(comet.encode(binary(inner, comet.MAGIC), 1))
    first = struct.unpack_from("<I", data)[0]
    assert comet.decompress(data[12 : 12 + first]) == inner
    assert values_of(comet.decode(memoryview(data))[0]) == [inner, comet.MAGIC]


def test_comet_compresses_what_is_large_and_keeps_what_would_not_shrink() -> None:
    noise = bytes(xxhash.xxh3_128(b"%d" % n).digest()[0] for n in range(5000))
    data = comet.encode(binary(b"a" * 5000, noise, b"a" * 4096), 1)
    sizes, at = [], 0
    while at < len(data):
        sizes.append(struct.unpack_from("<I", data, at)[0])
        at += 12 + sizes[-1]
    assert sizes[0] < 100
    assert sizes[1:] == [5000, 4096]


def test_comet_a_small_frame_that_claims_to_be_huge_is_raw_data() -> None:
    bomb = comet.MAGIC + bytes([0xE0]) + (1 << 62).to_bytes(8, "little") + b"\x01\x00\x00"
    assert comet.decompress(bomb) is None


def test_comet_only_what_is_one_frame_as_a_whole_is_opened() -> None:
    small, large = comet.compress(b"text"), comet.compress(b"a" * 1_000_000)
    assert comet.decompress(small) == b"text"
    assert comet.decompress(large) == b"a" * 1_000_000  # far more than its size lets one expect
    for data in (small * 2, large * 2, small + b"x", small[:-1], large[:-1], b"text", b""):
        assert comet.decompress(data) is None


def test_comet_index_file_as_the_table_has_it() -> None:
    golden = struct.pack("<II", 0x434F4D54, 1) + struct.pack("<QQ", 250, 9999)
    golden += struct.pack("<III", 1, 2, 1)
    golden += bytes([3]) + b"grp" + struct.pack("<Q", 17)
    golden += struct.pack("<QIQ", 0, 0, 0) + struct.pack("<QIQ", 100, 0, 4000)
    golden += struct.pack("<H", 4) + b"path" + struct.pack("<6Q", 0, 9999, 0, 250, 11, 22)
    index = comet_state.Index(
        250, 9999, [comet_state.Node(0, 0, 0), comet_state.Node(100, 0, 4000)],
        [comet_state.FileInfo("path", 0, 9999, 0, 250, 11, 22)], {"grp": 17},
    )  # fmt: skip
    assert comet_state.encode_index(index) == golden
    assert comet_state.decode_index(golden) == index
    assert comet_state.NODE_BYTES == 20
    for cut in range(len(golden)):
        assert isinstance(comet_state.decode_index(golden[:cut]), str)
    assert isinstance(comet_state.decode_index(b"X" + golden[1:]), str)
    assert isinstance(comet_state.decode_index(golden[:4] + b"\2" + golden[5:]), str)


# Line by line as in the document: where a line begins, and what stands in it.
STATE = {
    0: "Version WriteOffset LastEntryNumber LastIndexUpdate ActiveFileIndex FileSize "
    "LastFileSequence",
    64: "TotalEntries TotalBytes TotalWrites LastWriteNanos CurrentBatchSize TotalBatches "
    "FailedWrites",
    128: "TotalCompressed CompressedEntries SkippedCompression CompressionRatio CompressionTime",
    192: "WriteLatencySum WriteLatencyCount MinWriteLatency MaxWriteLatency SyncLatencyNanos",
    256: "FilesCreated FilesDeleted FileRotations RotationTime CurrentFiles TotalFileBytes "
    "FailedRotations SyncCount",
    320: "CheckpointCount LastCheckpoint CheckpointTime IndexPersistCount IndexPersistErrors "
    "IndexSizeBytes BinaryIndexNodes",
    384: "ActiveReaders TotalReaders MaxConsumerLag TotalEntriesRead ConsumerGroups AckedEntries "
    "ReaderCacheHits",
    448: "ErrorCount LastErrorNanos CorruptionDetected RecoveryAttempts RecoverySuccesses "
    "PartialWrites ReadErrors",
    512: "RetentionRuns LastRetention RetentionTime EntriesDeleted BytesReclaimed OldestEntry "
    "RetentionErrors ProtectedByConsumers",
    768: "ReaderFileMaps ReaderFileUnmaps ReaderCacheBytes ReaderMappedFiles ReaderFileRemaps "
    "ReaderCacheEvicts",
}  # fmt: skip


def test_comet_state_has_each_counter_at_its_place() -> None:
    page, expected = bytearray(1024), {}
    for line, text in STATE.items():
        for number, name in enumerate(text.split()):
            expected[name] = line * 1000 + number + 1 if line or number else 1
            struct.pack_into("<Q", page, line + 8 * number, expected[name])
    assert comet_state.decode_state(bytes(page)) == expected
    assert comet_state.encode_state(expected) == bytes(page)


def test_comet_reader_counters_are_also_found_where_the_code_has_them() -> None:
    page = bytearray(comet_state.encode_state({}))
    struct.pack_into("<Q", page, 640, 77)
    found = comet_state.decode_state(bytes(page))
    assert isinstance(found, dict)
    assert found["ReaderFileMaps"] == 77


@pytest.mark.parametrize("page", [b"", bytes(1024), bytes(1023), b"\2" + bytes(1023)])
def test_comet_state_that_is_damaged_says_so(page: bytes) -> None:
    assert isinstance(comet_state.decode_state(page), str)


def test_comet_offsets_page_as_the_table_has_it() -> None:
    page = comet_state.encode_offsets({"billing": comet_state.Consumer(42, 1_700, 9)})
    assert len(page) == 64 + 512 * 128 == 65_600
    assert struct.unpack_from("<II", page) == (1, 0xC0FE0FF5)
    slot = comet_state.fnv1a(b"billing") % 512
    at = 64 + 128 * slot
    assert page[at : at + 48] == b"billing".ljust(48, b"\0")
    assert struct.unpack_from("<qqQ", page, at + 48) == (42, 1_700, 9)
    assert comet_state.decode_offsets(page) == {"billing": comet_state.Consumer(42, 1_700, 9)}
    assert comet_state.slot_of(page, "billing") == slot
    assert comet_state.slot_of(page, "nobody") is None


def test_comet_groups_are_found_by_fnv1a_and_linear_probing() -> None:
    assert [comet_state.fnv1a(text) for text in (b"", b"a", b"foobar")] == [
        0x811C9DC5, 0xE40C292C, 0xBF9CF968,
    ]  # fmt: skip
    names: list[str] = []
    wanted = comet_state.fnv1a(b"g0") % 512
    number = 0
    while len(names) < 3:
        if comet_state.fnv1a(f"g{number}".encode()) % 512 == wanted:
            names.append(f"g{number}")
        number += 1
    page = comet_state.encode_offsets({name: comet_state.Consumer(1) for name in names})
    slots = [comet_state.slot_of(page, name) for name in names]
    assert slots == [(wanted + step) % 512 for step in range(3)]


def test_comet_a_page_of_groups_has_512_and_no_more() -> None:
    groups = {f"g{n}": comet_state.Consumer(n) for n in range(512)}
    assert comet_state.decode_offsets(comet_state.encode_offsets(groups)) == groups
    with pytest.raises(ValueError, match="512"):
        comet_state.encode_offsets({**groups, "more": comet_state.Consumer(0)})


def test_comet_old_offsets_are_read() -> None:
    old = (
        b"\1"
        + struct.pack("<I", 2)
        + b"\1a"
        + struct.pack("<Q", 5)
        + b"\2bc"
        + struct.pack("<Q", 6)
    )
    assert comet_state.decode_old_offsets(old) == {"a": 5, "bc": 6}
    assert comet_state.decode_old_offsets(old[:-1]) == {"a": 5}
    assert comet_state.decode_old_offsets(b"\2" + old[1:]) == {}


# ---- topics --------------------------------------------------------------------------------


def wal_by_hand(kind: int, flags: int, node: bytes, tag: bytes, data: bytes) -> bytes:
    body = bytes([kind, flags]) + struct.pack("<QQQ", 10, 7, 1_700_000_000_123)
    body += struct.pack("<HHI", len(node), len(tag), len(data)) + node + tag + data
    return (
        struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    )


@pytest.mark.parametrize("kind", range(1, 12))
def test_topics_wal_frame_of_each_type_as_the_table_has_it(kind: int) -> None:
    golden = wal_by_hand(kind, 0b111, b"node-1", b"eu", b"payload")
    it = topics.Frame(kind, 10, 7, 1_700_000_000_123, b"payload", b"eu", b"node-1", True)
    assert topics.frame(it) == golden
    assert topics.frames(memoryview(golden)) == ([it], len(golden), "")
    found = topics.decode(memoryview(golden), 0, topics.WAL)
    assert found is not None
    assert (found.types[0].as_py(), found.topics[0].as_py(), found.seqs[0].as_py()) == (kind, 10, 7)
    assert found.columns.values.to_pylist() == [b"payload"]
    assert found.columns.tags.to_pylist() == ["eu"]
    assert found.columns.nodes.to_pylist() == ["node-1"]
    assert found.columns.timestamps.to_pylist() == [1_700_000_000_123_000]


def test_topics_the_eleven_types() -> None:
    assert list(topics.TYPES.values()) == [
        "Append", "TopicCreate", "TopicDelete", "RouterCreate", "RouterDelete", "Delete",
        "EvictWatermark", "CheckpointMark", "ConfigUpdate", "Lease", "HeadWatermark",
    ]  # fmt: skip
    assert list(topics.TYPES) == list(range(1, 12))


def test_topics_offsets_of_the_fields_of_a_wal_frame() -> None:
    data = wal_by_hand(1, 0b1, b"", b"T", b"DD")
    assert struct.unpack_from("<I", data, 0)[0] == len(data) - 4
    assert (data[4], data[5]) == (1, 1)
    assert struct.unpack_from("<QQQ", data, 6) == (10, 7, 1_700_000_000_123)
    assert struct.unpack_from("<HHI", data, 30) == (0, 1, 2)
    assert data[38:41] == b"TDD"
    (found,), _, _ = topics.frames(memoryview(data))
    assert (found.tag, found.node, found.durable) == (b"T", None, False)


def test_topics_segment_frame_has_no_type_and_no_topic() -> None:
    body = bytes([0b11]) + struct.pack("<QQHHI", 5, 1_700, 1, 2, 3) + b"ntgdat"
    golden = struct.pack("<I", len(body) + 8) + body
    golden += struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    columns = Columns(binary(b"dat"), 1_700_999, None, pa.array(["tg"]), pa.array(["n"]))
    data, index = topics.encode(columns, 4)  # seq 5
    assert bytes(data) == golden
    assert index == struct.pack("<IIQB3x", 0, len(golden), 1_700, 0b11)
    assert len(index) == 20
    assert index == topics.build_index(memoryview(golden))


def test_topics_index_entry_is_found_by_arithmetic() -> None:
    data, index = topics.encode(Columns(binary(*(b"%d" % n * n for n in range(50))), 0), 0)
    for seq in (1, 2, 30, 50):
        at, size, _, _ = topics.IDX.unpack_from(index, (seq - 1) * 20)
        found = topics.decode(memoryview(data)[at : at + size])
        assert found is not None
        assert found.seqs.to_pylist() == [seq]


# ---- AOF2 ----------------------------------------------------------------------------------


def test_crc64_nvme_of_the_catalogue() -> None:
    assert crc64.one(b"123456789") == 0xAE8B14860A799888
    assert crc64.one(b"") == 0
    assert crc64.fold(0xAE8B14860A799888) == 0xAE8B1486 ^ 0x0A799888


def test_crc64_of_many_and_of_long_ones_is_that_of_each() -> None:
    noise = xxhash.xxh3_128(b"seed").digest() * 5000
    sizes = [*range(40), 100, 199, 200, 201, 1000, 4097] * 30
    values = [noise[n : n + size] for n, size in enumerate(sizes)]
    assert crc64.many(binary(*values)).to_pylist() == [crc64.one(value) for value in values]
    assert crc64.many(binary(*values[:5])).to_pylist() == [crc64.one(v) for v in values[:5]]
    even = [noise[n : n + 64] for n in range(50)]
    assert crc64.many(binary(*even)).to_pylist() == [crc64.one(value) for value in even]
    for size in (49 * 1024, 70_001):
        assert crc64.of(noise[:size]) == crc64.one(noise[:size])
        assert crc64.of(noise[size:], crc64.of(noise[:size])) == crc64.of(noise)
    assert crc64.of(memoryview(noise)[: 60 << 10]) == crc64.one(noise[: 60 << 10])


def test_aof2_header_as_the_table_has_it() -> None:
    header = aof2.Header(3, 100, 2048, 1 << 20, 1_700, 1_800)
    golden = struct.pack("<I", 0x414F4632) + struct.pack("<HH", 1, 64) + struct.pack("<I", 3)
    golden += struct.pack("<QQ", 100, 2048) + struct.pack("<I", 1 << 20)
    golden += struct.pack("<qQ", 1_700, 1_800)
    assert aof2.encode_header(header) == golden.ljust(64, b"\0")
    assert aof2.decode_header(golden.ljust(64, b"\0")) == header
    for damaged in (golden, b"X" * 64, golden[:4] + b"\2" + bytes(59)):
        assert isinstance(aof2.decode_header(damaged), str)


def test_aof2_record_is_length_checksum_time_payload() -> None:
    golden = struct.pack("<IIQ", 9, 0xAE8B1486 ^ 0x0A799888, 1_700_000) + b"123456789"
    assert aof2.record(b"123456789", 1_700_000) == golden
    assert bytes(aof2.encode(binary(b"123456789"), 1_700)) == golden
    piece, problem, end = aof2.decode(memoryview(golden), 0)
    assert (values_of(piece), problem, end) == ([b"123456789"], "end", 25)
    assert piece.columns.timestamps.to_pylist() == [1_700]


def test_aof2_footer_lies_in_the_last_64_bytes_of_max_size() -> None:
    header = aof2.Header(3, 70, 1000, 4096, 0, 0)
    footer = aof2.Footer(3, 70, 1, 1000 + 89, aof2.record_id(3, 64), 5, 6, 0xABCD)
    data = bytearray(4096)
    data[4096 - 64 :] = aof2.encode_footer(footer)
    assert struct.unpack_from("<III", data, 4032) == (0x464F4F54, 1, 3)
    assert struct.unpack_from("<QQQQQqI", data, 4044) == (70, 1, 1089, 3 << 32 | 64, 5, 6, 0xABCD)
    assert aof2.decode_footer(data, header) == footer
    assert aof2.decode_footer(data, header._replace(segment=4)) is None
    assert aof2.decode_footer(data, header._replace(records_before=71)) is None
    assert aof2.decode_footer(data, header._replace(max_size=4000)) is None
    assert aof2.decode_footer(data[:4000], header) is None
    assert aof2.decode_footer(bytes(4096), header) is None


def test_aof2_checksum_of_a_footer_is_that_of_all_payloads(tmp_path: Path) -> None:
    with esker.open(tmp_path / "store") as store:
        store["t"].append_many([b"1234", b"56789"])
        esker.kin.export_topic(store["t"], tmp_path / "copy", "aof2", segment_bytes=4096)
    (path,) = (tmp_path / "copy" / "segments").iterdir()
    data = path.read_bytes()
    assert len(data) == 4096
    assert struct.unpack_from("<I", data, 4092)[0] == 0xAE8B1486 ^ 0x0A799888


def test_aof2_record_ids_are_packed() -> None:
    assert aof2.record_id(1, 64) == 0x0000_0001_0000_0040
    assert aof2.parts_of(0x0000_0002_0000_0100) == (2, 256)


def test_aof2_names_have_twenty_digits_and_sort() -> None:
    name = aof2.segment_name(7, 67_108_864, 1_700_000_000_000_000_000)
    assert name == "00000000000000000007_00000000000067108864_01700000000000000000.seg"
    assert aof2.archive_name(7, 9) == "00000000000000000007_00000000000000000009.seg"
    assert aof2.segment_name(10, 0, 0) > aof2.segment_name(9, 10**9, 10**18)


# ---- the room ------------------------------------------------------------------------------


CODECS = ["hops", "crc64", "family", "rustlog", "cursus", "comet", "comet_state", "topics",
          "topics_control", "aof2"]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_stands_below_the_engine(codec: str) -> None:
    tree = ast.parse((PACKAGE / f"{codec}.py").read_text())
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    rooms = {name.split(".")[1] for name in used if name and name.startswith("esker.")}
    assert rooms <= {"kin", "format", "records", "errors", "storage"}
    files = {name for name in used if name and name.startswith("esker.storage")}
    assert files <= {"esker.storage.files"}
