"""A server that is killed again and again under load: what it acknowledged is there, once.

Eight clients append batches under idempotency keys, to a topic of one shard and to one of three,
and try each batch until it is acknowledged. Two followers read by long polls, from where they are.
Meanwhile the server is killed at random and started again on the same store and port. At the end
the store itself is read and held against what the clients were told.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import esker
from tests.helpers import Child, child, wait_until
from tests.suites import SEED, Tallies, scaled

TOPICS = {"log": 1, "wide": 3}


class Caller:
    """Calls that are tried again for as long as nobody answers."""

    def __init__(self, port: int, over: threading.Event) -> None:
        self._port = port
        self._over = over
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """What the server answered; None when it is over before it did."""
        data = None if body is None else msgspec.json.encode(body)
        headers["Content-Type"] = "application/json"
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(
                        "127.0.0.1", self._port, timeout=20
                    )
                self._connection.request(method, path, data, headers)
                answer = self._connection.getresponse()
                found = msgspec.json.decode(answer.read())
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                self.close()
                if self._over.is_set():
                    return None
                time.sleep(0.005)
                continue
            if answer.status == 503:  # it is being opened, or stopped
                time.sleep(0.005)
                continue
            assert answer.status in (200, 201), found
            return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Writer(threading.Thread):
    """Appends batches, each until it is acknowledged."""

    def __init__(self, number: int, port: int, over: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        self.number = number
        self.acked: list[tuple[str, list[str], list[dict[str, int]]]] = []
        self.tried: set[str] = set()
        self.problem: BaseException | None = None
        self._caller = Caller(port, over)
        self._over = over

    def run(self) -> None:
        try:
            self._write(random.Random(SEED * 1_000 + self.number))
        except BaseException as problem:
            self.problem = problem
        finally:
            self._caller.close()

    def _write(self, dice: random.Random) -> None:
        batch = 0
        while not self._over.is_set():
            batch += 1
            topic = dice.choice(list(TOPICS))
            values = [f"{self.number}-{batch}-{n}" for n in range(dice.randint(1, 130))]
            records = [
                {"value": value, "key": value} if topic == "wide" else {"value": value}
                for value in values
            ]
            self.tried.update(values)
            told = self._caller.call(
                "POST", f"/v1/topics/{topic}/records", {"records": records},
                **{"Idempotency-Key": f"{self.number}-{batch}"},
            )  # fmt: skip
            if told is not None:
                self.acked.append((topic, values, told["spans"]))


class Reader(threading.Thread):
    """Follows a shard by long polls."""

    def __init__(self, topic: str, shard: int, port: int, over: threading.Event) -> None:
        super().__init__(name=f"reader-{topic}-{shard}")
        self.topic, self.shard = topic, shard
        self.seen: list[tuple[int, str]] = []
        self.gaps: list[Any] = []
        self.problem: BaseException | None = None
        self._caller = Caller(port, over)
        self._over = over

    def run(self) -> None:
        try:
            self._read()
        except BaseException as problem:
            self.problem = problem
        finally:
            self._caller.close()

    def _read(self) -> None:
        at = 0
        while True:
            late = self._over.is_set()
            page = self._caller.call(
                "GET",
                f"/v1/topics/{self.topic}/records?start={at}&shard={self.shard}&limit=5000&wait=1",
            )
            if page is None:
                return
            self.seen += [(record["offset"], record["value"]) for record in page["records"]]
            self.gaps += page["gaps"]
            at = page["next"]
            if late and page["caught_up"]:
                return


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def start(nursery: Child) -> int:
    nursery.say("start")
    pid = int(nursery.line())
    assert nursery.line() == "ready"
    return pid


@pytest.mark.crash
@pytest.mark.suite
@pytest.mark.timeout(900)
def test_what_a_killed_server_acknowledged_is_there_once(tmp_path: Path, tally: Tallies) -> None:
    suite = tally("server kills")
    dice, port, over = random.Random(SEED), free_port(), threading.Event()
    with esker.open(tmp_path / "data") as store:
        for name, shards in TOPICS.items():
            store.create(name, shards=shards)
    writers = [Writer(number, port, over) for number in range(8)]
    readers = [Reader("log", 0, port, over), Reader("wide", 1, port, over)]
    code = "from tests.server.nursery import main; main()"
    with child(code, tmp_path / "data", port, tmp_path / "errors") as nursery:
        server = start(nursery)
        for thread in [*writers, *readers]:
            thread.start()
        try:
            enough = scaled(200_000)
            while suite.count < suite.floor or acked(writers) < enough:
                let_live(writers, dice.randint(0, 2 * enough // suite.floor))
                time.sleep(dice.uniform(0, 0.02))  # and in the midst of things
                assert not broken(writers, readers)
                os.kill(server, signal.SIGKILL)
                gone = server
                wait_until(lambda: not Path(f"/proc/{gone}").exists(), "it dies")  # noqa: B023
                server = start(nursery)
                suite.count += 1
        finally:
            over.set()
            for thread in [*writers, *readers]:
                thread.join(60)
            os.kill(server, signal.SIGKILL)
    assert not broken(writers, readers)
    errors = tmp_path / "errors"
    assert "Traceback" not in errors.read_text(), errors.read_text()
    suite.also.update(judged(tmp_path / "data", writers, readers))


def let_live(writers: list[Writer], records: int) -> None:
    """Until so many more were acknowledged, however fast the machine is; but not for ever."""
    goal, deadline = acked(writers) + records, time.monotonic() + 2
    while acked(writers) < goal and time.monotonic() < deadline:
        time.sleep(0.002)


def acked(writers: list[Writer]) -> int:
    return sum(len(values) for writer in writers for _, values, _ in list(writer.acked))


def broken(writers: list[Writer], readers: list[Reader]) -> list[BaseException]:
    return [each.problem for each in [*writers, *readers] if each.problem is not None]


def judged(root: Path, writers: list[Writer], readers: list[Reader]) -> dict[str, int]:
    """Hold the log against what clients were told, and what followers saw against the log."""
    found: dict[tuple[str, int], list[tuple[int, str]]] = {}
    with esker.open(root) as store:
        for name, shards in TOPICS.items():
            for shard in range(shards):
                read = store[name].read(0, shard=shard)
                found[name, shard] = [(record.offset, record.text) for record in read]
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
    for reader in readers:
        assert reader.gaps == []
        expected = found[reader.topic, reader.shard]
        assert reader.seen == expected[: len(reader.seen)], "a follower saw a gap or a duplicate"
    seen = sum(len(reader.seen) for reader in readers)
    assert seen, "nobody followed"
    return {"acked": count, "followed": seen, "records": len(everything)}
