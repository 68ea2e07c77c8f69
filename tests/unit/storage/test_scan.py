"""Walking frames: every way a walk can end, and what it means."""

from __future__ import annotations

import pytest

from esker.format import frame
from esker.format import segment as fmt
from esker.storage import scan
from esker.storage.log import LogSegment
from esker.storage.memory import MemoryFiles
from tests.unit.storage.made import body, disk, filled, flip, log_on


@pytest.fixture
def files() -> MemoryFiles:
    return disk()


@pytest.fixture
def log(files: MemoryFiles) -> LogSegment:
    return filled(files)


def walk(log: LogSegment, **how: bool) -> scan.Walk:
    return scan.walk(log.file, log.salt, fmt.HEADER_SIZE, **how)


def test_a_whole_log_ends_cleanly(log: LogSegment) -> None:
    seen = walk(log)
    assert (seen.flaws, seen.end, seen.size) == ([], log.end, log.end)
    kept = scan.verdict(seen, 0)
    assert (kept.end, kept.rows, kept.corrupt, kept.torn, kept.dropped) == (log.end, 8, [], None, 0)


def test_zeros_behind_the_end_are_room_and_no_flaw_to_speak_of(log: LogSegment) -> None:
    log.file.allocate(log.end + 3_000_000)  # more than the walker reads at once
    kept = scan.verdict(walk(log), 0)
    assert (kept.end, kept.torn, kept.dropped) == (log.end, None, 0)


@pytest.mark.parametrize("more", [1, 8, 63])
def test_a_few_zeros_are_room_as_well(log: LogSegment, more: int) -> None:
    log.file.allocate(log.end + more)
    assert scan.verdict(walk(log), 0).torn is None


def test_zeros_below_what_was_durable_are_corruption(log: LogSegment) -> None:
    end = log.end
    log.file.allocate(end + 100)
    kept = scan.verdict(walk(log), end + 100)
    assert [flaw.reason for flaw in kept.corrupt] == ["zeros where a frame should be"]
    assert kept.end == end + 100


def test_zeros_and_then_something_are_a_torn_tail(log: LogSegment) -> None:
    log.file.allocate(log.end + 2_500_000)
    log.file.write(log.end + 2_400_000, [b"left by another file"])
    kept = scan.verdict(walk(log), 0)
    assert kept.torn is not None
    assert not kept.torn.zero
    assert kept.end == log.end


@pytest.mark.parametrize("left", [1, 63, 64, 70])
def test_half_a_frame_is_a_torn_tail(log: LogSegment, left: int) -> None:
    last = log.directory.positions[-1]
    log.file.truncate(last + left)
    kept = scan.verdict(walk(log), 0)
    assert kept.torn is not None
    assert (kept.torn.position, kept.end, kept.rows) == (last, last, 6)
    assert kept.dropped == (2 if left >= 64 else 0)


@pytest.mark.parametrize("bodies", [True, False])
def test_a_damaged_header_costs_its_frame_only(
    files: MemoryFiles, log: LogSegment, bodies: bool
) -> None:
    second, third = log.directory.positions[1:3]
    flip(files, log.path, second + 30)
    seen = walk(log, bodies=bodies)
    assert [(flaw.position, flaw.end, flaw.header) for flaw in seen.flaws] == [
        (second, third, None)
    ]
    assert len(seen.frames) == 4


def test_a_damaged_body_is_seen_when_bodies_are(files: MemoryFiles, log: LogSegment) -> None:
    second = log.directory.positions[1]
    flip(files, log.path, second + frame.HEADER_SIZE)
    assert not walk(log, bodies=False).flaws
    flaw = walk(log).flaws[0]
    assert (flaw.position, flaw.header is not None) == (second, True)


def test_the_same_flaw_is_torn_above_what_was_durable_and_corrupt_below(
    files: MemoryFiles, log: LogSegment
) -> None:
    second = log.directory.positions[1]
    flip(files, log.path, second + frame.HEADER_SIZE)
    above = scan.verdict(walk(log), second)
    assert above.torn is not None
    assert (above.end, above.rows, above.dropped) == (second, 2, 6)
    below = scan.verdict(walk(log), second + 8)
    assert below.torn is None
    assert (below.end, below.rows, len(below.corrupt)) == (log.end, 8, 1)
    proven = log.directory.positions[3]
    log.sync(proven)
    log.append([body(b"8")])
    watermark = scan.verdict(walk(log), 0)
    assert len(watermark.corrupt) == 1, "a later frame proves that this one was durable"


def test_a_batch_without_its_last_frame_goes_as_a_whole(files: MemoryFiles) -> None:
    log = log_on(files)
    log.append([body(b"0")])
    log.append([body(b"1"), body(b"2"), body(b"3")])
    first, last = log.directory.positions[1], log.directory.positions[3]
    log.file.truncate(last)
    kept = scan.verdict(walk(log), 0)
    assert kept.torn is not None
    assert kept.torn.reason == "a batch whose last frame is missing"
    assert (kept.end, kept.rows, kept.dropped) == (first, 1, 2)
    durable = scan.verdict(walk(log), last)  # a part of a batch that was durable is damage
    assert (durable.end, durable.rows) == (last, 3)


# ---- looking for the next frame ----------------------------------------------------------------


def test_a_magic_that_is_no_frame_is_passed_over(files: MemoryFiles) -> None:
    log = log_on(files)
    begin = log.end
    log.append([body(b"123" + frame.MAGIC + b"\0" * 70 + frame.MAGIC * 30)])
    after = log.end
    log.append([body(b"found")])
    flip(files, log.path, begin + 30)
    flaw = walk(log).flaws[0]
    assert (flaw.position, flaw.end) == (begin, after)


@pytest.mark.parametrize("window", [72, 128, 1000])
def test_a_frame_is_found_wherever_it_lies_in_the_window(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    log = log_on(files)
    begin = log.end
    log.append([body(frame.MAGIC * 700)])
    after = log.end
    log.append([body(b"found")])
    flip(files, log.path, begin + 30)
    monkeypatch.setattr(scan, "_WINDOW", window)
    flaw = walk(log).flaws[0]
    assert (flaw.position, flaw.end) == (begin, after)


def test_where_nothing_follows_nothing_is_found(log: LogSegment) -> None:
    window = scan.Window(log.file, log.end)
    assert scan.find_frame(window, log.salt, log.end + 100) is None
    assert scan.find_frame(window, log.salt + 1, fmt.HEADER_SIZE) is None
    assert scan.find_frame(window, log.salt, fmt.HEADER_SIZE) == fmt.HEADER_SIZE


class Trimmed:
    """A log whose writer gives back the room behind its end just before the nth read."""

    def __init__(self, log: LogSegment, nth: int, size: int) -> None:
        self._log, self._left, self._size, self.reads = log, nth, size, 0

    def size(self) -> int:
        return self._log.file.size()

    def read(self, position: int, size: int) -> bytes:
        self.reads += 1
        assert self.reads < 100, "it reads for ever"
        self._left -= 1
        if self._left == 0:
            self._log.file.truncate(self._size)
        return self._log.file.read(position, size)


@pytest.mark.parametrize("bodies", [True, False])
@pytest.mark.parametrize("rest", [b"", frame.MAGIC * 50_000])
def test_a_log_may_become_shorter_under_a_walk(log: LogSegment, bodies: bool, rest: bytes) -> None:
    before = walk(log).frames
    nth = reads = 0
    while nth <= reads:
        nth += 1
        log.file.allocate(log.end + 4_000_000)
        log.file.write(log.end + 8, [rest])
        trimmed = Trimmed(log, nth, log.end)
        seen = scan.walk(trimmed, log.salt, fmt.HEADER_SIZE, bodies=bodies)
        reads = trimmed.reads
        assert seen.frames == before
        assert seen.end == log.end
        log.file.truncate(log.end)
    assert reads > 3


def test_a_frame_that_is_cut_under_a_walk_is_not_shown(log: LogSegment) -> None:
    *_, (last, _) = walk(log).frames
    seen = scan.walk(Trimmed(log, 1, last + frame.HEADER_SIZE), log.salt, fmt.HEADER_SIZE)
    assert seen.end == last
    assert [flaw.reason for flaw in seen.flaws] == ["the file ends inside a frame"]
