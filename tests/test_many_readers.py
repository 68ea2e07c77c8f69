"""Eight processes read, for a minute, what another one writes, rolls and seals, and dies writing.

Every record carries its own offset and a checksum. So a reader can tell by itself whether it was
shown a hole, a torn record or another one's, and whether what it holds has changed since. The
sealed segments are mapped: a file that was cut or written under a reader would kill it by SIGBUS,
which no `except` catches and its exit code tells. The writer is killed now and then, and the next
one recovers what it left, while the readers go on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import esker
from esker.storage.files import SYSTEM_FILES, Holder
from esker.testing import SimulatedDisk
from tests.helpers import Child, child
from tests.suites import SCALE, SEED

pytestmark = [pytest.mark.crash, pytest.mark.slow]

READERS = 8
SECONDS = 60.0 * min(1.0, SCALE) if SCALE < 1 else 60.0
COMMON = """
    import functools, json, random, select, sys, time, zlib
    import esker

    path, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)

    @functools.lru_cache(8192)  # readers come to most of them many times
    def value(offset):
        body = b"%d/" % offset + b"." * (offset * 37 % 251)
        return body + b"/%08x" % zlib.crc32(body)
"""
WRITER = (
    COMMON
    + """
    store = esker.open(path, linger="2ms", sync_interval="10ms", journal_bytes="64KiB")
    topics = [
        store.create(name, durability=durability, segment_bytes="64KiB", exist_ok=True)
        for name, durability in (("d", "disk"), ("f", "fsync"))
    ]
    ends = {topic.name: topic.end() for topic in topics}
    print("writing", flush=True)
    while not select.select([sys.stdin], [], [], 0.004)[0]:
        for topic in topics:
            end = ends[topic.name]
            many = chance.randrange(1, 40)
            if chance.random() < 0.3:  # one by one, through the buffer
                for n in range(many):
                    assert topic.append(value(end + n)) == end + n
                topic.flush()
            else:
                span = topic.append_many([value(end + n) for n in range(many)])
                assert span.first == end, (span, end)
            ends[topic.name] = end + many
    store.close()
    print(json.dumps(ends), flush=True)
"""
)
READER = (
    COMMON
    + """
    told = {"records": 0, "looks": 0, "scans": 0, "held": 0}
    store = esker.open(path, mode="r", mapped_bytes=chance.choice([0, 256 << 10, 1 << 30]))
    ends, tails, held = {"d": 0, "f": 0}, {}, []

    def check(record):
        told["records"] += 1
        assert record.value == value(record.offset), f"offset {record.offset}: {record.value!r}"

    for name in ends:
        tails[name] = (store[name].tail("earliest"), [0])
    print("reading", flush=True)
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        name = chance.choice("df")
        topic = store[name]
        end = topic.end()
        assert end >= ends[name], f"{name}: the end fell from {ends[name]} to {end}"
        ends[name] = end
        way = chance.random()
        if way < 0.5:  # follow
            tail, at = tails[name]
            for batch in tail.take():
                for record in batch.records():
                    assert record.offset == at[0], f"{name}: {record.offset}, expected {at[0]}"
                    check(record)
                    at[0] += 1
                if chance.random() < 0.05:
                    held.append((batch, [record.value for record in batch.records()]))
        elif way < 0.8 and end:  # read a part, from anywhere to the end
            start = chance.randrange(max(0, end - 2000), end)
            at = start
            for record in topic.read(start):
                assert record.offset == at, f"{name}: {record.offset}, expected {at}"
                check(record)
                at += 1
            assert at >= end, f"{name}: read to {at}, the end was {end}"
            told["scans"] += 1
        elif end:
            check(topic[chance.randrange(end)])
        if len(held) > 20:  # what was handed out stays as it was
            for batch, values in held:
                assert [record.value for record in batch.records()] == values
            told["held"] += len(held)
            held.clear()
        told["looks"] += 1
    for name, (tail, at) in tails.items():  # nobody writes any more: to the very end
        for batch in tail.take():
            for record in batch.records():
                assert record.offset == at[0]
                check(record)
                at[0] += 1
        told[name] = at[0]
    store.close()
    print(json.dumps(told), flush=True)
"""
)


def begin(stack: ExitStack, code: str, path: Path, seed: int, word: str) -> Child:
    started = stack.enter_context(child(code, path, seed))
    assert started.line() == word
    return started


def test_the_end_does_not_fall_while_the_next_writer_takes_over() -> None:
    """The page of a dead writer knows less than its files, which readers have looked at since."""
    disk = SimulatedDisk(1)
    writer = esker.open("/store", files=disk, background=False)
    topic = writer.create("f", durability="fsync")
    topic.append(b"durable", wait=True)
    topic.append_many([b"written", b"written"])
    writer._context.forked = True  # dies: it closes without touching the disk
    writer.close()
    disk._locks.clear()
    with esker.open("/store", mode="r", files=disk) as reader:
        assert reader["f"].end() == 3
        lock = disk.lock(f"{topic._shards[0].folder}/lock", "the next writer, about to recover")
        assert reader["f"].end() == 3
        assert [record.offset for record in reader["f"].read(0)] == [0, 1, 2]
        del lock


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_read_although_a_thread_of_its_parent_was_reading(
    tmp_path: Path,
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=3)
        for n in range(4):
            topic.append_many([b"%d" % n] * 3)
        store.tick()  # sealed: reading maps
        locks = [
            store._lock, topic._lock, store._context.maps._lock, topic._followers[0]._lock,
            topic._shards[0].lock, topic._shards[0]._waiters_lock,
        ]  # fmt: skip
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                right = len(list(topic.read(0))) == len(list(topic.follow(0, timeout=0))) == 12
                right = right and "other" not in store and topic[-1].value == b"3"
                os._exit(0 if right else 1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"the child ended with {status}"


@pytest.mark.timeout(600)
def test_readers_beside_a_writer_that_rolls_seals_and_dies(tmp_path: Path) -> None:
    chance = random.Random(f"readers {SEED}")
    path, deaths = tmp_path / "data", 0
    with ExitStack() as stack:
        writer = begin(stack, WRITER, path, SEED, "writing")
        readers = [begin(stack, READER, path, SEED * 100 + n, "reading") for n in range(READERS)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(
                min(chance.uniform(0.05, 0.12) * SECONDS, max(0.0, until - time.monotonic()))
            )
            for reader in readers:
                if reader.process.poll() is not None:
                    reader.line()  # fails, and says what it died of
            writer.kill()
            deaths += 1
            writer = begin(stack, WRITER, path, SEED + deaths, "writing")
        writer.say()
        ends = json.loads(writer.line())
        writer.end()
        for reader in readers:
            reader.say()
            told = json.loads(reader.line())  # or what it died of
            reader.end()
            assert {name: told[name] for name in ends} == ends, "a reader did not come to the end"
            assert told["looks"] > SECONDS, told
            assert told["records"] > ends["d"], told
    assert deaths
    with esker.open(path) as store:
        assert store.recovery.clean
        assert {name: store[name].end() for name in ("d", "f")} == ends
        assert len(list(path.rglob("*.seg"))) > 5, "it hardly rolled"


def test_what_a_reader_has_seen_it_sees_while_the_next_writer_recovers(tmp_path: Path) -> None:
    """The dead one's page knew nothing of its last log, at which a reader has looked since."""
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=30)
        topic.append_many([b"%d" % n for n in range(30)], wait=True)
        (page,) = root.rglob("counters")
        old = page.read_bytes()
        topic.append_many([b"%d" % n for n in range(30, 40)], wait=True)
    with esker.open(root, mode="r") as reader:
        assert reader["t"].end() == 40
        lock = SYSTEM_FILES.lock(str(page.with_name("lock")), "recovers")
        assert not isinstance(lock, Holder)
        page.write_bytes(old)
        try:
            assert reader["t"].end() == 40
            assert [record.value for record in reader["t"].read()] == [b"%d" % n for n in range(40)]
        finally:
            lock.release()
