"""Whatever dies while Spark copies a topic, each record is in the copy once, in order.

A program that copies (tests/spark/copying.py) loses its Python workers at moments left to chance,
its executors, and itself with its JVM and all else in every window that a commit has. What comes
out is held against what went in: as many records, the same hash, each key in its order. And nothing
that an attempt left behind is ever seen.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest

import esker
from esker.engine import attach
from esker.spark import plan
from tests.helpers import Child, HandClock, Threads, child, lasting_port, wait_until
from tests.spark.copying import Copier, Process, digest, disorder, feed, staging
from tests.suites import SEED, Tallies, scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash]

TASKS = "pyspark.worker"  # workers that read and stage
COMMITS = "pyspark.sql.worker.python_streaming_sink_runner"  # those that commit, beside the driver
TASKS_AT_ONCE = 4
DAY = 24 * 3600
SMALL_PIECES = {"spark.sql.execution.arrow.maxRecordsPerBatch": 10}


def staged(path: Path) -> list[Path]:
    return list(path.rglob("*.staged"))


def check_copy(data: Path, copy: Path, topic: str) -> None:
    """The copy is there, whole, once, in order; and the store that it is in is sound."""
    with esker.open(copy) as store:  # whatever is committed is attached now
        left = [
            batch
            for batch in attach.commits(store._context)
            if not isinstance(batch, esker.Corruption) and attach.pending(store._context, batch)
        ]
        assert not left
    assert digest(copy, topic) == digest(data, "t")
    assert disorder(copy, topic) == []
    found = esker.verify(copy)
    assert found.ok, found.problems


# ---- workers -------------------------------------------------------------------------------------


class Strikes:
    """Kills workers at moments left to chance, one or all at once."""

    def __init__(self, copier: Copier, seed: int) -> None:
        self._copier = copier
        self._random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.staging = 0

    @property
    def count(self) -> int:
        return self.kills.total()

    def go_on(self, target: int, modules: tuple[str, ...], while_: Callable[[], bool]) -> None:
        """Until so many are dead, or there is nothing to be hit any more."""
        while self.count < target and while_():
            aimed = self._random.random() < 0.75  # else most would die while they are starting
            patience = time.monotonic() + 3.0
            while aimed and not any(map(staging, self._copier.workers())):
                if time.monotonic() > patience or not while_():
                    break
                time.sleep(0.01)
            time.sleep(self._random.uniform(0.0, 0.1 if aimed else 0.5))
            there = [each for each in self._copier.workers() if each.module in modules]
            busy = [each for each in there if staging(each)]
            committing = [each for each in there if each.module == COMMITS]
            if aimed:
                chosen = busy  # all at once
            else:
                chosen = [self._random.choice(committing or there)] if there else []
            for each in chosen:
                self._strike(each)

    def _strike(self, victim: Process) -> None:
        stages = staging(victim)
        if self._copier.strike(victim):
            self.kills[victim.module] += 1
            self.staging += stages


@pytest.mark.timeout(600)
def test_workers_die_and_every_record_is_copied_once(
    tmp_path: Path, classes: Path, tally: Tallies
) -> None:
    suite = tally("spark worker kills")
    wanted = min(scaled(60, least=6), 60)
    data, copy = tmp_path / "data", tmp_path / "copy"
    with (
        esker.open(data) as store,
        Copier(tmp_path, conf=SMALL_PIECES, pace=0.04, cache=classes, fast=True) as copier,
    ):
        store.create("t", shards=2)
        fed = feed(store, 0, 1200)
        copier.ready()
        strikes = Strikes(copier, SEED)

        stop, checkpoint, batches = tmp_path / "stop", tmp_path / "checkpoint", 0
        copier.say(
            "stream", data=data, copy=copy, topic="s", checkpoint=checkpoint, size=200, until=stop
        )
        for done in range(0, 2 * wanted // 3, 4):  # records keep coming while workers die
            strikes.go_on(done + 4, (TASKS, COMMITS), lambda: copier.process.poll() is None)
            fed = feed(store, fed, 100)
            if done % 8:  # and some batches are done between the deaths
                known = _last(checkpoint / "commits")
                wait_until(lambda known=known: _last(checkpoint / "commits") > known, "a batch")
        stop.touch()
        failures = copier.answer()["failures"]

        while strikes.count < wanted:
            batches += 1
            copier.say("batch", data=data, copy=copy, topic=f"b{batches}")
            waiting = Threads()
            strikes.go_on(wanted, (TASKS,), waiting.start(copier.answer).is_alive)
            waiting.join()
    for topic in ("s", *(f"b{number + 1}" for number in range(batches))):
        check_copy(data, copy, topic)
    left = len(staged(copy))
    # An attempt has a segment for each shard. Where a stream fails, four tasks fail with it.
    assert left <= 2 * strikes.kills[TASKS] + 8 * failures, (left, strikes.kills, failures)
    assert strikes.staging >= wanted // 3, f"{strikes.staging} of {strikes.kills} were staging"
    suite.count = strikes.count
    suite.also.update(
        {"while staging": strikes.staging, "of those that commit": strikes.kills[COMMITS]}
    )
    suite.also.update({"streams begun again": failures, "segments left": left, "records": fed})


# ---- a server ------------------------------------------------------------------------------------


class Nursery:
    """A server that is killed and started again on its port; see tests/server/nursery.py."""

    def __init__(self, program: Child, url: str) -> None:
        self.url = url
        self.kills = 0
        self._program = program
        self._pid = 0

    def start(self) -> None:
        self._program.say("start")
        self._pid = int(self._program.line())
        told = self._program.line()
        assert told == "ready", told

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone: until then the kernel keeps its port."""
        os.kill(self._pid, signal.SIGKILL)
        self.kills += 1
        wait_until(lambda: not Path("/proc", str(self._pid)).exists(), "the server's end")


@contextmanager
def nursery(root: Path) -> Iterator[Nursery]:
    port = lasting_port()
    code = "from tests.server.nursery import main; main()"
    with child(code, root, port, root.with_name("server.log")) as program:
        made = Nursery(program, f"http://127.0.0.1:{port}")
        made.start()
        try:
            yield made
        finally:
            made.kill()


@pytest.mark.timeout(600)
def test_workers_and_the_server_die_and_every_record_is_copied_once(
    tmp_path: Path, classes: Path, tally: Tallies
) -> None:
    """From a topic on a server to another one there; both sides lose processes in turn."""
    suite = tally("spark over http kills")
    data, checkpoint, stop = (tmp_path / name for name in ("data", "checkpoint", "stop"))
    chance, rounds = random.Random(SEED), min(scaled(5, least=2), 5)
    workers = 0
    with (
        nursery(data) as server,
        Copier(tmp_path, conf=SMALL_PIECES, pace=0.02, cache=classes, fast=True) as copier,
    ):
        with esker.open(server.url) as store:
            store.create("t", shards=2)
            fed = feed(store, 0, 600)
        copier.ready()
        copier.say(
            "stream", data=server.url, copy=server.url, topic="s", checkpoint=checkpoint,
            size=150, until=stop,
        )  # fmt: skip
        for _ in range(rounds):
            known, patience = _last(checkpoint / "commits"), time.monotonic() + 240
            while _last(checkpoint / "commits") <= known:  # under load a worker takes its time
                assert time.monotonic() < patience, copier.told()
                time.sleep(0.05)
            time.sleep(chance.uniform(0.0, 0.3))
            for each in copier.workers():
                if each.module in (TASKS, COMMITS):
                    workers += copier.strike(each)
            wait_until(lambda: any(e.module == TASKS for e in copier.workers()), "a worker")
            time.sleep(chance.uniform(0.0, 0.3))
            server.kill()
            server.start()
            with esker.open(server.url) as store:  # records that were kept by a key would show it
                fed = feed(store, fed, 100)
        stop.touch()
        failures = copier.answer()["failures"]
    check_copy(data, data, "s")
    suite.count = workers + server.kills
    suite.also.update({"workers": workers, "servers": server.kills, "records": fed})
    suite.also.update({"streams begun again": failures, "segments left": len(staged(data))})


# ---- the driver ----------------------------------------------------------------------------------


class Disk(NamedTuple):
    """What a death has left on disk."""

    planned: int  # the last batch that Spark's checkpoint has
    logged: int  # the last that Spark knows to be done
    committed: int  # the last that the store has; -1 if there is none
    tickets: int  # its segments
    pending: int  # of these, not attached
    loose: int  # staged segments that no commit names
    unfinished: int  # commits that have not got their name

    @classmethod
    def of(cls, copy: Path, checkpoint: Path) -> Disk:
        with esker.open(copy, mode="r") as store:
            batches = list(attach.commits(store._context))
            assert len(batches) <= 1, "a query has one commit at a time"
            pending = [attach.pending(store._context, each) for each in batches]  # type: ignore[arg-type]
        tickets = batches[0].tickets if batches else ()  # type: ignore[union-attr]
        named = {ticket.file for ticket in tickets}
        return cls(
            planned=_last(checkpoint / "offsets"), logged=_last(checkpoint / "commits"),
            committed=batches[0].sequence if batches else -1,  # type: ignore[union-attr]
            tickets=len(tickets), pending=sum(map(len, pending)),
            loose=sum(each.name not in named for each in staged(copy)),
            unfinished=len(list(copy.rglob("*.commit.tmp"))),
        )  # fmt: skip


def _last(log: Path) -> int:
    return max((int(each.name) for each in log.glob("[0-9]*")), default=-1)


# In the order of dying. In each window: the how-manieth time is the last, and what the disk must
# look like after it. A batch that was not committed is fresh to the next driver, one that was is
# done again by it, and dropped.
WINDOWS: dict[str, tuple[int, Callable[[Disk], bool]]] = {
    "a task stages": (5, lambda d: d.planned > d.committed and d.loose > 0),
    "commit returned": (1, lambda d: d.committed > d.logged and d.pending == 0 < d.tickets),
    "a batch done again is dropped": (1, lambda d: d.committed > d.logged and d.pending == 0),
    "batch planned, not written down": (1, lambda d: d.planned == d.logged == d.committed >= 0),
    "tasks planned": (1, lambda d: d.planned == d.logged + 1 > d.committed),
    "tickets collected": (1, lambda d: d.planned > d.committed and d.loose >= TASKS_AT_ONCE),
    "all attached": (1, lambda d: d.committed > d.logged and d.pending == 0 < d.tickets),
    "commit written, not renamed": (1, lambda d: d.planned > d.committed and d.unfinished == 1),
    "between two attaches": (2, lambda d: d.committed > d.logged and 0 < d.pending < d.tickets),
    "a segment filled in, not renamed": (1, lambda d: 0 < d.pending < d.tickets),
    "committed, nothing attached": (1, lambda d: d.committed > d.logged and d.pending == d.tickets),
}


@pytest.mark.timeout(600)
def test_the_driver_dies_in_every_window_of_a_commit(
    tmp_path: Path, classes: Path, tally: Tallies
) -> None:
    suite = tally("spark driver kills")
    data, copy, checkpoint = (tmp_path / name for name in ("data", "copy", "checkpoint"))
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    starting: list[Copier] = []

    def begin(window: str = "") -> None:
        death = f"{window}|{WINDOWS[window][0]}|{deaths}" if window else ""
        starting.append(
            Copier(tmp_path, "local[1]", conf=SMALL_PIECES, death=death, cache=classes, fast=True)
        )

    def work() -> Copier:
        copier = starting.pop(0).ready()
        copier.say("stream", data=data, copy=copy, topic="s", checkpoint=checkpoint)
        return copier

    order = list(WINDOWS)[: scaled(len(WINDOWS), least=2)]
    seen = []
    try:
        with esker.open(data) as store:
            store.create("t", shards=2)
            fed = 0
            begin(order[0])
            for window, following in zip(order, [*order[1:], ""], strict=True):
                fed = feed(store, fed, 500)
                begin(following)  # while this one works: a JVM takes its time
                with work() as copier:
                    line = copier.line()
                assert line == "", f"{window}: was never hit"
                assert (deaths / f"{window}.died").exists(), f"{window}: {copier.told()}"
                disk = Disk.of(copy, checkpoint)
                assert WINDOWS[window][1](disk), f"{window}: {disk}"
                seen.append((window, disk))
            with work() as copier:
                assert copier.answer() == {"failures": 0}
    finally:
        for copier in starting:
            copier.kill()
    check_copy(data, copy, "s")
    suite.count = len(seen)
    suite.also.update({"records": fed, "batches": _last(checkpoint / "commits") + 1})
    suite.also.update({"segments left": len(staged(copy))})


# The same over HTTP, where the server goes on with what it was told. The order matters: what the
# driver did not live to hear of a commit it does again, and is told that it was done.
OVER_HTTP: dict[str, tuple[int, Callable[[Disk], bool]]] = {
    "a task has staged at the server": (3, lambda d: d.planned > d.committed and d.loose > 0),
    "commit sent, not answered": (1, lambda d: d.committed > d.logged),
    "the server has dropped a batch done again": (1, lambda d: d.committed > d.logged),
    "commit returned": (1, lambda d: d.committed > d.logged),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_driver_dies_in_the_windows_of_a_commit_over_http(
    tmp_path: Path, classes: Path
) -> None:
    data, checkpoint, deaths = (tmp_path / name for name in ("data", "checkpoint", "deaths"))
    deaths.mkdir()
    starting: list[Copier] = []

    def begin(window: str) -> None:
        death = f"{window}|{OVER_HTTP[window][0]}|{deaths}" if window else ""
        starting.append(
            Copier(tmp_path, "local[1]", conf=SMALL_PIECES, death=death, cache=classes, fast=True)
        )

    def work(url: str) -> Copier:
        copier = starting.pop(0).ready()
        copier.say("stream", data=url, copy=url, topic="s", checkpoint=checkpoint)
        return copier

    order, fed = list(OVER_HTTP), 0
    try:
        begin(order[0])
        with nursery(data) as server:
            with esker.open(server.url) as store:
                store.create("t", shards=2)
            for window, following in zip(order, [*order[1:], ""], strict=True):
                with esker.open(server.url) as store:
                    fed = feed(store, fed, 500)
                begin(following)  # while this one works: a JVM takes its time
                with work(server.url) as copier:
                    line = copier.line()
                assert line == "", f"{window}: was never hit"
                assert (deaths / f"{window}.died").exists(), f"{window}: {copier.told()}"
                fits = OVER_HTTP[window][1]
                wait_until(lambda fits=fits: fits(Disk.of(data, checkpoint)), f"{window}: a disk")
            with work(server.url) as copier:
                assert copier.answer() == {"failures": 0}
    finally:
        for copier in starting:
            copier.kill()
    check_copy(data, data, "s")


# ---- executors -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executors_die_and_every_record_is_copied_once(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    quick = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with (
        esker.open(data) as store,
        Copier(
            tmp_path, "local-cluster[2,1,1024]", conf=SMALL_PIECES | quick, pace=0.05,
            cache=tmp_path / "cache",  # where executors keep logs
        ) as copier,
    ):  # fmt: skip
        store.create("t", shards=2)
        feed(store, 0, 1200)
        copier.ready()
        copier.say("batch", data=data, copy=copy, topic="b", tasks=6)
        first = kill_an_executor(copier)
        assert copier.answer() == {"failures": 0}
        copier.say(
            "stream", data=data, copy=copy, topic="s", checkpoint=tmp_path / "checkpoint"
        )  # fmt: skip
        second = kill_an_executor(copier)
        assert copier.answer() == {"failures": 0}
    assert first != second
    for topic in ("b", "s"):
        check_copy(data, copy, topic)
    assert staged(copy), "nothing was left: nobody died while it staged"


def kill_an_executor(copier: Copier) -> int:
    """One of which a worker stages."""

    def find() -> Process | None:
        parents = {each.pid: each.parent for each in copier.processes()}
        busy = {parents.get(each.parent, 0) for each in copier.workers() if staging(each)}
        return next((each for each in copier.executors() if each.pid in busy), None)

    victim: Process = wait_until(find, "an executor that stages")
    assert copier.strike(victim)
    return victim.pid


# ---- Spark Connect -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_copy_through_spark_connect(tmp_path: Path, classes: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with esker.open(data) as store:
        store.create("t", shards=2)
        feed(store, 0, 1000)
    connect = {"spark.api.mode": "connect"}
    with Copier(tmp_path, "local[2]", conf=connect, cache=classes, fast=True) as copier:
        copier.ready()
        copier.say("batch", data=data, copy=copy, topic="b")
        assert copier.answer() == {"failures": 0}
        copier.say("stream", data=data, copy=copy, topic="s", checkpoint=tmp_path / "checkpoint")
        assert copier.answer() == {"failures": 0}
        copier.end()
    for topic in ("b", "s"):
        check_copy(data, copy, topic)
    with esker.open(copy, mode="r") as store:
        (batch,) = attach.commits(store._context)
        assert not isinstance(batch, esker.Corruption)
        assert batch.sequence == 2, "1,000 records in batches of 400"
        assert UUID(batch.writer.removeprefix("spark query ")), "the query, not any query"


# ---- several at once -----------------------------------------------------------------------------

LIVE = """
import sys, threading, esker
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
with esker.open(sys.argv[1]) as store:
    count = 0
    while not told.is_set():
        store["t"].append_many([b"live %d" % n for n in range(count, count + 10)], wait=True)
        count += 10
        if count == 10:
            print("ready")
        told.wait(0.01)
print(count)
"""


def test_two_batch_writes_and_a_live_process_share_a_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, rounds, rows = tmp_path / "data", 3, 500
    with esker.open(data) as store:
        store.create("t", shards=2)

    def write(name: str) -> None:
        # Where Spark looks for a source to write to, it asks the session of its thread.
        sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
        sessions.setActiveSession(spark._jsparkSession)
        for turn in range(rounds):
            frame = spark.range(turn * rows, (turn + 1) * rows, 1, 3).selectExpr(
                f"concat('{name} ', id) AS value"
            )
            frame.write.format("esker").mode("append").option("topic", "t").save(str(data))

    with child(LIVE, data) as live:
        assert live.line() == "ready"
        writers = Threads()
        for name in ("a", "b"):
            writers.start(write, name)
        writers.join()
        live.say()
        appended = int(live.line())
        live.end()
    wanted = {f"{name} {n}".encode() for name in ("a", "b") for n in range(rounds * rows)}
    wanted |= {b"live %d" % n for n in range(appended)}
    with esker.open(data) as store:
        found = Counter(record.value for record in store["t"].read())
    assert (set(found), found.total()) == (wanted, len(wanted))
    assert staged(data) == []
    assert esker.verify(data).ok


# ---- attempts that do not count ------------------------------------------------------------------


@pytest.fixture
def closed() -> Iterator[None]:
    """This process plays driver and worker."""
    yield
    plan.let_go()


def target(path: Path, **options: str) -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    from esker.spark.sink import Target

    made = Target(
        str(path), {"topic": "t", **options}, StructType([StructField("value", StringType())])
    )
    made.prepare()
    return made


def rows_of(*values: str) -> Any:
    return iter([pa.record_batch({"value": pa.array(values)})])


def values(path: Path) -> list[bytes]:
    with esker.open(path, mode="r") as store:
        return [record.value for record in store["t"].read()]


@pytest.mark.usefixtures("closed")
def test_of_two_attempts_of_a_task_one_counts_and_the_other_is_collected(tmp_path: Path) -> None:
    from esker.spark.sink import EskerWriter

    data = tmp_path / "data"
    writer = EskerWriter(target(data))
    one, two = writer.write(rows_of("a", "b")), writer.write(rows_of("a", "b"))
    other = writer.write(rows_of("c"))
    assert values(data) == []
    writer.commit([two, other])
    assert values(data) == [b"a", b"b", b"c"]
    (left,) = staged(data)
    assert [ticket.file for ticket in one.tickets] == [left.name]  # type: ignore[attr-defined]
    plan.let_go()

    later = HandClock(int((time.time() + 2 * DAY) * 1e6))
    with esker.open(data, clock=later, background=False) as store:
        assert staged(data) == [left], "it may still be wanted, as far as opening knows"
        with store.stage("t", 0) as stage:
            stage.append_many([b"d"])
        store.attach("another", 0, stage.tickets)
    assert staged(data) == []
    assert values(data) == [b"a", b"b", b"c", b"d"]


@pytest.mark.usefixtures("closed")
def test_a_batch_of_a_stream_that_is_done_again_is_dropped(tmp_path: Path) -> None:
    from esker.spark.sink import EskerStreamWriter

    data = tmp_path / "data"
    writer = EskerStreamWriter(target(data))

    def task(*words: str) -> Any:
        found = writer.write(rows_of(*words))
        found.query = "the query"  # in a task Spark says so
        return found

    writer.commit([task("a"), task("b")], 0)
    writer.commit([task("b", "a")], 0)  # divided in another way
    writer.commit([task("c")], 1)
    writer.commit([task("c")], 1)
    nameless = writer.write(rows_of("d"))
    with pytest.raises(esker.InvalidOption, match="which query"):
        writer.commit([nameless], 0)
    writer.abort([nameless], 0)
    assert values(data) == [b"a", b"b", b"c"]
    assert staged(data) == []
