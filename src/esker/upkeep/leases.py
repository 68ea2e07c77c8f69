"""Checking a queue: its settings, and the logs of its leases.

The newest log of each shard counts. It must begin with a snapshot and be whole; where it is not, a
crash may have torn its end, which opening the queue sets right, or it is damaged, which costs
deliveries. Older ones are history: their damage is told, and costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from esker.errors import StorageError
from esker.format import leases as fmt
from esker.format import names
from esker.format import queue as queue_format
from esker.format.catalog import TopicEntry
from esker.format.leases import Ended, Flaw, Snapshot, Told
from esker.storage.files import Files, content_of, join


class Said(NamedTuple):
    """Something that is wrong with a queue."""

    kind: str
    path: str
    reason: str
    shard: int = 0
    position: int | None = None
    error: bool = True


def inspect_queue(
    files: Files, folder: str, entry: TopicEntry, store: bytes | None, seen: Callable[[int], None]
) -> Iterator[Said]:
    """What is wrong with the queue that a topic is; `seen` is told the bytes of each file."""
    shards = {names.shard(number): number for number in range(entry.options.shards)}
    plain = {names.LOCK, names.DEMAND, names.SETTINGS}
    for name in sorted(files.list(folder)):
        path = join(folder, name)
        kind = files.kind(path)
        if name == names.WORKERS and kind == "dir":
            for worker in files.list(path):
                if names.parse_worker(worker) is None:
                    yield Said("stranger", join(path, worker), "not a file of Esker's", error=False)
        elif name == names.SETTINGS and kind == "file":
            yield from _settings(files, path, entry, store, seen)
        elif name in shards and kind == "dir":
            yield from _shard(files, path, entry, shards[name], store, seen)
        elif name.endswith(names.TEMPORARY) and kind == "file":
            yield Said("leftover", path, "a file that was being made", error=False)
        elif name not in plain or kind != "file":
            yield Said("stranger", path, "not a file of Esker's", error=False)
    if not files.kind(join(folder, names.SETTINGS)):
        reason = "not there: the queue was being made, or they are lost; store.queue() makes them"
        yield Said("settings", join(folder, names.SETTINGS), reason, error=False)
        return
    for name, number in shards.items():
        logs = [names.parse_leases(each) for each in files.list(join(folder, name))]
        if not any(logs):
            yield Said("leases", join(folder, name), "no log of leases is there", number)


def _settings(
    files: Files, path: str, entry: TopicEntry, store: bytes | None, seen: Callable[[int], None]
) -> Iterator[Said]:
    data = _content(files, path)
    if isinstance(data, Said):
        yield data
        return
    seen(len(data))
    found = queue_format.decode(data, store or data[24:40], entry.id)
    if isinstance(found, str):
        newer = found.startswith("version")
        yield Said("newer" if newer else "settings", path, found, position=0)


def _shard(
    files: Files, folder: str, entry: TopicEntry, number: int, store: bytes | None,
    seen: Callable[[int], None],
) -> Iterator[Said]:  # fmt: skip
    logs: list[int] = []
    for name in sorted(files.list(folder)):
        log, kind = names.parse_leases(name), files.kind(join(folder, name))
        if log is not None and kind == "file":
            logs.append(log)
        elif log is not None:
            reason = f"a {kind} where a log of leases should be"
            yield Said("stranger", join(folder, name), reason, number)
        elif name.endswith(names.TEMPORARY):
            yield Said("leftover", join(folder, name), "a log that was being made", error=False)
        elif name != names.LOCK:
            yield Said("stranger", join(folder, name), "not a file of Esker's", error=False)
    for log in sorted(logs):
        path = join(folder, names.leases(log))
        data = _content(files, path)
        if isinstance(data, Said):
            yield data
            continue
        seen(len(data))
        counts = log == max(logs)
        for kind, reason, position in _log(data, log, entry, number, store):
            torn = kind == "torn_leases"
            if kind == "newer" or counts:
                yield Said(kind, path, reason, number, position, error=not torn)
            elif not torn:
                text = f"{reason}; it is history, and only queue.history() needs it"
                yield Said("leases", path, text, number, position, error=False)


def _log(
    data: bytes, log: int, entry: TopicEntry, shard: int, store: bytes | None
) -> Iterator[tuple[str, str, int]]:
    header = fmt.decode_header(data)
    if isinstance(header, str):
        yield ("newer" if header.startswith("version") else "leases"), header, 0
        return
    mine = (log, entry.id, shard, store or header.store)
    if (header.number, header.topic, header.shard, header.store) != mine:
        yield "leases", "the leases of another shard", 0
    at: int | None = fmt.HEADER_SIZE
    first, ended = True, False
    while at is not None:
        flaw: Flaw | None = None
        for one in fmt.decode_frames(data, at, at, header.salt):
            if isinstance(one, Flaw):
                flaw = one
                break
            if first and not isinstance(one.events[0], Snapshot):
                yield "leases", "it does not begin with a snapshot", at
            first, ended = False, _is_end(one)
        if flaw is None:
            break
        at = fmt.next_frame(data, flaw.position, header.salt)
        torn = at is None and not first
        yield ("torn_leases" if torn else "leases"), flaw.reason, flaw.position
    if first:
        yield "leases", "it does not begin with a snapshot", fmt.HEADER_SIZE
    elif ended:
        yield "torn_leases", "the log that goes on behind it is not there", len(data)


def _is_end(told: Told) -> bool:
    return isinstance(told.events[-1], Ended)


def _content(files: Files, path: str) -> bytes | Said:
    try:
        return content_of(files, path)
    except StorageError as problem:
        return Said("unreadable", path, str(problem))
