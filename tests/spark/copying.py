"""A Spark program that copies a topic, and the test's hand on it and on all of its processes.

The program runs in a session of its own (that of the kernel), in which Spark starts its JVM, its
Python daemons and their workers: so that a test can find all of them, and nothing else, and kill
some or all. It does what it is told by lines on its input:

    ["batch", {"data": ..., "copy": ..., "topic": ...}]   one batch write
    ["stream", {..., "checkpoint": ...}]                  a stream, of all that is there
    ["stream", {..., "checkpoint": ..., "until": path}]   the same for ever, until the file is there

A stream that fails is started again, as a supervisor would; a batch write is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import esker
import esker.spark
from esker.records import Record

ROOT = Path(__file__).parents[2]
HOOKS = Path(__file__).parent / "hooks"
COLUMNS = "key, value, timestamp, headers, tag"
KEYS = 13
PATIENCE = 110.0
FAILURES_MAX = 200


# ---- the program ---------------------------------------------------------------------------------


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = esker.spark.session(
        master=asked["master"], conf=asked["conf"], lean=asked["lean"], fast_start=asked["fast"]
    )
    print("ready", flush=True)
    for line in sys.stdin:
        name, options = json.loads(line)
        told = {"batch": batch, "stream": stream}[name](spark, **options)
        print(json.dumps(told), flush=True)
    esker.spark.shutdown()


def batch(spark: Any, data: str, copy: str, topic: str, tasks: int = 8) -> dict[str, int]:
    rows = spark.read.format("esker").options(subscribe="t", minPartitions=tasks, columns=COLUMNS)
    rows.load(data).write.format("esker").mode("append").options(topic=topic, shards=2).save(copy)
    return {"failures": 0}


def stream(
    spark: Any, data: str, copy: str, topic: str, checkpoint: str,
    size: int = 400, tasks: int = 4, until: str = "",
) -> dict[str, int]:  # fmt: skip
    failures = 0
    while failures <= FAILURES_MAX:
        last = not until or os.path.exists(until)
        query = None
        try:
            query = start(spark, data, copy, topic, checkpoint, size, tasks, to_the_end=last)
            while query.isActive and (last or not os.path.exists(until)):
                time.sleep(0.02)
            if not query.isActive:
                query.awaitTermination()  # raises what ended it
            if last:
                return {"failures": failures}
        except Exception as problem:
            print(problem, file=sys.stderr, flush=True)
            failures += 1
        finally:
            if query is not None:
                query.stop()
    raise AssertionError(f"the stream failed {failures} times")


def start(
    spark: Any, data: str, copy: str, topic: str, checkpoint: str, size: int, tasks: int,
    *, to_the_end: bool,
) -> Any:  # fmt: skip
    rows = spark.readStream.format("esker").options(
        subscribe="t", startingOffsets="earliest", columns=COLUMNS,
        maxOffsetsPerTrigger=size, minPartitions=tasks,
    )  # fmt: skip
    writing = rows.load(data).writeStream.format("esker").options(
        path=copy, topic=topic, shards=2, checkpointLocation=checkpoint
    )  # fmt: skip
    how = {"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}
    return writing.trigger(**how).start()


# ---- the test's hand on it -----------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    parent: int
    command: list[str]

    @property
    def module(self) -> str:
        """What a Python worker was started for."""
        return self.command[-1]


class Copier:
    """The program, from outside."""

    def __init__(
        self, folder: Path, master: str = "local[2,1000]", *, lean: bool = True,
        conf: dict[str, Any] | None = None, death: str = "", pace: float = 0.0,
        cache: Path | None = None, fast: bool = False,
    ) -> None:  # fmt: skip
        asked = {"master": master, "lean": lean, "conf": conf or {}, "fast": fast}
        folder.mkdir(parents=True, exist_ok=True)
        paths = [HOOKS, Path(esker.__file__).parents[1], ROOT, os.environ.get("PYTHONPATH", "")]
        self._log = folder / f"driver-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.spark.copying", json.dumps(asked)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
                env={
                    **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)),
                    "ESKER_TEST_DEATH": death, "ESKER_TEST_PACE": str(pace),
                    **({"XDG_CACHE_HOME": str(cache)} if cache else {}),
                },
            )  # fmt: skip

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def line(self) -> str:
        """The next line that it prints; "" if it died."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ready(self) -> Copier:
        assert self.line() == "ready", self.told()
        return self

    def say(self, name: str, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, options], default=str) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, int]:
        """What came of what it was told."""
        line = self.line()
        assert line, self.told()
        found: dict[str, int] = json.loads(line)
        return found

    def told(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-6000:]

    def end(self) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0, self.told()

    def processes(self) -> list[Process]:
        """Those of its session that run."""
        return list(_processes(self.process.pid))

    def workers(self) -> list[Process]:
        """Its Python workers: the children of its daemons, which are called as they are."""
        found = {each.pid: each for each in self.processes()}
        daemons = {pid for pid, each in found.items() if "pyspark.daemon" in each.command}
        return [each for each in found.values() if each.parent in daemons]

    def executors(self) -> list[Process]:
        return [each for each in self.processes() if any(map(_is_executor, each.command))]

    def strike(self, victim: Process) -> bool:
        """SIGKILL for a process of ours; false if it was gone."""
        try:
            if os.getsid(victim.pid) != self.process.pid:
                return False
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """All of it, and wait until nothing is left."""
        while left := self.processes():
            for each in left:
                self.strike(each)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


def _is_executor(word: str) -> bool:
    return word.endswith("CoarseGrainedExecutorBackend")


def _processes(session: int) -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            if os.getsid(int(entry)) != session:
                continue
            state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            command = Path("/proc", entry, "cmdline").read_text().rstrip("\0").split("\0")
        except (ProcessLookupError, FileNotFoundError):
            continue
        if state not in "ZX":
            yield Process(int(entry), int(parent), command)


def staging(worker: Process) -> bool:
    """Whether a worker has a staged segment open."""
    try:
        links = [os.readlink(each) for each in Path(f"/proc/{worker.pid}/fd").iterdir()]
    except OSError:
        return False
    return any(link.endswith(".staged") for link in links)


# ---- what is copied, and whether it was ----------------------------------------------------------


def feed(store: esker.Store, first: int, count: int) -> int:
    """Append records that say which they are; returns the number of the next one."""
    store["t"].append_many(
        [
            Record(
                b"%d %s" % (number, b"." * (number % 50)), key=b"k%d" % (number % KEYS),
                tag=f"t{number % 3}", headers={"h": b"%d" % number}, timestamp=10**15 + number,
            )
            for number in range(first, first + count)
        ],
        wait=True,
    )  # fmt: skip
    return first + count


def digest(path: Path, topic: str) -> tuple[int, str]:
    """How many records a topic has, and a hash over all of them in the order of their values."""
    with esker.open(path, mode="r") as store:
        found = [
            (each.value, each.key, each.tag, sorted((each.headers or {}).items()), each.timestamp)
            for each in store[topic].read()
        ]
    text = "\n".join(map(repr, sorted(found)))
    return len(found), hashlib.sha256(text.encode()).hexdigest()


def disorder(path: Path, topic: str) -> list[tuple[bytes, int, int]]:
    """Neighbours of one key that are not in the order in which they were appended."""
    last: dict[bytes, int] = {}
    found = []
    with esker.open(path, mode="r") as store:
        for shard in range(store[topic].shards):
            for each in store[topic].read(shard=shard):
                key, number = each.key or b"", int(each.value.split()[0])
                if last.get(key, -1) >= number:
                    found.append((key, last[key], number))
                last[key] = number
    return found


if __name__ == "__main__":
    main()
