"""A server that is killed again and again under load: what it acknowledged is there, once.

Eight clients append batches under idempotency keys, to a topic of one shard, to one of three and to
a queue, and try each batch until it is acknowledged. Others follow: one by long polls, one over a
stream of one topic, one over a stream of both, which come back with `Last-Event-ID`. Two take jobs
from the queue, by claims and from a stream of work, and ack them. Meanwhile the server is killed at
random and started again on the same store and port. At the end the store itself is read and held
against what the clients were told.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import esker
from tests.helpers import PATIENCE, Child, child, lasting_port, wait_until
from tests.server.crowd import (
    QUEUE,
    TOPICS,
    Caller,
    Claimer,
    Client,
    Follower,
    Ledger,
    Poller,
    Reader,
    Worker,
    Writer,
)
from tests.suites import SEED, Tallies, scaled

Found = dict[tuple[str, int], list[tuple[int, str]]]


def start(nursery: Child) -> int:
    nursery.say("start")
    pid = int(nursery.line())
    told = nursery.line()
    assert told == "ready", told
    return pid


@pytest.mark.crash
@pytest.mark.suite
@pytest.mark.timeout(900)
def test_what_a_killed_server_acknowledged_is_there_once(tmp_path: Path, tally: Tallies) -> None:
    suite = tally("server kills")
    dice, port = random.Random(SEED), lasting_port()
    quiet, over, ledger = threading.Event(), threading.Event(), Ledger()
    with esker.open(tmp_path / "data") as store:
        for name, shards in TOPICS.items():
            store.create(name, shards=shards)
        store.queue(QUEUE, lease="1h")  # no lease runs out: a job comes again after a kill only
    writers = [Writer(number, port, quiet) for number in range(8)]
    readers: list[Reader] = [Poller("wide", 1, port, over)]
    readers += [Follower("log", port, over), Follower("log,wide", port, over)]
    readers += [Caller("log,wide", port, over)]
    workers: list[Client] = [Claimer(ledger, port, over), Worker(ledger, port, over)]
    everybody: list[Client] = [*writers, *readers, *workers]
    code = "from tests.server.nursery import main; main()"
    with child(code, tmp_path / "data", port, tmp_path / "errors") as nursery:
        server = start(nursery)
        for client in everybody:
            client.start()
        try:
            enough = scaled(200_000)
            while suite.count < suite.floor or acked(writers) < enough:
                let_live(writers, dice.randint(0, 2 * enough // suite.floor))
                time.sleep(dice.uniform(0, 0.02))  # and in the midst of things
                assert not broken(everybody)
                kill(server)
                server = start(nursery)
                suite.count += 1
            quiet.set()
            for writer in writers:
                writer.join(PATIENCE)
            finished(tmp_path / "data", readers, everybody)
        finally:
            quiet.set()
            over.set()
            kill(server)
            for client in everybody:
                client.join(PATIENCE)
    assert not broken(everybody)
    errors = tmp_path / "errors"
    assert "Traceback" not in errors.read_text(), errors.read_text()
    found = content(tmp_path / "data")
    suite.also.update(appended_once(found, writers))
    suite.also.update(followed(found, readers))
    suite.also.update(worked(tmp_path / "data", ledger, writers))


def kill(server: int) -> None:
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "it dies")


def let_live(writers: Sequence[Writer], records: int) -> None:
    """Until so many more were acknowledged, however fast the machine is; but not for ever."""
    goal, deadline = acked(writers) + records, time.monotonic() + 2
    while acked(writers) < goal and time.monotonic() < deadline:
        time.sleep(0.002)


def acked(writers: Sequence[Writer]) -> int:
    return sum(len(values) for writer in writers for _, values, _ in list(writer.acked))


def broken(clients: Sequence[Client]) -> list[BaseException]:
    return [each.problem for each in clients if each.problem is not None]


def finished(root: Path, readers: Sequence[Reader], everybody: Sequence[Client]) -> None:
    """Everybody who follows is at the end, and every job is done; the server is asked by nobody."""

    def at_the_end() -> bool:
        assert not broken(everybody)
        for reader in readers:
            for (topic, shard), seen in list(reader.seen.items()):
                if not seen or seen[-1][0] + 1 < store[topic].end(shard):
                    return False
        return store.queue(QUEUE).stats().unfinished == 0

    with esker.open(root) as store:
        wait_until(at_the_end, "all is read and done")


# ---- what must be so -------------------------------------------------------------------------


def content(root: Path) -> Found:
    found: Found = {}
    with esker.open(root) as store:
        for name, shards in {**TOPICS, QUEUE: 1}.items():
            for shard in range(shards):
                read = store[name].read(0, shard=shard)
                found[name, shard] = [(record.offset, record.text) for record in read]
    return found


def appended_once(found: Found, writers: Sequence[Writer]) -> dict[str, int]:
    """Hold the log against what clients were told."""
    tried = set().union(*(writer.tried for writer in writers))
    everything = [value for records in found.values() for _, value in records]
    assert len(everything) == len(set(everything)), "a record that came twice"
    assert set(everything) <= tried, "a record that nobody appended"
    places = {
        (name, shard, offset): value
        for (name, shard), records in found.items()
        for offset, value in records
    }
    count = 0
    for writer in writers:
        for topic, values, spans in writer.acked:
            there = [
                places.get((topic, span["shard"], span["first"] + n))
                for span in spans
                for n in range(span["count"])
            ]
            assert sorted(map(str, there)) == sorted(values), "acknowledged, and not there"
            count += len(values)
    return {"acked": count, "records": len(everything)}


def followed(found: Found, readers: Sequence[Reader]) -> dict[str, int]:
    """Hold what followers saw against the log: all of it, once, in its order."""
    for reader in readers:
        assert reader.gaps == []
        for place, seen in reader.seen.items():
            assert seen == found[place], f"{reader.name} saw a gap or a duplicate in {place}"
    assert [len(reader.seen) for reader in readers] == [1, 1, 4, 4], "a shard that nobody followed"
    seen = sum(len(each) for reader in readers for each in reader.seen.values())
    streams = sum(reader.streams for reader in readers if isinstance(reader, Follower))
    sockets = sum(reader.sockets for reader in readers if isinstance(reader, Caller))
    return {"followed": seen, "streams": streams, "sockets": sockets}


def worked(root: Path, ledger: Ledger, writers: Sequence[Writer]) -> dict[str, int]:
    """Every job was handed out, none after it was done, and none is left."""
    put = {
        value for w in writers for topic, values, _ in w.acked if topic == QUEUE for value in values
    }
    handed = Counter(value for value, *_ in ledger.handed)
    assert put <= set(handed), "a job that nobody was given"
    assert len({each[:3] for each in ledger.handed}) == len(handed), "a job that is there twice"
    by_life = Counter((value, life) for value, _, _, life in ledger.handed)
    assert set(by_life.values()) <= {1}, "a job handed out twice by the same server"
    late = [each for each in ledger.handed if each[3] > ledger.done.get(each[0], each[3])]
    assert late == [], "a job handed out after its ack was answered"
    with esker.open(root) as store:
        stats = store.queue(QUEUE).stats()
    assert (stats.unfinished, stats.dead, stats.gone) == (0, 0, 0)
    return {"jobs": len(handed), "handed out again": len(ledger.handed) - len(handed)}
