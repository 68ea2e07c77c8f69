"""Writes the golden files of format version 1.

    python -m tests.golden.make          from the root of the repository

Stores, with every kind of file and of frame that version 1 has:

    v1/closed       closed cleanly: sealed segments (merged and not), logs with their closing mark,
                    a segment behind a gap, compressed frames, all columns, state, counters,
                    two catalog generations
    v1/killed       left by a killed writer: a journal with entries, a log that lacks bytes the
                    journal has, a log that ends in half a frame
    v1/mended       repaired after damage: a hole where records were
    v1/erased       records were deleted one by one: files of deletions with plain and with packed
                    frames, one that goes on behind what counts, one that no page names
    v1/anew         a topic was deleted, and made anew: a catalog that knows where the old one ended
    v1/grouped      a page of group cursors: one never moved, acked in part, at the end, moved back
                    and paused
    v1/once         batches with keys, and of producers: marks in a segment and in logs, a table
                    that is older than the log, a batch that is handed over and not yet attached
    v1/queued       a queue and its dead letters: settings, logs of leases with every kind of event
    v1/routed       routes, one of them with marks in its destination, one moved; all paused
    v1/moved        a store of which sealed segments were moved, and the cold store beside it
    v1/closed.json  what each holds, record by record; and so on

Time, randomness, boot and process are fixed, so that the same bytes come out every time, and
`tests/test_golden.py` fails when they do not. Files that were released are never written again:
a format that changes after that gets a folder of its own (see CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import esker
from esker.format.checksum import checksum
from tests.helpers import FixedFiles, HandClock

HERE = Path(__file__).parent
VERSION = HERE / "v1"
MOVED = VERSION / "moved"
ROOT, COLD = "/store", "/cold"


def main() -> None:
    """Replace the golden files."""
    for name, build in BUILDERS.items():
        shutil.rmtree(VERSION / name, ignore_errors=True)
        (VERSION / f"{name}.json").write_text(build(VERSION / name), encoding="utf-8")
    shutil.rmtree(MOVED, ignore_errors=True)
    build_moved(MOVED)


def opened(files: FixedFiles, clock: HandClock, **options: Any) -> esker.Store:
    return esker.open(
        ROOT, files=files, clock=clock, background=False, journals=1, journal_bytes="64KiB",
        **options,
    )  # fmt: skip


def killed(store: esker.Store) -> None:
    """As if the process were gone: nothing more is written."""
    store._context.forked = True  # such a handle closes without touching the disk
    store.close()


def restarted(files: FixedFiles) -> FixedFiles:
    """The same disk after the machine was started again."""
    again = FixedFiles(seed=2, boot=bytes(range(16, 32)))
    again.files, again.dirs, again.pages = files.files, files.dirs, files.pages
    return again


# ---- the stores ------------------------------------------------------------------------------


def build_closed(target: Path) -> str:
    """A store that was closed cleanly; returns what it holds, as JSON."""
    files, clock = FixedFiles(), HandClock()
    store = opened(files, clock)
    lost = store.create("gap")
    lost.append_many([b"before the power cut"] * 2)
    killed(store)
    files = restarted(files)
    with opened(files, clock) as store:
        store["gap"].append_many([b"after it"])
        _columns(store, clock)
        _segments(store, clock)
        _shards(store)
        packed = store.create(
            "packed", compression="zstd", compress_at="commit", compress_min_bytes=256
        )
        packed.append_many([b"the same words again, " * 4 + b"%d" % n for n in range(40)])
        packed.append(b"too small to be worth it", wait=True)
        packed.append_many([b"%d" % n + bytes(60_000) for n in range(45)])  # more than one frame
        store.create("empty", shards=2, durability="memory")
        store.create("ephemeral", durability="ephemeral").append(b"never on disk", wait=True)
        told = contents(store)
    files.dump(target, ROOT)
    return told


def _columns(store: esker.Store, clock: HandClock) -> None:
    """Every column, present and absent, by each of the two encoders."""
    topic = store.create("columns", durability="fsync")
    topic.append(b"plain", wait=True)
    clock.forward(0.25)
    topic.append(b"", wait=True)
    topic.append(
        bytes(range(256)),
        key=b"key",
        tag="tag \N{SNOWMAN}",
        node="node",
        headers={"one": b"1", "": b""},
        timestamp=-1,
        wait=True,
    )
    topic.append_many([esker.Record(b"few", key=b"k%d" % n, timestamp=n) for n in range(3)])
    many = [
        esker.Record(
            b"%d" % n * (n % 7),
            key=b"key %d" % n if n % 2 else None,
            tag=f"tag {n}" if n % 3 else None,
            node="eu-1" if n % 5 else None,
            headers={f"h{m}": b"%d" % m for m in range(n % 4)} or None,
            timestamp=1_700_000_000_000_000 + n if n % 11 else None,
        )
        for n in range(30)
    ]
    topic.append_many(many, wait=True)


def _segments(store: esker.Store, clock: HandClock) -> None:
    """Sealed by merging small frames, sealed as it was written, and the log after them."""
    topic = store.create("segments", segment_records=20)
    for n in range(20):
        topic.append(b"one by one %d" % n, wait=True)
        clock.forward(0.001)
    topic.append_many([b"all at once %d" % n for n in range(20)])
    topic.append(b"the log", tag="last", wait=True)
    topic.sync()
    store.tick()


def _shards(store: esker.Store) -> None:
    topic = store.create("shards", shards=2, durability="fsync")
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(10)], wait=True)


def build_killed(target: Path) -> str:
    """A store whose writer was killed; returns what recovery must give back, as JSON."""
    files, clock = FixedFiles(seed=3), HandClock()
    store = opened(files, clock)
    topic = store.create("journaled", shards=6, durability="fsync", segment_bytes="4KiB")
    for n in range(24):
        topic.append(b"%d" % n, key=b"%d" % n)
        clock.forward(0.001)
    store.sync()  # six dirty shards: through the journal
    torn = store.create("torn", durability="fsync", segment_bytes="4KiB")
    torn.append_many([b"whole"] * 3, wait=True)
    told = contents(store)
    log = torn._shards[0].active
    assert log is not None
    killed(store)
    logs = sorted(name for name in files.files if name.endswith(".log"))
    del files.files[logs[0]][200:]  # what the journal is for
    data = files.files[log.path]
    data[log.end : log.end + 100] = data[log.end - 100 : log.end]  # no frame, where one would be
    files.dump(target, ROOT)
    return told


def build_mended(target: Path) -> str:
    """A store with a damaged frame in a sealed segment, repaired; returns what is left, as JSON."""
    files, clock = FixedFiles(seed=5), HandClock()
    store = opened(files, clock)
    topic = store.create("hole", durability="fsync", segment_records=3, segment_bytes="4KiB")
    for n in range(4):
        topic.append_many([b"record %d" % n], wait=True)
    killed(store)
    files = restarted(files)
    opened(files, clock).close()  # recovery seals the first log as it is
    (sealed,) = (name for name in files.files if name.endswith(".seg"))
    data = files.files[sealed]
    data[data.index(b"record 1")] ^= 1
    esker.repair(ROOT, files=files)
    with opened(files, clock) as store:
        told = contents(store)
    for name in [name for name in files.files if "quarantine" in name]:
        del files.files[name]  # the evidence is not part of the format
    files.dirs = {name for name in files.dirs if "quarantine" not in name}
    files.dump(target, ROOT)
    return told


def build_erased(target: Path) -> str:
    """A store in which records were deleted by their tags; returns what is left, as JSON."""
    files, clock = FixedFiles(seed=7), HandClock()
    store = opened(files, clock)
    store.create("plain", shards=2, durability="fsync", segment_records=4, segment_bytes="4KiB")
    spread = store.create("spread")
    spread.append_many([esker.Record(b"before the power cut", tag=tag) for tag in ("x", None)])
    spread.sync()
    killed(store)
    files = restarted(files)
    with opened(files, clock) as store:
        plain, spread = store["plain"], store["spread"]
        for n in range(20):
            tag = f"user-{n // 3 % 4}" if n % 5 else None
            plain.append(b"%d" % n, key=b"%d" % (n % 6), tag=tag, wait=True)
        plain.delete(tag="user-1")
        plain.delete(tag_prefix="user-2")
        spread.append_many([esker.Record(b"after it", tag=tag) for tag in ("x", "y")])
        spread.delete(tag="x")  # far from each other: two blocks
        spread.append(b"and later", tag="x", wait=True)
        told = contents(store)
    longer, followed = sorted(
        name for name in files.files if "/00000001/" in name and "deletions" in name
    )
    data = bytes(files.files[longer])
    files.files[longer] += data[64:300]  # half of a deletion that was under way
    files.files[followed[:-1] + "2"] = bytearray(data[:300])  # half of a new file
    files.dump(target, ROOT)
    return told


def build_anew(target: Path) -> str:
    """A store with a topic that had another's name; returns what it holds, as JSON."""
    files, clock = FixedFiles(seed=11), HandClock()
    with opened(files, clock) as store:
        old = store.create("anew", shards=2, durability="fsync", segment_bytes="4KiB")
        old.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(5)], wait=True)
        store.delete("anew")
        store.tick()
        store.create("anew", shards=2, segment_bytes="4KiB").append(b"another", key=b"0", wait=True)
        told = contents(store)
    files.dump(target, ROOT)
    return told


def build_queued(target: Path) -> str:
    """A queue in which everything happened that can; returns the jobs and letters, as JSON."""
    files, clock = FixedFiles(seed=11), HandClock()
    store = opened(files, clock)
    queue = store.queue(
        "jobs", lease="30s", max_deliveries=2, dead_letter="dead", ordered=True, durability="fsync"
    )
    queue.put_many([esker.Record(b"%d" % n, key=b"k%d" % (n % 5)) for n in range(8)])
    queue.put(b"later", delay="1h")
    queue.put(b"deleted", tag="gone")
    store["jobs"].delete(tag="gone")
    first, second, third, fourth, _ = queue.claim(9)
    first.ack()
    second.nack(delay="1h", reason="no")
    third.release()
    fourth.extend(60)
    killed(store)
    files.held.clear()
    clock.forward(1)
    store = opened(files, clock)
    queue = store.queue("jobs")
    for job in queue.claim(3):
        job.nack(reason="no again")
    queue.dead.requeue(where=lambda job: job.value == b"3")
    queue.pause()
    queue.resume()
    kept = store.queue("kept", max_deliveries=1)
    kept.put_many([b"%d" % n for n in range(4)])
    for job in kept.claim(4):
        job.nack(reason="kept")
    kept.dead.requeue(kept.dead.peek(1))
    kept.dead.purge(kept.dead.peek(2)[1:])
    with kept._lanes[0]:
        kept._lanes[0]._begin()  # goes on in a new file
    killed(store)
    files.held.clear()
    files = restarted(files)
    with opened(files, clock) as store:
        store.queue("jobs").claim(1)
        told = contents(store)
    files.dump(target, ROOT)
    return told


def build_moved(target: Path) -> None:
    """Two segments in a cold store, one that is here, and the log; what it holds beside them."""
    files, clock = FixedFiles(seed=9), HandClock()
    with opened(files, clock, cold=COLD) as store:
        topic = store.create("moved", segment_records=4, segment_bytes="4KiB")
        for n in range(14):
            topic.append(b"%d " % n + b"elsewhere " * 20, tag=f"t{n}", wait=True)
            clock.forward(0.001)
        store.tick()
        store.tier("moved", "cold", before=8)
        told = contents(store)
    files.dump(target / "store", ROOT)
    files.dump(target / "cold", COLD)
    (target / "contents.txt").write_text(told, encoding="utf-8")


def build_grouped(target: Path) -> str:
    """A store with groups that have come to different places; returns what it holds, as JSON."""
    files, clock = FixedFiles(seed=11), HandClock()
    with opened(files, clock) as store:
        topic = store.create("read", durability="fsync", consumed=True, force_after="7d")
        topic.append_many([b"%d" % n for n in range(10)], wait=True)
        topic.group("new")
        for name, upto in (("billing", 3), ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", 9)):
            with topic.group(name) as group:
                for batch in group.poll():
                    batch.ack(upto)
        with topic.group("back", "latest") as group:
            group.seek(2)
            group.pause()
        (path,) = (name for name in files.pages if name.endswith("/members"))
        told = contents(store)
    del files.pages[path]  # who reads at the moment is not part of the format
    for name in [name for name in files.held if "/members" in name]:
        del files.held[name]
    files.dirs = {name for name in files.dirs if "members.d" not in name}
    files.dump(target, ROOT)
    return told


def build_once(target: Path) -> str:
    """A store in which batches have keys; returns what recovery must give back, as JSON."""
    files, clock = FixedFiles(seed=11), HandClock()
    with opened(files, clock) as store:
        topic = store.create("once", durability="fsync", segment_records=4, segment_bytes="4KiB")
        topic.append_many([b"a", b"b"], idempotency_key=b"\0key", wait=True)
        topic.append(b"c", key=b"k", headers={"h": b"1"}, idempotency_key="text", wait=True)
        for n in range(3):
            topic.producer("importer").append_many([b"%d" % n] * 2, wait=True)
        store.tick()
    store, other = opened(files, clock), opened(files, clock, handover=True)
    topic = store["once"]
    topic.append(b"later", idempotency_key="later", wait=True)
    topic.producer("importer").append(b"3", wait=True)
    try:
        other["once"].append(b"handed over", idempotency_key="handed", wait=0.0)
    except esker.AttachPending:
        killed(other)
    killed(store)
    files.dump(target, ROOT)
    with opened(restarted(files), clock) as store:
        return contents(store)


def build_routed(target: Path) -> str:
    """A store with routes that have forwarded, exactly once too; returns what it holds, as JSON."""
    files, clock = FixedFiles(seed=13), HandClock()
    with opened(files, clock) as store:
        topic = store.create("orders", durability="fsync")
        topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(9)], wait=True)
        store.route("orders", "once", where='key >= "4"', exactly_once=True)
        again = store.route("orders", "again", start="latest", allow_cycles=True, hops=2, name="x")
        again.seek(3)
        for _ in range(3):
            store.tick()
            clock.forward(1)
        for status in store.routes():  # or whoever opens it would go on
            store.route(name=status.name).pause()
        told = contents(store)
    for name in [name for name in files.pages if name.endswith("/members")]:
        del files.pages[name]  # who reads at the moment is not part of the format
    for name in [name for name in files.held if "/members" in name]:
        del files.held[name]
    files.dirs = {name for name in files.dirs if "members.d" not in name}
    files.dump(target, ROOT)
    return told


BUILDERS = {
    "anew": build_anew,
    "closed": build_closed,
    "erased": build_erased,
    "grouped": build_grouped,
    "killed": build_killed,
    "mended": build_mended,
    "once": build_once,
    "queued": build_queued,
    "routed": build_routed,
}


# ---- what they hold --------------------------------------------------------------------------


def contents(store: esker.Store) -> str:
    """Every record and every gap of a store, as JSON with one record a line."""
    lines = [
        json.dumps([name, *_plain(item)])
        for name in store
        if store[name].options.durability != "ephemeral"
        for item in store[name].read(gaps="yield")
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _plain(item: Any) -> list[Any]:
    if isinstance(item, esker.Gap):
        return [item.shard, "gap", item.first, item.last, item.reason]
    headers = {name: cell.hex() for name, cell in item.headers.items()} if item.headers else None
    key = None if item.key is None else item.key.hex()
    value = item.value.hex() if len(item.value) < 1000 else f"xxh3 {checksum(item.value):016x}"
    return [item.shard, item.offset, item.timestamp, value, key, item.tag, item.node, headers]


if __name__ == "__main__":
    main()
