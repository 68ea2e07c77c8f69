"""Cold segments: what a slow cold store costs who appends, and what it costs to read from one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyarrow import fs

import esker
from bench.life import Writer, _ninety_ninth
from bench.measure import Goal, Row
from bench.setting import MS, US, Setting, random_values
from bench.subject import TOPIC, VALUE_BYTES, Esker, Raw

SLOW = 2.0  # seconds that the cold store takes for each answer
PATIENCE = 120.0


def slow_store(setting: Setting) -> Iterator[Row]:
    """Appends while segments are moved to a cold store that answers in two seconds, and without."""
    seconds = setting.size(12, 1)
    delay = SLOW if not setting.smoke else 0.1
    taken: dict[str, list[float]] = {}
    moving = asked = 0
    for name, cold in (("none", False), (Esker.name, True), ("none again", False)):
        path = setting.fresh("slow")
        place = {"cold": str(path) + "-cold"} if cold else {}
        with esker.open(path, **place) as store:
            if cold:
                slowed = _slow(store, delay)
            topic = store.create(TOPIC, segment_bytes="1MiB", hot_segments=1)
            values = random_values(4_000)
            for _ in range(10):
                topic.append_many(values)
            writer = Writer(topic, values[0])
            time.sleep(seconds)
            taken[name] = writer.taken()
            if cold:
                moving, asked = len(store.maintenance().doing), slowed()
            writer.close()
        time.sleep(2 * delay if cold else 0)  # who still asks the cold store
        setting.drop(path)
        setting.drop(Path(str(path) + "-cold"))
    if not asked:
        raise RuntimeError("the cold store was not asked")
    best = min(_ninety_ninth(taken["none"]), _ninety_ninth(taken["none again"]))
    yield Row(
        "append(wait=True), 99th of a hundred, cold store answers in 2 s",
        {Esker.name: _ninety_ninth(taken[Esker.name]) / US, "none": best / US},
        (Goal.times_slower(2, than="none"),),
        unit="µs",
        details={
            "appends": len(taken[Esker.name]), "calls_of_the_cold_store": asked,
            "at_work": moving, "slowest_us": max(taken[Esker.name]) / US,
            "slowest_without_us": max(taken["none"]) / US,
        },
    )  # fmt: skip


def _slow(store: esker.Store, delay: float) -> Any:
    """Let every answer of the cold store take so long; returns how often it was asked."""
    cold = store._context.maps.cold.store(store._context.cold)
    calls: list[str] = []

    def slowly(real: Any, *arguments: Any) -> Any:
        calls.append(real.__name__)
        time.sleep(delay)
        return real(*arguments)

    for name in ("put", "get", "list", "folders", "delete"):
        setattr(cold, name, partial(slowly, getattr(cold, name)))
    return lambda: len(calls)


def cold_read(setting: Setting, place: str = "") -> Iterator[Row]:
    """A cold segment of 64 MiB, every record; beside it, copying its bytes and reading the copy.

    From a directory, or from the object store at a URL. There the plain copy asks for the object
    as Esker does, writes it to a file, and reads that.
    """
    count = setting.size((64 << 20) // (VALUE_BYTES + 4), 4_000)
    path, cold = setting.fresh("cold-read"), place or str(setting.fresh("cold-place"))
    values = random_values(count)
    with esker.open(path, cold=cold, background=False) as store:
        topic = store.create(TOPIC, segment_records=count, segment_bytes="256MiB")
        for first in range(0, count, 10_000):
            topic.append_many(values[first : first + 10_000])
        topic.append_many(values[:1])
        store.tick()
        moved = store.tier(TOPIC, "cold")
    best: dict[str, float] = {}
    for _ in range(setting.size(5, 1)):
        with esker.open(path, "r", cold=cold) as store:
            start = time.perf_counter()
            found = sum(len(batch) for batch in store[TOPIC].batches(0, count))
            best[Esker.name] = min(time.perf_counter() - start, best.get(Esker.name, PATIENCE))
        if found != count:
            raise RuntimeError(f"read {found}, expected {count}")
        target = setting.fresh("copy")
        start = time.perf_counter()
        _copy(cold, target)
        size = len(target.read_bytes())
        best[Raw.name] = min(time.perf_counter() - start, best.get(Raw.name, PATIENCE))
        if size != moved.bytes:
            raise RuntimeError(f"copied {size} bytes, expected {moved.bytes}")
        target.unlink()
    setting.drop(path)
    setting.drop(Path(cold))
    where = "from S3 on this machine" if place else "from a directory"
    yield Row(
        f"read a cold segment of {moved.bytes / 2**20:.0f} MiB {where}; raw: copy and read it",
        {name: seconds / MS for name, seconds in best.items()},
        (Goal.times_slower(3 if place else 2, than=Raw.name),),
        unit="ms",
        details={"records": count, "bytes": moved.bytes},
    )  # fmt: skip


def _copy(cold: str, target: Path) -> None:
    """The only segment of a cold store, as a file."""
    if "://" not in cold:
        [whole] = [each for each in Path(cold).rglob("*.seg-*") if each.is_file()]
        shutil.copyfile(whole, target)
        return
    system, base = fs.FileSystem.from_uri(cold)
    found = system.get_file_info(fs.FileSelector(base, recursive=True))
    [key] = [each.path for each in found if each.is_file]
    with system.open_input_file(key) as source:
        target.write_bytes(source.read_buffer())


SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def object_store() -> Iterator[str]:
    """The URL of an empty bucket, in an S3 server that is a process of its own; it is moto's."""
    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            endpoint = server.stdout.readline().strip()
            if not endpoint:
                raise RuntimeError("moto's server did not start: make setup installs it")
            how = f"scheme=http&region=us-east-1&endpoint_override={quote(endpoint, safe='')}"
            maker, _ = fs.FileSystem.from_uri(f"s3://key:word@?{how}&allow_bucket_creation=true")
            maker.create_dir("bench")
            yield f"s3://key:word@bench/cold?{how}"
        finally:
            server.stdin.close()


def cold(setting: Setting) -> Iterator[Row]:
    yield from slow_store(setting)
    yield from cold_read(setting)
    with object_store() as place:
        yield from cold_read(setting, place)
