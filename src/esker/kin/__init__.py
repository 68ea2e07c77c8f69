"""KIN: the formats of five earlier logs, read, written, checked and copied.

hops      from records that lie one behind the other to Arrow columns
crc64     the checksum of AOF2
rustlog   `{base}.log` and its sparse index
cursus    messages with their length before them
comet     entries with a time, zstd or not; comet_state: index, counters, consumers
topics    a WAL of frames, segments and their index; topics_control: names and deletions in it
aof2      segments with a header, checksums and a footer
family    what they have in common: kinds, parts, pieces, flaws
store     a directory of one of them as a store that can be read
moving    import to a store, export of a topic

Each codec is pure and stands on `format`, `records` and the file door only. docs/kin.md says what
each format can carry and where its documents leave something open.

    with esker.open("kin+rustlog:///data") as old, esker.open("new") as store:
        print(esker.kin.import_("kin+rustlog:///data", store, "orders"))
    esker.kin.export_topic(store["orders"], "/copy", "comet")
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from typing import Any, Final

import msgspec

from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine.progress import Progress
from esker.engine.reader import Gaps
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import InvalidOption, StorageError, TopicNotFound
from esker.kin.aof2 import Aof2
from esker.kin.comet import Comet
from esker.kin.cursus import Cursus
from esker.kin.family import Flaw, Kind, Piece, mapped
from esker.kin.moving import CHUNK_BYTES, Exported, Imported, export, import_topic
from esker.kin.rustlog import RustLog
from esker.kin.store import KinStore, KinTopic
from esker.kin.topics import Topics
from esker.storage.files import SYSTEM_FILES, Files, absolute

KINDS: Final[dict[str, Kind]] = {
    kind.name: kind for kind in (RustLog(), Cursus(), Comet(), Topics(), Aof2())
}
SCHEME: Final = "kin+"

__all__ = [
    "KINDS",
    "Exported",
    "Flaw",
    "Imported",
    "KinStore",
    "KinTopic",
    "Verified",
    "export_topic",
    "import_",
    "open_kin",
    "verify",
]


class Verified(msgspec.Struct, frozen=True):
    """What a look at all files of another log found."""

    kind: str
    path: str
    topics: int
    files: int
    records: int
    flaws: tuple[Flaw, ...]

    @property
    def ok(self) -> bool:
        """Whether no record is damaged. A torn end is none: it was never whole."""
        return all(flaw.severity != "error" for flaw in self.flaws)

    def __str__(self) -> str:
        said = [f"{self.kind} at {self.path}: {self.topics} topics, {self.files} files, "
                f"{self.records:,} records"]  # fmt: skip
        return "\n".join([*said, *map(str, self.flaws)])


def is_kin(path: object) -> bool:
    """Whether this names a directory of another log: kin+comet:///path."""
    return isinstance(path, str) and path.startswith(SCHEME)


def open_kin(
    path: str | PathLike[str], kind: str | None = None, *, files: Files = SYSTEM_FILES,
    clock: Clock = SYSTEM_CLOCK,
) -> KinStore:  # fmt: skip
    """A directory of another log as a store that can be read."""
    which, root = _place(path, kind)
    return KinStore(which, root, files, clock)


def open_url(
    path: str, mode: str = "rw", *, files: Files | None = None, clock: Clock = SYSTEM_CLOCK,
    **options: Any,
) -> KinStore:  # fmt: skip
    """What `esker.open` does with kin+comet:///path."""
    if mode not in ("rw", "r"):
        raise InvalidOption(f'mode={mode!r}: "rw" or "r"')
    if options:
        raise InvalidOption(f"{sorted(options)[0]}: {path} is only read, and takes no options")
    return open_kin(path, files=files or SYSTEM_FILES, clock=clock)


def verify(
    path: str | PathLike[str], kind: str | None = None, *, files: Files = SYSTEM_FILES
) -> Verified:
    """Look at every file of another log, and say what is wrong in its own words."""
    which, root = _place(path, kind)
    found = which.survey(files, root)
    flaws = list(which.around(files, root))
    count = records = 0
    for shards in found.values():
        for parts in shards.values():
            end = 0
            for part in parts:
                count += 1
                part = part._replace(first=end) if part.first < 0 else part
                try:
                    data = mapped(files, part.path)
                    end = part.first
                    for item in which.pieces(data, part, which.begin, part.first):
                        if isinstance(item, Piece):
                            records += len(item.columns.values)
                            end = item.end
                        else:
                            flaws.append(item)
                    flaws += which.beside(files, part, data)
                except StorageError as problem:
                    flaws.append(Flaw("corrupt", part.path, 0, f"cannot be read ({problem})"))
    return Verified(which.name, root, len(found), count, records, tuple(flaws))


def import_(
    path: str | PathLike[str], store: Store, topic: str, *, kind: str | None = None,
    source: str | None = None, gaps: Gaps = "raise",
    progress: Callable[[Progress], None] | None = None, chunk_bytes: int = CHUNK_BYTES,
    files: Files = SYSTEM_FILES,
) -> Imported:  # fmt: skip
    """Copy a topic of another log to a topic of a store; done again, it goes on or does nothing.

    `source` is which one, if the directory has several.
    """
    found = open_kin(path, kind, files=files)
    if source is None:
        if len(found) > 1:
            raise InvalidOption(f"{found!r} has topics {', '.join(found)}; say which with source=")
        source = next(iter(found))
    elif source not in found:
        raise TopicNotFound(f"no topic {source!r} in {found.path}; it has {', '.join(found)}")
    return import_topic(found, store, topic, source, gaps, progress, chunk_bytes)


def export_topic(
    topic: Topic, path: str | PathLike[str], kind: str | None = None, *, drop: bool = False,
    shard: int | None = None, progress: Callable[[Progress], None] | None = None,
    files: Files = SYSTEM_FILES, **choices: Any,
) -> Exported:  # fmt: skip
    """Write a topic as another log would have, into a directory that has none of that name yet.

    `choices`: segment_bytes, and for Comet compress_above.
    """
    which, root = _place(path, kind)
    return export(topic, which, root, files, drop, shard, progress, **choices)


def _place(path: str | PathLike[str], kind: str | None) -> tuple[Kind, str]:
    text = fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"{text!r} is not the path of a directory")
    if is_kin(text):
        said, mark, text = text.removeprefix(SCHEME).partition("://")
        if not mark or not text or kind not in (None, said):
            raise InvalidOption(f"{path!r}: write it as kin+comet:///path/of/the/directory")
        kind = said
    if kind not in KINDS:
        raise InvalidOption(f"kind={kind!r}: one of {', '.join(KINDS)}")
    return KINDS[kind], absolute(text)
