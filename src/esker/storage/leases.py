"""The log of a shard's leases on disk: many processes append to it, one at a time.

Whoever uses it holds the mutex of its shard. He first reads what others have appended since
(`more`), then appends one frame. A frame is there or it is not; nothing is ever cut or written
over. When a file has grown long, the next one begins with all that counts:

    ENDED behind the last frame of file 3       from here on nobody writes to it
    leases-4, by rename, complete and synced    its first event is a SNAPSHOT

Whoever dies between the two leaves a log that has ended; the next one to come begins the new file.
Older files are history, and go when they are old.

A file that cannot be read to its end is not written to again, be it that a holder died while he
wrote, or that bits have turned. All that can be read of it counts (see queues/leases.py for why
that loses no job), the next file begins, and the flaw is told. A file that was damaged, and not
just torn at its end, is left to the caller to be set aside. If the snapshot of a file cannot be
read, the files before it are read too; without any of them, the log begins where its events do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from esker.errors import Corruption, FormatTooNew
from esker.format import leases as fmt
from esker.format import names
from esker.format import queue as queue_format
from esker.format.frame import padded
from esker.format.leases import Ended, Event, Flaw, LeasesHeader, Snapshot, Told
from esker.format.queue import QueueOptions
from esker.storage.files import File, Files, content_of, join, replace_file, size_of


class Owner(NamedTuple):
    """Whose leases they are."""

    store: bytes
    topic: int
    shard: int


class Trouble(NamedTuple):
    """A part of the log that could not be read."""

    path: str
    position: int
    reason: str
    torn: bool  # at the end of the log, as a crash may leave it


class Readable(NamedTuple):
    """All that can be read of one file."""

    number: int
    path: str
    salt: int
    size: int
    told: list[Told]
    troubles: list[Trouble]

    @property
    def begins(self) -> bool:
        """Whether it stands on its own."""
        return bool(self.told) and isinstance(self.told[0].events[0], Snapshot)


class LeaseLog:
    """The leases of one shard."""

    def __init__(self, files: Files, folder: str, owner: Owner, *, writable: bool = True) -> None:
        self._files = files
        self._writable = writable
        self._folder = folder
        self._owner = owner
        self._file: File | None = None
        self._salt = 0
        self.number = 0
        self.end = 0
        self.synced = 0  # up to here by this process, at the least
        self.ended = False  # the next file goes on, and is to be begun if it is not there

    @property
    def path(self) -> str:
        return join(self._folder, names.leases(self.number))

    # ---- reading -------------------------------------------------------------------------

    def load(self) -> tuple[list[Told], list[Trouble]]:
        """Everything from the newest snapshot on, and what could not be read.

        The newest file is the one to go on with, unless it has ended or cannot be read to its end:
        then it counts as ended, and `begin` makes the next one.
        """
        self.close()
        self.number = 0
        used: list[Readable] = []
        for number in reversed(numbers(self._files, self._folder)):
            used.insert(0, self._read(number))
            if used[0].begins:
                break
        if not used:
            return [], []
        newest = used[-1]
        told = [one for each in used for one in each.told]
        troubles = [one for each in used for one in each.troubles]
        if not used[0].begins:
            reason = "no snapshot can be read: jobs that were done may come again"
            troubles.append(Trouble(used[0].path, 0, reason, torn=False))
        self.number, self._salt = newest.number, newest.salt
        self.end = newest.told[-1].end if newest.told else 0
        self.synced = 0
        self.ended = bool(troubles) or _has_ended(newest.told)
        if _has_ended(newest.told) and not troubles:
            reason = "the next file is not there: a crash kept it from being made, or it is missing"
            troubles.append(Trouble(newest.path, self.end, reason, torn=True))
        self._file = self._files.open(newest.path, "rw" if self._writable else "r")
        return told, troubles

    def _read(self, number: int) -> Readable:
        path = join(self._folder, names.leases(number))
        data = content_of(self._files, path)
        header = fmt.decode_header(data)
        if not isinstance(header, str):
            owner = Owner(header.store, header.topic, header.shard)
            if (owner, header.number) != (self._owner, number):
                header = "the leases of another shard"
        if isinstance(header, str):
            if header.startswith("version"):
                raise FormatTooNew(f"{path} was written by a later Esker ({header})")
            trouble = Trouble(path, 0, header, torn=False)
            return Readable(number, path, 0, len(data), [], [trouble])
        told, flaws = salvage(data, header.salt)
        if not flaws and not (told and isinstance(told[0].events[0], Snapshot)):
            flaws = [Flaw(fmt.HEADER_SIZE, "a file without a snapshot")]
        troubles = [
            Trouble(path, flaw.position, flaw.reason, torn=bool(told) and flaw is flaws[-1]
                    and flaw.position >= told[-1].end)
            for flaw in flaws
        ]  # fmt: skip
        return Readable(number, path, header.salt, len(data), told, troubles)

    def more(self) -> list[Told] | None:
        """What others have appended; None if it must be loaded anew."""
        file = self._file
        if file is None:
            return None
        size = file.size()
        if size == self.end:
            return []
        data = file.read(self.end, max(size - self.end, 0))
        told = list(fmt.decode_frames(data, 0, self.end, self._salt))
        found = [one for one in told if isinstance(one, Told)]
        if not found or len(found) < len(told) or _has_ended(found):
            return None  # it goes on elsewhere, or cannot be read
        self.end = found[-1].end
        return found

    def history(self) -> Iterator[Told]:
        """Everything that is on record, the oldest first."""
        for number in numbers(self._files, self._folder):
            yield from self._read(number).told

    # ---- writing -------------------------------------------------------------------------

    def append(self, events: Sequence[Event], now_us: int) -> None:
        """Write one frame behind the others. If it fails, it has not happened."""
        assert self._file is not None
        assert not self.ended
        data = fmt.encode_frame(events, self.end, self._salt, now_us, self.synced)
        self._file.write(self.end, [data])
        self.end += len(data)

    def begin(self, snapshot: Snapshot, salt: int, now_us: int) -> None:
        """Go on in the next file, which is there and durable when this returns."""
        if self._file is not None and not self.ended:
            self.append([Ended(self.number + 1)], now_us)
            self.ended = True
        elif self._file is not None:
            self._seal(now_us)
        number = self.number + 1
        head = fmt.encode_header(
            LeasesHeader(number, self._owner.topic, self._owner.shard, self._owner.store, salt)
        )
        data = head + fmt.encode_frame([snapshot], len(head), salt, now_us)
        path = join(self._folder, names.leases(number))
        replace_file(self._files, path, data)
        self.close()
        self._file = self._files.open(path, "rw")
        self.number, self._salt, self.ended = number, salt, False
        self.end = self.synced = len(data)

    def _seal(self, now_us: int) -> None:
        """Tell those who have a damaged file open that it has ended: where it ends for them.

        If its salt is not known any more, this is no frame to them, and they load it anew, too.
        """
        assert self._file is not None
        at = padded(self._file.size())
        self._file.write(at, [fmt.encode_frame([Ended(self.number + 1)], at, self._salt, now_us)])

    def sync(self) -> None:
        """Make what was written durable. If it fails, it must not be tried again."""
        if self._file is not None and self.synced < self.end:
            end, number = self.end, self.number
            self._file.sync()
            if number == self.number:
                self.synced = max(self.synced, end)

    def trim(self, before_us: int, most_bytes: int) -> None:
        """Unlink files that are history, if they are too old or too much."""
        room = most_bytes
        for number in reversed(numbers(self._files, self._folder)):
            if number >= self.number:
                continue
            path = join(self._folder, names.leases(number))
            room -= size_of(self._files, path)
            if room < 0 or _last(self._files, path) < before_us:
                self._files.unlink(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _has_ended(told: list[Told]) -> bool:
    return bool(told) and isinstance(told[-1].events[-1], Ended)


def _last(files: Files, path: str) -> int:
    """When the last event of a file was."""
    data = content_of(files, path)
    header = fmt.decode_header(data)
    told = [] if isinstance(header, str) else salvage(data, header.salt)[0]
    return told[-1].when if told else 0


def salvage(data: bytes, salt: int) -> tuple[list[Told], list[Flaw]]:
    """Everything that can be read of a file, and the flaws between."""
    told: list[Told] = []
    flaws: list[Flaw] = []
    at: int | None = fmt.HEADER_SIZE
    while at is not None:
        flaw = None
        for one in fmt.decode_frames(data, at, at, salt):
            if isinstance(one, Flaw):
                flaw = one
                flaws.append(one)
            else:
                told.append(one)
        at = None if flaw is None else fmt.next_frame(data, flaw.position, salt)
    return told, flaws


def numbers(files: Files, folder: str) -> list[int]:
    """The files of a shard's leases."""
    found = (names.parse_leases(name) for name in files.list(folder))
    return sorted(number for number in found if number is not None)


# ---- what a queue is -------------------------------------------------------------------------


def load_settings(files: Files, folder: str, store: bytes, topic: int) -> QueueOptions | None:
    """The settings of a queue; None if the topic is none."""
    path = join(folder, names.SETTINGS)
    if not files.kind(path):
        return None
    most = queue_format.HEADER_SIZE + queue_format.BODY_BYTES_MAX
    found = queue_format.decode(content_of(files, path, most), store, topic)
    if isinstance(found, str):
        if found.startswith("version"):
            raise FormatTooNew(f"{path} was written by a later Esker ({found})")
        raise Corruption(
            found, path=path, advice="Restore the file from a backup; or delete it, and give "
            "store.queue(...) the options of the queue: its jobs and leases are not concerned."
        )  # fmt: skip
    return found


def save_settings(
    files: Files, folder: str, store: bytes, topic: int, options: QueueOptions
) -> None:
    """Make these the settings, durably."""
    replace_file(files, join(folder, names.SETTINGS), queue_format.encode(options, store, topic))
