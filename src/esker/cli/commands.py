"""What the commands do. Each takes the parsed arguments and returns an exit code."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

import esker
from esker.cli import kin
from esker.errors import NotAStore
from esker.format import names
from esker.records import Gap, Record
from esker.storage.catalog import CatalogFile, load_identity
from esker.storage.files import SYSTEM_FILES, absolute, join
from esker.storage.sealed import sizes_of
from esker.upkeep.report import size_text


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode())


# ---- verify, repair --------------------------------------------------------------------------


def verify(arguments: argparse.Namespace) -> int:
    """`esker verify`."""
    if arguments.dir.startswith("kin+"):
        return kin.verify(arguments)
    found = esker.verify(arguments.dir, deep=not arguments.shallow, cold=arguments.cold)
    if arguments.json:
        problems = [
            msgspec.structs.asdict(problem) | {"advice": problem.advice}
            for problem in found.problems
        ]
        _print_json({"ok": found.ok, **msgspec.structs.asdict(found), "problems": problems})
    else:
        print(found)
    return 0 if found.ok else 1


def repair(arguments: argparse.Namespace) -> int:
    """`esker repair`."""
    done = esker.repair(arguments.dir, dry_run=arguments.dry_run, cold=arguments.cold)
    if arguments.json:
        _print_json({"ok": done.ok, "lost": done.lost, **msgspec.structs.asdict(done)})
    else:
        print(done)
    return 0 if done.ok else 1


# ---- info ------------------------------------------------------------------------------------


def info(arguments: argparse.Namespace) -> int:
    """`esker info`."""
    if arguments.dir.startswith("kin+"):
        return kin.info(arguments)
    with esker.open(arguments.dir, "r") as store:
        topics = list(_topics(store))
        findings = [msgspec.structs.asdict(finding) for finding in store.recovery.findings]
        if arguments.json:
            _print_json({"path": store.path, "topics": topics, "recovery": findings})
            return 0
        print(f"{store.path}: {_counted(len(topics), 'topic')}")
        for topic in topics:
            _print_topic(topic)
        print(f"recovery: {store.recovery}")
    return 0


def _topics(store: esker.Store) -> Iterator[dict[str, Any]]:
    root = absolute(store.path)
    identity = load_identity(SYSTEM_FILES, root)
    if identity is None:
        raise NotAStore(f"there is no Esker store at {root}")
    catalog = CatalogFile(SYSTEM_FILES, root, identity[0])
    catalog.load()
    for name in store:
        topic, entry = store[name], catalog.find(name)
        shards = []
        for number in range(topic.shards):
            there = _on_disk(root, entry.id, number) if entry is not None else (0, 0, 0, 0)
            files, size, cold, elsewhere = there
            shards.append({
                "shard": number, "earliest": topic.earliest(number), "end": topic.end(number),
                "durable": topic.durable(number), "segments": files, "bytes": size,
                "cold_segments": cold, "cold_bytes": elsewhere,
            })  # fmt: skip
        options = topic.options
        yield {
            "name": name,
            "durability": options.durability,
            "compression": options.compression,
            "shards": shards,
        }


def _on_disk(root: str, topic: int, shard: int) -> tuple[int, int, int, int]:
    """How many segments a shard has, their bytes, how many of them lie in a cold store, and what
    those have there."""
    folder = join(root, names.TOPICS, names.topic(topic), names.shard(shard))
    segments = [name for name in SYSTEM_FILES.list(folder) if names.parse_segment(name) is not None]
    size = cold = elsewhere = 0
    for name in segments:
        whole, local = sizes_of(SYSTEM_FILES, join(folder, name))
        size += local
        if whole != local:
            cold, elsewhere = cold + 1, elsewhere + whole
    return len(segments), size, cold, elsewhere


def _print_topic(topic: dict[str, Any]) -> None:
    shards = topic["shards"]
    offsets = _counted(sum(shard["end"] - shard["earliest"] for shard in shards), "offset")
    size = size_text(sum(shard["bytes"] for shard in shards))
    packed = "" if topic["compression"] == "none" else f", {topic['compression']}"
    print(f"  {topic['name']}: {topic['durability']}{packed}, {offsets}, {size}")
    for shard in shards:
        first, end = shard["earliest"], shard["end"]
        late = end - shard["durable"]
        span = f"offsets {first}..{end - 1}" if end > first else "empty"
        segments = _counted(shard["segments"], "segment")
        elsewhere = size_text(shard["cold_bytes"])
        print(
            f"    shard {shard['shard']}: {span}, {segments}, {size_text(shard['bytes'])}"
            + (
                f", {shard['cold_segments']} cold with {elsewhere}"
                if shard["cold_segments"]
                else ""
            )
            + (f", {late} not yet durable" if late else "")
        )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# ---- append ----------------------------------------------------------------------------------


def append(arguments: argparse.Namespace) -> int:
    """`esker append`."""
    spans: dict[int, list[int]] = {}
    count = 0
    with esker.open(arguments.dir, routes=False) as store:
        topic = store[arguments.topic]
        try:
            for value in _values(arguments.values):
                offset = topic.append(value, key=arguments.key)
                span = spans.setdefault(getattr(offset, "shard", 0), [int(offset), int(offset)])
                span[1] = int(offset)
                count += 1
        finally:  # also when interrupted: what was taken is kept
            if count:
                topic.sync()
    parts = [
        {"shard": shard, "first": first, "last": last}
        for shard, (first, last) in sorted(spans.items())
    ]
    if arguments.json:
        _print_json({"topic": arguments.topic, "records": count, "spans": parts})
        return 0
    where = "; ".join(
        f"shard {part['shard']}: {part['first']}..{part['last']}" for part in parts
    ) or "nothing"  # fmt: skip
    print(f"{arguments.topic}: {_counted(count, 'record')} appended ({where})")
    return 0


def _values(given: list[str]) -> Iterator[bytes]:
    if given:
        for value in given:
            yield value.encode("utf-8", "surrogateescape")
        return
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


# ---- read ------------------------------------------------------------------------------------


def read(arguments: argparse.Namespace) -> int:
    """`esker read`."""
    out = sys.stdout.buffer
    with esker.open(arguments.dir, "r") as store:
        topic = store[arguments.topic]
        if arguments.follow:
            start = "latest" if arguments.start is None else arguments.start
            items = topic.follow(start, limit=arguments.limit, gaps="yield")
        else:
            start = "earliest" if arguments.start is None else arguments.start
            items = topic.read(start, limit=arguments.limit, gaps="yield")
        for item in items:
            line = _json_line(item) if arguments.json else _plain_line(item)
            if line is not None:
                out.write(line)
                if arguments.follow:
                    out.flush()
    return 0


def _plain_line(item: Record | Gap) -> bytes | None:
    if isinstance(item, Gap):
        print(f"esker: gap: {item}", file=sys.stderr)
        return None
    return item.value + b"\n"


def _json_line(item: Record | Gap) -> bytes:
    if isinstance(item, Gap):
        return msgspec.json.encode({"gap": item}) + b"\n"
    line: dict[str, Any] = {
        "offset": item.offset,
        "shard": item.shard,
        "time": item.time.isoformat(),
        **_text_or_base64("value", item.value),
    }
    if item.key is not None:
        line |= _text_or_base64("key", item.key)
    if item.tag is not None:
        line["tag"] = item.tag
    if item.node is not None:
        line["node"] = item.node
    if item.headers:
        line["headers"] = {
            name: next(iter(_text_or_base64("", cell).values()))
            for name, cell in item.headers.items()
        }
    return msgspec.json.encode(line) + b"\n"


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    """Text as it is; other bytes in base64, under a name that says so."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
