"""A copy without what was deleted: the same rows and times, and all that is left bit for bit."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from esker.errors import Corruption, DiskFull
from esker.format import columns as cols
from esker.format import frame
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.columns import Body, Columns, from_lists
from esker.options import FRAME_BYTES_TARGET
from esker.storage import blank, scan
from esker.storage.blank import ROW_BYTES, copy_blank, held, temporary
from esker.storage.hole import encode_hole
from esker.storage.log import LogSegment, open_log
from esker.storage.maps import Maps
from esker.storage.marks import Marks, UnknownMarks, blocks_of
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment
from esker.storage.segment import NO_COMPRESSION, Compress
from esker.upkeep.examine import directory_flaw, examine
from tests.helpers import Refusing
from tests.unit.storage.made import (
    CONFIG,
    FOLDER,
    NOW,
    body,
    disk,
    filled,
    flip,
    log_on,
    sealed_on,
)

ZSTD = Compress(frame.ZSTD)
BASE = 100  # of the segments that `log_on` makes


def deleted(rows: Iterable[int]) -> Marks:
    marks = Marks()
    marks.add(blocks_of(BASE + row for row in rows))
    return marks


def rich(first: int, count: int) -> Body:
    """Records with all that a record can carry; no two are the same, and times go up and down."""
    extras = {
        n - first: (
            b"key %d" % n if n % 3 else None,
            f"tag {n}" if n % 2 else None,
            f"node {n}" if n % 5 == 0 else None,
            {f"header {n}": b"%d" % n, "empty": b""} if n % 4 == 0 else None,
            NOW + n * 1_000 - (50_000 if n % 7 == 3 else 0),
        )
        for n in range(first, first + count)
    }
    values = [b"" if n % 11 == 5 else b"value %d" % n * 9 for n in range(first, first + count)]
    return from_lists(values, extras, NOW)


def as_rows(columns: Columns) -> list[tuple[Any, ...]]:
    """value, timestamp, key, tag, node and headers of every row."""
    count = columns.count
    optional = (columns.keys, columns.tags, columns.nodes)
    cells = ([None] * count if each is None else each.to_pylist() for each in optional)
    headers = [[]] * count if columns.headers is None else columns.headers.to_pylist()
    stamps = cols.timestamp_array(columns).to_pylist()
    return list(zip(columns.values.to_pylist(), stamps, *cells, headers, strict=True))


def rows_of(segment: SealedSegment) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while len(found) < segment.rows:
        row, columns = segment.read(len(found), segment.rows, 1 << 20)
        assert row == len(found)
        found += as_rows(columns)
    return found


def without(rows: list[tuple[Any, ...]], dead: Iterable[int]) -> list[tuple[Any, ...]]:
    """What is to be left of them: of a dead one, its time."""
    gone = set(dead)
    return [
        (b"", row[1], None, None, None, []) if number in gone else row
        for number, row in enumerate(rows)
    ]


def frames_of(segment: SealedSegment) -> list[frame.Header]:
    """The headers of all frames before the footer."""
    data, inside = segment.inside()
    position, found = fmt.HEADER_SIZE, []
    while position < inside.footer.data_end:
        header = frame.decode_header(data, position, position, inside.header.salt)
        assert isinstance(header, frame.Header)
        found.append(header)
        position += header.size
    return found


def opened(files: MemoryFiles, segment: SealedSegment) -> SealedSegment:
    return SealedSegment(segment.path, segment.name).attach(Maps(files, 1 << 30))


def copied(
    files: MemoryFiles, segment: SealedSegment, marks: Marks, how: Compress = NO_COMPRESSION
) -> SealedSegment:
    """The copy in its segment's place: a sealed segment like any other, and the same chain."""
    old, header = segment.footer, segment.header
    size = copy_blank(files, segment, marks, how)
    assert size == len(files.files[temporary(segment)])
    files.rename(temporary(segment), segment.path)
    seen = examine(files, FOLDER, segment.name)
    assert (seen.flaws, seen.holes, seen.untidy, seen.unfinished) == ([], [], [], -1)
    assert (seen.header_flaw, seen.footer_flaw, directory_flaw(seen)) == ("", "", "")
    assert seen.hash_matches
    assert (seen.header, seen.config, seen.size) == (header, CONFIG, size)
    assert seen.rows == seen.readable == old.records
    made = opened(files, segment)
    assert not made.rebuilt
    new = made.footer
    assert (new.records, new.chain, new.value_bytes) == (old.records, old.chain, old.value_bytes)
    assert (new.min_timestamp, new.max_timestamp) == (old.min_timestamp, old.max_timestamp)
    return made


@pytest.fixture
def files() -> MemoryFiles:
    return disk()


@pytest.fixture
def segment(files: MemoryFiles) -> SealedSegment:
    """Four frames of twenty rows, as they were written."""
    log = log_on(files)
    for first in range(0, 80, 20):
        log.append([rich(first, 20)])
    return sealed_on(files, log, merging=False)


DEAD = {
    "none": [],
    "all": range(80),
    "the first": [0],
    "the last": [79],
    "every other": range(0, 80, 2),
    "all but one": [n for n in range(80) if n != 47],
    "one whole frame": range(20, 40),
    "one whole frame, and some": [*range(20, 40), 41, 43, 79],
    "across frames": range(15, 65),
    "those with headers": range(0, 80, 4),
    "those with tags": range(1, 80, 2),
}


@pytest.mark.parametrize("how", [NO_COMPRESSION, ZSTD], ids=["plain", "zstd"])
@pytest.mark.parametrize("which", DEAD)
def test_the_dead_are_blank_and_the_rest_is_as_it_was(
    files: MemoryFiles, segment: SealedSegment, which: str, how: Compress
) -> None:
    dead = list(DEAD[which])
    before = rows_of(segment)
    prefix = bytes(segment.data()[: segment.footer.positions[0]])
    times = range(NOW - 60_000, NOW + 90_000, 777)
    found = [segment.find_time(time, 80) for time in times]
    made = copied(files, segment, deleted(dead), how)
    assert rows_of(made) == without(before, dead)
    assert [as_rows(made.at(row)[0])[made.at(row)[1]] for row in range(80)] == rows_of(made)
    assert [made.find_time(time, 80) for time in times] == found
    assert bytes(made.data()[: made.footer.positions[0]]) == prefix


def test_no_byte_of_the_dead_is_left(files: MemoryFiles) -> None:
    """Not even where nobody looks, as below a cell that is null."""
    log = log_on(files)
    secret = (b"secret", "secret", "secret", {"secret": b"secret"}, None)
    plain = (b"key", "tag", "node", {"header": b"cell"}, None)
    for _ in range(2):
        extras = {n: secret if n % 3 == 1 else plain for n in range(12)}
        log.append(
            [from_lists([b"secret" if n % 3 == 1 else b"v" * 99 for n in extras], extras, 5)]
        )
    segment = sealed_on(files, log, merging=False)
    assert segment.data().count(b"secret") == 8 * 6
    made = copied(files, segment, deleted(range(1, 24, 3)))
    assert codecs(made) == [frame.PLAIN]
    assert b"secret" not in made.data()
    for text in (b"key", b"tag", b"node", b"header", b"cell", b"v" * 99):
        assert made.data().count(text) >= 16


def test_a_copy_of_the_copy_is_the_copy(files: MemoryFiles, segment: SealedSegment) -> None:
    marks = deleted(range(10, 60))
    made = copied(files, segment, marks)
    once = bytes(made.data())
    assert bytes(copied(files, made, marks).data()) == once


def test_what_is_deleted_later_goes_from_a_copy(files: MemoryFiles, segment: SealedSegment) -> None:
    before = rows_of(segment)
    made = copied(files, segment, deleted(range(30)))
    made = copied(files, made, deleted(range(60)))
    assert rows_of(made) == without(before, range(60))


def test_rows_of_one_time_stay_rows_of_one_time(files: MemoryFiles) -> None:
    segment = sealed_on(files, filled(files, frames=3), merging=False)
    made = copied(files, segment, deleted([0, 3]))
    seconds = [(row[1] - NOW) // 1_000_000 for row in rows_of(made)]
    assert seconds == [0, 0, 1, 1, 2, 2]
    assert [row[0] for row in rows_of(made)] == [
        b"", b"0000000001", b"0000000002", b"", b"0000000004", b"0000000005",
    ]  # fmt: skip


def test_an_empty_segment_is_copied_as_it_is(files: MemoryFiles) -> None:
    segment = sealed_on(files, log_on(files))
    assert held(segment, deleted([0])) == 0
    before = bytes(segment.data())
    assert bytes(copied(files, segment, deleted([0])).data()) == before


# ---- columns ---------------------------------------------------------------------------------


def columns_of(made: Body) -> Columns:
    data = pa.py_buffer(b"".join(bytes(part) for part in made.parts))
    return cols.decode(data, made.bits, made.count, made.min_timestamp)


def test_a_column_that_only_dead_rows_had_is_left_out() -> None:
    columns = columns_of(rich(0, 20))
    assert columns.bits == 31
    everyone = blank.blank(columns, pa.array([True] * 20))
    assert everyone.bits == cols.TIMESTAMPS
    assert everyone.values.to_pylist() == [b""] * 20
    for bit, column in (
        (cols.KEYS, columns.keys), (cols.TAGS, columns.tags), (cols.NODES, columns.nodes),
        (cols.HEADERS, columns.headers),
    ):  # fmt: skip
        dead = [bool(cell) for cell in column.to_pylist()]
        assert True in dead
        left = blank.blank(columns, pa.array(dead))
        assert not left.bits & bit
        one = dead.index(True)
        dead[one] = False
        left = blank.blank(columns, pa.array(dead))
        assert left.bits & bit
        assert as_rows(left)[one] == as_rows(columns)[one]


def test_a_column_that_nobody_has_is_not_made_up() -> None:
    columns = columns_of(body(b"one", b"two"))
    left = blank.blank(columns, pa.array([True, False]))
    assert left.bits == 0
    assert as_rows(left) == [(b"", NOW, None, None, None, []), (b"two", NOW, None, None, None, [])]


# ---- frames ----------------------------------------------------------------------------------


def test_frames_stand_for_themselves(files: MemoryFiles) -> None:
    """No MARK, no MORE, and each says that all before it is synced."""
    log = log_on(files)
    log.mark()
    log.append([rich(0, 20), rich(20, 20), rich(40, 20)])
    log.mark()
    segment = sealed_on(files, log, merging=False)
    kinds = [header.kind for header in frames_of(segment)]
    assert kinds.count(frame.MARK) == 2
    assert any(header.flags & frame.MORE for header in frames_of(segment))
    before = rows_of(segment)
    made = copied(files, segment, deleted(range(50)))
    assert rows_of(made) == without(before, range(50))
    config, *rest = frames_of(made)
    assert config.kind == frame.CONFIG
    assert {(header.kind, header.flags) for header in rest} == {(frame.DATA, 0)}
    assert [header.synced for header in rest] == list(made.footer.positions)


@pytest.mark.parametrize("frames", [4, 5, 6])
def test_small_frames_are_put_together_up_to_a_size(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    segment = sealed_on(files, filled(files, frames=frames), merging=False)
    before = rows_of(segment)
    monkeypatch.setattr(blank, "FRAME_BYTES_TARGET", 2 * 2 * (10 + ROW_BYTES))
    made = copied(files, segment, Marks())
    assert list(made.footer.first_rows) == list(range(0, 2 * frames, 4))
    assert rows_of(made) == before


def test_blank_rows_lie_together_in_large_frames_and_large_frames_are_split(
    files: MemoryFiles,
) -> None:
    log = log_on(files)
    half = FRAME_BYTES_TARGET // 2
    for n in range(4):
        log.append([body(*(b"%0*d" % (half, 6 * n + m) for m in range(6)), at=NOW + n)])
    segment = sealed_on(files, log, merging=False)
    before = rows_of(segment)
    dead = [*range(12), 20]
    made = copied(files, segment, deleted(dead))
    assert rows_of(made) == without(before, dead)
    first, second, *rest = made.footer.first_rows
    assert first == 0
    assert second > 12, "the blank rows of two frames, and some of the third"
    assert 18 in rest, "from here on there was enough again"
    sizes = [header.raw_size for header in frames_of(made) if header.kind == frame.DATA]
    assert len(sizes) == 4
    assert max(sizes) < 2 * FRAME_BYTES_TARGET < 6 * half


def codecs(segment: SealedSegment) -> list[int]:
    return [header.codec for header in frames_of(segment) if header.kind == frame.DATA]


@pytest.mark.parametrize(("last", "codec"), [(ROW_BYTES, frame.PLAIN), (11, frame.ZSTD)])
def test_frames_are_compressed_where_blank_rows_outweigh_what_is_left(
    files: MemoryFiles, last: int, codec: int
) -> None:
    """Fifty blank rows, and fifty that hold as much as these take, or a byte less."""
    log = log_on(files)
    log.append([body(*[b"dead" * 50] * 50, *[b"x" * ROW_BYTES] * 49, b"y" * last)])
    segment = sealed_on(files, log, merging=False)
    made = copied(files, segment, deleted(range(50)), NO_COMPRESSION)
    assert codecs(made) == [codec]


def test_else_frames_are_compressed_as_the_topic_asks(files: MemoryFiles) -> None:
    log = log_on(files)
    log.append([body(*[b"x" * 1_000] * 100)])
    segment = sealed_on(files, log, merging=False)
    before = rows_of(segment)
    for how, codec in (
        (ZSTD, frame.ZSTD), (NO_COMPRESSION, frame.PLAIN),
        (Compress(frame.ZSTD, min_bytes=1 << 20), frame.PLAIN),
    ):  # fmt: skip
        segment = copied(files, segment, deleted([5]), how)
        assert codecs(segment) == [codec]
        assert rows_of(segment) == without(before, [5])


def test_a_thousand_blank_rows_take_next_to_nothing(files: MemoryFiles) -> None:
    log = log_on(files)
    for n in range(10):
        log.append([body(*[b"value" * 20] * 1_000, at=NOW + n)])
    segment = sealed_on(files, log, merging=False)
    made = copied(files, segment, deleted(range(10_000)))
    begin = made.footer.positions[0]
    assert made.footer.data_end - begin < 2_000
    assert {row[0] for row in rows_of(made)} == {b""}


# ---- how much it is --------------------------------------------------------------------------


def test_what_dead_rows_hold_is_counted_in_every_column(files: MemoryFiles) -> None:
    log = log_on(files)
    carried = (b"k" * 30, "t" * 20, "n" * 10, {"h": b"1234", "head": b""}, None)
    log.append([from_lists([b"v" * 900, b"w" * 1_000], {0: carried}, NOW)])
    segment = sealed_on(files, log, merging=False)
    (header,) = (each for each in frames_of(segment) if each.kind == frame.DATA)
    stored = frame.HEADER_SIZE + header.raw_size
    first = 900 + 30 + 20 + 10 + len("h" + "1234" + "head")
    for dead, size in (([], 0), ([0], first), ([1], 1_000), ([0, 1], first + 1_000)):
        assert held(segment, deleted(dead)) == size * stored // header.raw_size


def test_what_is_deleted_elsewhere_or_blank_already_does_not_count(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    assert held(segment, Marks()) == 0
    assert held(segment, deleted([-1, 80, 500, 1 << 40])) == 0
    assert held(segment, deleted([-1, 7, 80])) > 0
    dead = deleted(range(40))
    assert held(segment, dead) > 0
    assert held(copied(files, segment, dead), dead) == 0


def test_in_a_compressed_segment_it_is_their_share(files: MemoryFiles) -> None:
    log = log_on(files)
    for _ in range(4):
        log.append([body(*[b"x" * 1_000] * 50)], ZSTD)
    segment = sealed_on(files, log, merging=False)
    footer = segment.footer
    stored = footer.data_end - footer.positions[0]
    assert stored < 2_000
    assert stored * 0.2 < held(segment, deleted(range(50))) <= stored * 0.25
    assert stored * 0.9 < held(segment, deleted(range(200))) <= stored


@pytest.mark.parametrize("where", ["header", "body"])
def test_damage_is_told_by_who_counts(
    files: MemoryFiles, segment: SealedSegment, where: str
) -> None:
    at = segment.footer.positions[2]
    flip(files, segment.path, at + (20 if where == "header" else frame.HEADER_SIZE + 3))
    with pytest.raises(Corruption, match=f"frame {where} does not match") as caught:
        held(opened(files, segment), deleted([0]))
    assert (caught.value.path, caught.value.position) == (segment.path, at)


# ---- what is not whole is not copied ---------------------------------------------------------


def refused(files: MemoryFiles, segment: SealedSegment, why: str, marks: Marks) -> None:
    before = bytes(files.files[segment.path])
    with pytest.raises(Corruption, match=why):
        copy_blank(files, segment, marks, NO_COMPRESSION)
    assert list(files.files) == [segment.path], "nothing is left beside it"
    assert bytes(files.files[segment.path]) == before


def hashed(files: MemoryFiles, segment: SealedSegment, footer: int | None = None) -> SealedSegment:
    """The file with the hash of what it is now: what is wrong has been wrong when it was sealed."""
    data = files.files[segment.path]
    position = segment.footer.data_end if footer is None else footer
    told = fmt.encode_trailer(position, checksum(bytes(data[: -fmt.TRAILER_SIZE])))
    data[-fmt.TRAILER_SIZE :] = told
    return opened(files, segment)


def test_any_bit_that_is_not_as_it_was_is_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    footer, size = segment.footer, len(segment.data())
    for at in (
        fmt.HEADER_SIZE + 70, footer.positions[0] + 9, footer.positions[1] + frame.HEADER_SIZE,
        footer.data_end + 9, footer.data_end + 70, size - 30, size - 12,
    ):  # fmt: skip
        flip(files, segment.path, at)
        refused(files, opened(files, segment), "does not match its hash", deleted([0]))
        flip(files, segment.path, at)
    copied(files, segment, deleted([0]))


def test_a_segment_whose_directory_was_rebuilt_is_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    again = hashed(files, segment, footer=segment.footer.positions[0])
    assert again.rows == 80
    assert again.rebuilt
    refused(files, again, "does not match its hash", deleted([0]))


def test_a_hole_is_refused(files: MemoryFiles, segment: SealedSegment) -> None:
    at, end = segment.footer.positions[1:3]
    files.files[segment.path][at:end] = encode_hole(at, end, segment.header.salt, 20, 20)
    refused(files, hashed(files, segment), "records of it are lost", deleted([0]))


def test_damage_that_was_sealed_in_is_refused(files: MemoryFiles, segment: SealedSegment) -> None:
    flip(files, segment.path, segment.footer.positions[1] + 20)
    refused(files, hashed(files, segment), "records of it are lost", deleted([0]))


def test_a_segment_without_its_config_is_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    data, at, salt = files.files[segment.path], fmt.HEADER_SIZE, segment.header.salt
    config = frames_of(segment)[0]
    head, _ = frame.encode_header(
        kind=frame.MARK, position=at, salt=salt, body_size=config.body_size,
        raw_size=config.raw_size, body_checksum=config.body_checksum,
    )  # fmt: skip
    data[at : at + frame.HEADER_SIZE] = head
    refused(files, hashed(files, segment), "records of it are lost", deleted([0]))


@pytest.mark.parametrize(
    ("number", "why"),
    [(0, "rows are missing"), (2, "rows are missing"), (3, "rows or times are missing")],
)
def test_a_segment_that_a_recovery_sealed_around_damage_is_refused(
    files: MemoryFiles, number: int, why: str
) -> None:
    """The hash is right and every header, too; but a body is not, and no directory names it."""
    log = filled(files)
    flip(files, log.path, log.directory.positions[number] + frame.HEADER_SIZE)
    file, header = open_log(files, log.path)
    assert isinstance(header, fmt.SegmentHeader)
    again = LogSegment(header, file)
    again.adopt(scan.verdict(scan.walk(file, header.salt, fmt.HEADER_SIZE), log.end))
    assert again.damaged
    segment = sealed_on(files, again)
    assert len(segment.footer.positions) == 3
    refused(files, segment, why, deleted([0]))


def test_times_that_are_not_those_of_the_footer_are_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    inside = segment.inside()[1]
    for name in ("min_timestamp", "max_timestamp"):
        footer = inside.footer._replace(**{name: 0})
        segment._inside = inside._replace(footer=footer)
        refused(files, segment, "rows or times are missing", deleted([0]))


def test_nothing_is_copied_when_nobody_knows_what_is_deleted(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    marks = UnknownMarks(Corruption("damaged", path="/deletions"))
    refused(files, segment, "which records were deleted is not known", marks)
    with pytest.raises(Corruption, match="which records were deleted is not known"):
        held(segment, marks)


# ---- the file --------------------------------------------------------------------------------


def test_the_copy_is_synced_and_lies_beside_its_segment(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    before = bytes(segment.data())
    watched = Refusing(files)
    copy_blank(watched, segment, deleted([0]), NO_COMPRESSION)
    target = segment.path + ".tmp"
    assert temporary(segment) == target
    assert sorted(files.files) == [segment.path, target]
    assert bytes(files.files[segment.path]) == before
    assert watched.calls[0] == ("create", target)
    assert watched.calls[-1] == ("sync", target)
    assert {call for call, _ in watched.calls} == {"create", "write", "sync"}


def test_what_an_earlier_copy_left_is_in_nobodys_way(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    before = rows_of(segment)
    files.files[temporary(segment)] = bytearray(b"left by a crash" * 10_000)
    made = copied(files, segment, deleted([3]))
    assert rows_of(made) == without(before, [3])


@pytest.mark.parametrize("call", ["create", "write", "sync"])
def test_without_room_nothing_is_left_of_it(
    files: MemoryFiles, segment: SealedSegment, call: str
) -> None:
    full = Refusing(files)
    full.refuse(call, errno.ENOSPC)
    with pytest.raises(DiskFull):
        copy_blank(full, segment, deleted([0]), NO_COMPRESSION)
    assert list(files.files) == [segment.path]


def test_what_went_wrong_first_is_told_and_what_is_left_goes_the_next_time(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    full = Refusing(files)
    full.refuse("sync", errno.ENOSPC)
    full.refuse("unlink", errno.EIO)
    with pytest.raises(DiskFull):
        copy_blank(full, segment, deleted([0]), NO_COMPRESSION)
    assert temporary(segment) in files.files
    copied(files, segment, deleted([0]))
    assert list(files.files) == [segment.path]


def test_an_interrupt_leaves_nothing_and_the_file_is_closed(
    files: MemoryFiles, segment: SealedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    def opening(path: str, mode: Any) -> Any:
        file = Refusing(files).open(path, mode)
        file.close = lambda: closed.append(path)  # type: ignore[attr-defined]
        return file

    watched = Refusing(files)
    monkeypatch.setattr(watched, "open", opening)
    monkeypatch.setattr(blank, "pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy_blank(watched, segment, deleted([0]), NO_COMPRESSION)
    assert list(files.files) == [segment.path]
    assert closed == [temporary(segment)]
