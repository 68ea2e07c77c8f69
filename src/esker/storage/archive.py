"""An archive of a topic: Parquet files that any program can read, and the manifest that counts.

    ARCHIVE/topic=orders/
        _manifest.json                       format/archive.py; replaced as a whole
        _lock                                held by whoever archives
        partition=0/date=2026-11-15/00000000000000000000-00000000000000081920-HEX.parquet

Rules:

* A file is whole, synced and has its name durably before a manifest names it, and is never written
  again. What no manifest names is rubbish of somebody who was interrupted: the next one to archive
  removes it.
* Of two manifests the renaming decides. Whoever finds one syncs its directory before he removes
  what it no longer names: it may have been renamed by somebody who died before he could.
* Files that were merged into another stay, named as replaced, until somebody archives again, so
  that whoever still reads them comes to his end.
* A manifest that is damaged, or that is missing where files are, is an error. Nothing is removed.

`Archive` keeps these; `Days` and `merge` make the files. None of this knows where records come
from: whoever archives hands over Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from esker.errors import (
    Corruption,
    FormatTooNew,
    InvalidName,
    InvalidOption,
    StorageError,
    WriterBusy,
)
from esker.format import archive as fmt
from esker.format import names
from esker.format.archive import ArchivedFile, Manifest
from esker.format.checksum import Hasher, checksum
from esker.format.columns import HEADER_TYPE
from esker.storage.files import (
    File,
    Files,
    Holder,
    base_name,
    content_of,
    join,
    parent,
    replace_file,
)
from esker.storage.objects import is_url

ROW_GROUP_BYTES: Final = 32 << 20
OPEN_DAYS: Final = 16  # files that are written side by side; further days wait in memory
PIECE: Final = 1 << 20
COMPRESSIONS: Final = ("zstd", "snappy", "none")
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("headers", HEADER_TYPE),
        pa.field("tag", pa.string()),
        pa.field("node", pa.string()),
    ]
)
RESTORE: Final = "Restore the file from a backup; topic.archive(verify=True) looks at all of them."
_REPEATING: Final = ["key", "tag", "node", "headers.list.element.key"]
_COUNTING: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


class Archive:
    """The archive of one topic."""

    def __init__(self, files: Files, root: str, topic: str) -> None:
        self.root = root
        self.topic = topic
        self.folder = join(root, names.archived_topic(topic))
        self._files = files
        if len(base_name(self.folder)) > names.NAME_BYTES_MAX:
            raise InvalidName(f"the name of topic {topic!r} is too long for a directory")

    @property
    def manifest_path(self) -> str:
        return join(self.folder, names.MANIFEST)

    @property
    def lock_path(self) -> str:
        return join(self.folder, names.ARCHIVE_LOCK)

    def load(self) -> Manifest | None:
        """The manifest as it is now; None where nothing was archived."""
        path = self.manifest_path
        if not self._files.kind(path):
            orphans = any(name.endswith(".parquet") for _, name in self._lying())
            if orphans and not self._files.kind(path):
                raise Corruption(
                    "Parquet files and no manifest", path=path, reason="missing manifest",
                    advice="Nothing was touched. Restore it from a backup, or move the directory "
                    "away.",
                )  # fmt: skip
            if not orphans:
                return None
        found = fmt.decode(content_of(self._files, path))
        if isinstance(found, Manifest):
            return found
        if found.startswith("version"):
            raise FormatTooNew(
                f"{path} was written by a later Esker ({found}); nothing was touched"
            )
        raise Corruption(
            found, path=path,
            advice=f"Nothing was touched. Restore it from a backup; or move {self.folder} away, "
            "and what the log still has is archived anew.",
        )  # fmt: skip

    @contextmanager
    def held(self, note: str = "") -> Iterator[None]:
        """Hold the lock of whoever archives this topic."""
        self._make_folder()
        lock = self._files.lock(self.lock_path, note)
        if isinstance(lock, Holder):
            who = f"process {lock.pid}" if lock.pid else "another process"
            since = f" since {lock.since}" if lock.since else ""
            gone = f". If it is gone, delete {self.lock_path}" if is_url(self.root) else ""
            raise WriterBusy(
                f"{who} is archiving topic {self.topic!r} to {self.root}{since}; "
                f"wait until it is done, nothing has to be done twice{gone}",
                pid=lock.pid, since=lock.since,
            )  # fmt: skip
        try:
            yield
        finally:
            lock.release()

    def begin(self, store: str, topic_id: int) -> Manifest:
        """What there is, made fit to be added to. The lock must be held."""
        manifest = self.load()
        if manifest is None:
            return self.commit(fmt.new(store, self.topic, topic_id))
        check_owner(manifest, self.root, store, topic_id)
        self._files.sync_dir(self.folder)
        for path in manifest.replaced:
            if self._files.kind(join(self.folder, path)):
                self._files.unlink(join(self.folder, path))
        if manifest.replaced:
            manifest = self.commit(msgspec.structs.replace(manifest, replaced=()))
        self.sweep(manifest)
        return manifest

    def commit(self, manifest: Manifest) -> Manifest:
        """Make a manifest the one that counts, durably; returns it with its number."""
        for shard in sorted({file.shard for file in manifest.files}):
            self._files.sync_dir(join(self.folder, names.archived_shard(shard)))
        self._files.sync_dir(self.folder)
        made = msgspec.structs.replace(manifest, generation=manifest.generation + 1)
        replace_file(self._files, self.manifest_path, fmt.encode(made))
        return made

    def sweep(self, manifest: Manifest) -> int:
        """Remove files of Esker's that the manifest does not name; returns how many."""
        named = {file.path for file in manifest.files} | set(manifest.replaced)
        count = 0
        for folder, name in self._lying():
            if f"{folder}/{name}" not in named and names.is_archived(name):
                self._files.unlink(join(self.folder, folder, name))
                count += 1
        return count

    def path_of(self, file: ArchivedFile) -> str:
        return join(self.folder, file.path)

    def _lying(self) -> list[tuple[str, str]]:
        """Directory and name of all that lies where the files of days are."""
        found: list[tuple[str, str]] = []
        for shard in self._folders("", "partition="):
            for day in self._folders(shard, "date="):
                listed = self._files.list(join(self.folder, shard, day))
                found += [(f"{shard}/{day}", name) for name in sorted(listed)]
        return found

    def _folders(self, inside: str, begins: str) -> list[str]:
        folder = join(self.folder, inside) if inside else self.folder
        return [
            name
            for name in sorted(self._files.list(folder))
            if name.startswith(begins) and self._files.kind(join(folder, name)) == "dir"
        ]

    def _make_folder(self) -> None:
        make_dirs(self._files, self.folder)
        self._files.sync_dir(self.root)  # whoever made it may have died before he could
        self._files.sync_dir(parent(self.root))


def check_owner(manifest: Manifest, root: str, store: str, topic_id: int) -> None:
    """Refuse an archive that is of another store, or of a topic that had this name before."""
    if manifest.store != store:
        raise InvalidOption(
            f"{root} holds topic {manifest.topic!r} of another store ({manifest.store}, this is "
            f"{store}); name another directory with archive=..."
        )
    if manifest.topic_id != topic_id:
        raise InvalidOption(
            f"{root} holds an earlier topic {manifest.topic!r} (number {manifest.topic_id}), which "
            f"was deleted; the topic of that name now is number {topic_id}. Name another directory "
            "with archive=..., or move the old one away."
        )


def make_dirs(files: Files, path: str) -> None:
    """A directory and those above it, durably. Links above it are followed."""
    if files.kind(path) in ("dir", "link"):
        return
    make_dirs(files, parent(path))
    files.make_dir(path)
    files.sync_dir(parent(path))


# ---- looking at files ------------------------------------------------------------------------


def damage(files: Files, folder: str, file: ArchivedFile, *, deep: bool = True) -> str:
    """What is wrong with an archived file; "" if nothing is. `deep` reads all of it."""
    path = join(folder, file.path)
    if not files.kind(path):
        return f"{path} is missing"
    found = files.open(path, "r")
    try:
        size = found.size()
        if size != file.bytes:
            return f"{path} has {size} bytes, archived were {file.bytes}"
        if deep and _hash(found, size) != file.checksum:
            return f"{path} is not what was archived: its checksum does not match"
    finally:
        found.close()
    return ""


def check_file(files: Files, folder: str, file: ArchivedFile) -> None:
    """Corruption, if an archived file is missing or damaged."""
    wrong = damage(files, folder, file)
    if wrong:
        raise damaged(folder, file, wrong.removeprefix(join(folder, file.path) + " "))


def damaged(folder: str, file: ArchivedFile, what: str) -> Corruption:
    """What to say of a file that cannot be used."""
    return Corruption(
        f"an archived file {what}", path=join(folder, file.path), first=file.first,
        last=file.end - 1, reason=what, advice=RESTORE,
    )  # fmt: skip


def open_parquet(files: Files, folder: str, file: ArchivedFile) -> Any:
    """An archived file as a pyarrow.parquet.ParquetFile, all of it verified. None: not there.

    It stays readable whatever becomes of its name.
    """
    path = join(folder, file.path)
    if not files.kind(path):
        return None
    opened = files.open(path, "r")
    try:
        size = opened.size()
        if size != file.bytes:
            raise damaged(folder, file, f"has {size} bytes, archived were {file.bytes}")
        mapped = opened.map()
    finally:
        opened.close()
    if f"{checksum(mapped):016x}" != file.checksum:
        raise damaged(folder, file, "is not what was archived: its checksum does not match")
    parquet: Any = pq.ParquetFile  # has no types
    return parquet(pa.BufferReader(pa.py_buffer(mapped)))


def _hash(file: File, size: int) -> str:
    hasher = Hasher()
    for position in range(0, size, PIECE):
        hasher.update(file.read(position, min(PIECE, size - position)))
    return f"{hasher.digest():016x}"


# ---- making files ----------------------------------------------------------------------------


class _Out:
    """What pyarrow writes a file to: our door, with a checksum of all that passes.

    pyarrow hands over many small pieces; they are written together.
    """

    closed = False  # pyarrow asks

    def __init__(self, file: File) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._waiting = 0
        self.size = 0
        self.hasher = Hasher()

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.hasher.update(part)
        self._parts.append(part)
        self._waiting += len(part)
        self.size += len(part)
        if self._waiting >= PIECE:
            self.write_out()
        return len(part)

    def write_out(self) -> None:
        parts, self._parts = self._parts, []
        position, self._waiting = self.size - self._waiting, 0
        if parts:
            self._file.write(position, parts)


class Part:
    """One Parquet file in the making."""

    def __init__(self, files: Files, folder: str, shard: int, day: str, compression: str) -> None:
        self.shard, self.day = shard, day
        self._files = files
        self._folder = join(folder, names.archived_shard(shard), names.archived_day(day))
        self._compression = compression
        self._token = files.random(8)
        self._temporary = join(self._folder, names.archiving(self._token))
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._file: File | None = None
        self._out: _Out
        self._writer: Any = None
        self.rows = self.raw_bytes = 0
        self._first = self._end = 0
        self._low = self._high = 0

    def add(self, batch: Any, low: int, high: int) -> None:
        """Add records, whose times lie in low..high; their offsets are above all before."""
        offsets = batch.column(batch.schema.get_field_index("offset"))
        if not self.rows:
            self._first, self._low, self._high = offsets[0].as_py(), low, high
        self._end = offsets[-1].as_py() + 1
        self._low, self._high = min(self._low, low), max(self._high, high)
        self.rows += batch.num_rows
        self.raw_bytes += batch.nbytes
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def write(self, *, all_of_it: bool = False) -> None:
        """Write what waits, if it is enough for a row group."""
        if not self._waiting or (self._waiting_bytes < ROW_GROUP_BYTES and not all_of_it):
            return
        if self._file is None:
            self._open()
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waiting_bytes = [], 0

    def _open(self) -> None:
        make_dirs(self._files, self._folder)
        file = self._files.open(self._temporary, "create")
        self._out, self._file = _Out(file), file
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._out, mode="w"), SCHEMA, compression=self._compression,
            use_dictionary=_REPEATING, column_encoding=_COUNTING, write_page_checksum=True,
        )  # fmt: skip

    def finish(self) -> ArchivedFile:
        """Make it whole and durable, under its name."""
        self.write(all_of_it=True)
        assert self._file is not None, "a file without rows"
        self._writer.close()
        self._out.write_out()
        self._file.sync()
        self._file.close()
        name = names.archived(self._first, self._end, self._token)
        self._files.rename(self._temporary, join(self._folder, name))
        self._files.sync_dir(self._folder)
        return ArchivedFile(
            shard=self.shard, day=self.day, name=name, first=self._first, end=self._end,
            rows=self.rows, bytes=self._out.size, raw_bytes=self.raw_bytes,
            min_timestamp=self._low, max_timestamp=self._high,
            checksum=f"{self._out.hasher.digest():016x}",
        )  # fmt: skip

    def discard(self) -> None:
        """Forget it, after an error; what cannot be removed now is removed later."""
        if self._file is not None:
            if self._writer is not None:  # it writes what it has, which goes with the file
                with suppress(StorageError, pa.ArrowException):
                    self._writer.close()
            self._file.close()
            with suppress(StorageError):
                self._files.unlink(self._temporary)


class Days:
    """Records of one shard, in order, each to the file of its day."""

    def __init__(self, files: Files, folder: str, shard: int, compression: str = "zstd") -> None:
        self._files = files
        self._folder, self._shard, self._compression = folder, shard, compression
        self._parts: dict[int, Part] = {}

    def add(self, batch: Any) -> None:
        """Add a record batch of SCHEMA."""
        if not batch.num_rows:
            return
        low, high = _range(batch)
        if fmt.day_of(low) == fmt.day_of(high):
            self._add(fmt.day_of(low), batch, low, high)
            return
        days = _stamps(batch).view(pa.timestamp("us")).cast(pa.date32()).view(pa.int32())
        for day in sorted(pc.unique(days).to_pylist()):
            found = batch.filter(pc.equal(days, day))
            self._add(day, found, *_range(found))

    def _add(self, day: int, batch: Any, low: int, high: int) -> None:
        day = day if fmt.day_text(day) != fmt.NO_DAY else 1 << 40  # all those are one
        part = self._parts.get(day)
        if part is None:
            part = self._parts[day] = Part(
                self._files, self._folder, self._shard, fmt.day_text(day), self._compression
            )
        part.add(batch, low, high)
        if part.is_open or sum(each.is_open for each in self._parts.values()) < OPEN_DAYS:
            part.write()

    def finish(self) -> list[ArchivedFile]:
        """All files, whole and durable."""
        return [self._parts[day].finish() for day in sorted(self._parts)]

    def discard(self) -> None:
        for part in self._parts.values():
            part.discard()


def _stamps(batch: Any) -> Any:
    return batch.column(batch.schema.get_field_index("timestamp")).view(pa.int64())


def _range(batch: Any) -> tuple[int, int]:
    found = pc.min_max(_stamps(batch))
    return found["min"].as_py(), found["max"].as_py()


def write_days(
    files: Files, folder: str, shard: int, batches: Iterable[Any], compression: str = "zstd"
) -> list[ArchivedFile]:
    """Record batches of one shard as files below a topic's directory."""
    days = Days(files, folder, shard, compression)
    try:
        for batch in batches:
            days.add(batch)
        return days.finish()
    except BaseException:
        days.discard()
        raise


def merge(
    files: Files, folder: str, group: Sequence[ArchivedFile], compression: str = "zstd"
) -> ArchivedFile:
    """One file that has the records of several of the same shard and day, which stay."""
    part = Part(files, folder, group[0].shard, group[0].day, compression)
    try:
        for file in group:
            _copy(files, folder, file, part)
        return part.finish()
    except BaseException:
        part.discard()
        raise


def _copy(files: Files, folder: str, file: ArchivedFile, part: Part) -> None:
    source = open_parquet(files, folder, file)
    if source is None:
        raise damaged(folder, file, "is missing")
    for number in range(source.metadata.num_row_groups):
        table = source.read_row_group(number, use_threads=False).cast(SCHEMA)
        for batch in table.combine_chunks().to_batches():
            part.add(batch, *_range(batch))
        part.write()
