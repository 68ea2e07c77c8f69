"""The peers: LMDB, RocksDB and SQLite used as a log.

A log in a key-value store is a counter for a key: eight bytes, big-endian, so that byte order is
number order. In SQLite it is the integer primary key, which is the table's own order. Every peer
does the same five things:

    append_one_by_one   a loop over single records, committed every 4,000: buffered writing
    append_committed    a loop over single records, each committed before the next
    append_many         whole batches, one commit each
    read_all            every value in order, as bytes, with the checks the store does by default
    random_lookup       single values by their number

One durability for all, the one a log uses by default: a commit is in the page cache when the call
returns. It survives the death of the process, not of the machine. Nobody waits for the disk. With
`durable=True` everybody does: a commit returns when it survives the machine, too. Threads may share
a peer's `append_committed`, and nothing else.

The tuning below was found by trying, with values of about 100 bytes; each choice says why.
The libraries are imported when a peer is opened, so one that is absent costs only its column.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

COMMIT_EVERY = 4_000  # records in one commit of append_one_by_one
MAP_SIZE_BYTES = 1 << 36  # address space LMDB may grow into; costs nothing until it is used
MEMTABLE_SIZE_BYTES = 128 << 20
CACHE_SIZE_BYTES = 256 << 20

_key = struct.Struct(">Q").pack


class Tally(NamedTuple):
    """What a read returned, so that a benchmark can check that it read anything at all."""

    records: int
    size_bytes: int


class Peer(Protocol):
    """One store in one directory. Records are numbered from 0 in the order of their appends."""

    name: ClassVar[str]
    library: ClassVar[str]  # what must be importable
    configuration: ClassVar[str]  # for the results file

    def __init__(self, directory: Path, durable: bool = False) -> None: ...
    def append_one_by_one(self, values: Sequence[bytes]) -> None: ...
    def append_committed(self, values: Iterable[bytes]) -> None: ...
    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None: ...
    def settle(self) -> None:
        """Move appends to where a later reader finds them. Not timed; call it before reads."""

    def read_all(self) -> Tally: ...
    def random_lookup(self, offsets: Iterable[int]) -> Tally: ...
    def close(self) -> None: ...


class Lmdb:
    """LMDB, a memory-mapped B+tree.

    `sync=False` leaves writing back to the kernel; the pages are in its cache at commit. `writemap`
    was tried and left out: it was not faster here, and it lets a stray pointer write to the file.
    Keys arrive in order, so `append=True` skips the descent of the tree. LMDB has no checksums, so
    its reads verify nothing. Values come as bytes, which beats `buffers=True` at this size.
    """

    name: ClassVar[str] = "lmdb"
    library: ClassVar[str] = "lmdb"
    configuration: ClassVar[str] = (
        "sync=False (durable: True), writemap=False, MDB_APPEND, putmulti for batches"
    )

    def __init__(self, directory: Path, durable: bool = False) -> None:
        lmdb: Any = importlib.import_module("lmdb")
        directory.mkdir(parents=True, exist_ok=True)
        self._env = lmdb.open(
            str(directory), map_size=MAP_SIZE_BYTES, sync=durable, metasync=durable, max_dbs=0
        )
        self._next = self._env.stat()["entries"]

    def append_one_by_one(self, values: Sequence[bytes]) -> None:
        for commit in commits(values):
            with self._env.begin(write=True) as transaction:
                put = transaction.put
                for offset, value in enumerate(commit, self._next):
                    # dupdata, overwrite, append: by position, which saves a fifth of the call
                    put(_key(offset), value, True, True, True)
            self._next += len(commit)

    def append_committed(self, values: Iterable[bytes]) -> None:
        begin = self._env.begin
        for value in values:
            with begin(write=True) as transaction:  # one at a time: it guards the counter, too
                transaction.put(_key(self._next), value, True, True, True)
                self._next += 1

    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None:
        for batch in batches:
            keys = map(_key, itertools.count(self._next))
            with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(zip(keys, batch, strict=False), append=True)
            self._next += len(batch)

    def settle(self) -> None:
        """Nothing to do: a commit is already in the tree."""

    def read_all(self) -> Tally:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            return tally(cursor.iternext(keys=False, values=True))

    def random_lookup(self, offsets: Iterable[int]) -> Tally:
        with self._env.begin() as transaction:
            get = transaction.get
            return tally(get(_key(offset)) for offset in offsets)

    def close(self) -> None:
        self._env.close()


class RocksDb:
    """RocksDB, a log-structured merge tree, through rocksdict in raw mode (bytes in, bytes out).

    The write-ahead log is on and not synced. Buffered writing is a `WriteBatch`, the counterpart of
    the others' transaction; a plain `put` writes to the log each time and is what
    `append_committed` measures. No compression, because the others do none and the values of the
    benchmark are random; a large memtable, so that flushing is not part of an append; blocks of
    32 KiB and a block cache, which made reading a third faster. Blocks are verified when read.
    """

    name: ClassVar[str] = "rocksdb"
    library: ClassVar[str] = "rocksdict"
    configuration: ClassVar[str] = (
        "WAL unsynced (durable: synced), no compression, memtable 128 MiB, blocks 32 KiB, "
        "block cache 256 MiB"
    )

    def __init__(self, directory: Path, durable: bool = False) -> None:
        rocksdict: Any = importlib.import_module("rocksdict")
        self._new_batch: Callable[[], Any] = partial(rocksdict.WriteBatch, raw_mode=True)
        table = rocksdict.BlockBasedOptions()
        table.set_block_size(32 << 10)
        table.set_block_cache(rocksdict.Cache(CACHE_SIZE_BYTES))
        options = rocksdict.Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_write_buffer_size(MEMTABLE_SIZE_BYTES)
        options.set_max_write_buffer_number(4)
        directory.mkdir(parents=True, exist_ok=True)
        # Named for the default family too: without it, reopening falls back to an 8 MiB cache.
        families = {"default": options}
        self._store = rocksdict.Rdict(str(directory), options, column_families=families)
        if durable:
            writing = rocksdict.WriteOptions()
            writing.sync = True
            self._store.set_write_options(writing)
        last = next(iter(self._store.keys(backwards=True)), None)
        self._offsets = itertools.count(0 if last is None else int.from_bytes(last, "big") + 1)

    def append_one_by_one(self, values: Sequence[bytes]) -> None:
        self.append_many(commits(values))  # a batch is filled by single puts in any case

    def append_committed(self, values: Iterable[bytes]) -> None:
        put, offsets = self._store.put, self._offsets
        for value in values:
            put(_key(next(offsets)), value)

    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None:
        for values in batches:
            batch = self._new_batch()
            put = batch.put
            for value, offset in zip(values, self._offsets, strict=False):  # in this order
                put(_key(offset), value)
            self._store.write(batch)

    def settle(self) -> None:
        """Flush the memtable: a reader of a log that outgrew memory reads table files."""
        self._store.flush()

    def read_all(self) -> Tally:
        return tally(self._store.values())

    def random_lookup(self, offsets: Iterable[int]) -> Tally:
        get = self._store.get
        return tally(get(_key(offset)) for offset in offsets)

    def close(self) -> None:
        self._store.close()


class Sqlite:
    """SQLite, from the standard library.

    WAL mode, and `synchronous=OFF`: like the others, it does not wait for the disk (FULL: it does,
    at every commit). The table is
    ordered by its integer key, which SQLite counts itself. Pages of 32 KiB suit long appends, and a
    mapped file with a 64 MiB page cache suits scans. One by one is one `execute` per record.
    """

    name: ClassVar[str] = "sqlite"
    library: ClassVar[str] = "sqlite3"
    configuration: ClassVar[str] = (
        "WAL, synchronous=OFF (durable: FULL), page 32 KiB, cache 64 MiB, file mapped"
    )

    _INSERT = "INSERT INTO log (value) VALUES (?)"
    _PRAGMAS = (
        "PRAGMA page_size = 32768",
        "PRAGMA journal_mode = WAL",
        "PRAGMA cache_size = -65536",
        f"PRAGMA mmap_size = {MAP_SIZE_BYTES}",
    )

    def __init__(self, directory: Path, durable: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # isolation_level=None: we say BEGIN and COMMIT ourselves
        self._connection = sqlite3.connect(
            directory / "log.sqlite", isolation_level=None, check_same_thread=False
        )
        synchronous = f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}"
        for pragma in (*self._PRAGMAS, synchronous):
            self._connection.execute(pragma).fetchall()
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, value BLOB NOT NULL)"
        )

    def append_one_by_one(self, values: Sequence[bytes]) -> None:
        execute = self._connection.execute
        for commit in commits(values):
            execute("BEGIN")
            for value in commit:
                execute(self._INSERT, (value,))
            execute("COMMIT")

    def append_committed(self, values: Iterable[bytes]) -> None:
        execute = self._connection.execute
        for value in values:
            execute(self._INSERT, (value,))

    def append_many(self, batches: Iterable[Sequence[bytes]]) -> None:
        for batch in batches:
            self._connection.execute("BEGIN")
            self._connection.executemany(self._INSERT, zip(batch, strict=True))
            self._connection.execute("COMMIT")

    def settle(self) -> None:
        """Move the write-ahead log into the table's file."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def read_all(self) -> Tally:
        rows = self._connection.execute("SELECT value FROM log ORDER BY number")
        return tally(value for (value,) in rows)

    def random_lookup(self, offsets: Iterable[int]) -> Tally:
        execute = self._connection.execute
        execute("BEGIN")  # one read transaction around all, as LMDB has it
        query = "SELECT value FROM log WHERE number = ?"
        found = tally(execute(query, (offset + 1,)).fetchone()[0] for offset in offsets)
        execute("COMMIT")
        return found

    def close(self) -> None:
        self._connection.close()


_ALL: tuple[type[Peer], ...] = (Lmdb, RocksDb, Sqlite)
PEERS = {peer.name: peer for peer in _ALL}


def installed(name: str) -> bool:
    """Whether the library behind this peer can be imported. Does not import it."""
    return importlib.util.find_spec(PEERS[name].library) is not None


def version(name: str) -> str:
    """The version of the store, as its library reports it."""
    if name == Sqlite.name:
        return sqlite3.sqlite_version
    return importlib.metadata.version(PEERS[name].library)


def commits(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut values into parts of one commit each."""
    return (values[at : at + COMMIT_EVERY] for at in range(0, len(values), COMMIT_EVERY))


def tally(values: Iterable[bytes]) -> Tally:
    """Take every value into Python's hands once, in chunks so that the loop is C's."""
    records = size_bytes = 0
    stream = iter(values)
    while chunk := list(itertools.islice(stream, COMMIT_EVERY)):
        records += len(chunk)
        size_bytes += sum(map(len, chunk))
    return Tally(records, size_bytes)
