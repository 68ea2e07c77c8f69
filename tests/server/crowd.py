"""The clients of a server that is killed again and again; see test_kills.py.

Each is a thread and knows nothing of kills: it tries again, or comes back with what it has. What it
was told it keeps, together with the number of the server that told it (`tests/server/nursery.py`
puts that number into the upper half of `Esker-Request`), so that it can be judged at the end.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.server.nursery import LIVES
from tests.server.streams import Events
from tests.suites import SEED

TOPICS = {"log": 1, "wide": 3}
QUEUE = "jobs"
MOST = {"log": 130, "wide": 130, QUEUE: 30}  # records in a batch
PAUSE_SECONDS = 0.005


class Told(NamedTuple):
    """An answer, and which server gave it."""

    status: int
    body: Any
    life: int


class Client(threading.Thread):
    """Somebody who calls, again and again if need be."""

    def __init__(self, name: str, port: int, over: threading.Event) -> None:
        super().__init__(name=name)
        self.port = port
        self.over = over
        self.problem: BaseException | None = None
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as problem:
            self.problem = problem
        finally:
            self._hang_up()

    def work(self) -> None:
        raise NotImplementedError

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Told | None:
        """What the server answered; None when it is over before it did."""
        data = None if body is None else msgspec.json.encode(body)
        headers["Content-Type"] = "application/json"
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(
                        "127.0.0.1", self.port, timeout=20
                    )
                    self._connection.connect()
                    self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connection.request(method, path, data, headers)
                answer = self._connection.getresponse()
                found = msgspec.json.decode(answer.read())
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                self._hang_up()
                if self.over.is_set():
                    return None
                time.sleep(PAUSE_SECONDS)
                continue
            if answer.status == 503:  # it is being opened, or stopped
                time.sleep(PAUSE_SECONDS)
                continue
            return Told(answer.status, found, life_of(answer.headers["Esker-Request"]))

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def life_of(request: str) -> int:
    """Which server it was that numbered a request so."""
    return int(request, 16) // LIVES


class Writer(Client):
    """Appends batches under keys, each until it is acknowledged."""

    def __init__(self, number: int, port: int, over: threading.Event) -> None:
        super().__init__(f"writer-{number}", port, over)
        self.number = number
        self.acked: list[tuple[str, list[str], list[dict[str, int]]]] = []
        self.tried: set[str] = set()

    def work(self) -> None:
        dice = random.Random(SEED * 1_000 + self.number)
        batch = 0
        while not self.over.is_set():
            batch += 1
            (topic,) = dice.choices(list(MOST), (9, 9, 2))
            count = dice.randint(1, MOST[topic])
            values = [f"{self.number}-{batch}-{n}" for n in range(count)]
            records = [
                {"value": value, "key": value} if topic == "wide" else {"value": value}
                for value in values
            ]
            self.tried.update(values)
            told = self.call(
                "POST", f"/v1/topics/{topic}/records", {"records": records},
                **{"Idempotency-Key": f"{self.number}-{batch}"},
            )  # fmt: skip
            if told is not None:
                assert told.status == 200, told
                self.acked.append((topic, values, told.body["spans"]))


class Reader(Client):
    """Has what it saw of each shard, in the order in which it came."""

    def __init__(self, name: str, port: int, over: threading.Event) -> None:
        super().__init__(name, port, over)
        self.seen: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        self.gaps: list[Any] = []

    def see(self, topic: str, shard: int, records: list[dict[str, Any]]) -> None:
        self.seen[topic, shard] += [(record["offset"], record["value"]) for record in records]


class Poller(Reader):
    """Follows a shard by long polls."""

    def __init__(self, topic: str, shard: int, port: int, over: threading.Event) -> None:
        super().__init__(f"poller-{topic}-{shard}", port, over)
        self.topic, self.shard = topic, shard

    def work(self) -> None:
        at = 0
        while not self.over.is_set():
            told = self.call(
                "GET",
                f"/v1/topics/{self.topic}/records?start={at}&shard={self.shard}&limit=5000&wait=1",
            )
            if told is None:
                return
            assert told.status == 200, told
            self.see(self.topic, self.shard, told.body["records"])
            self.gaps += told.body["gaps"]
            at = told.body["next"]


class Listener(Client):
    """Opens a stream of events, and again when it breaks."""

    path = ""

    def __init__(self, name: str, port: int, over: threading.Event) -> None:
        super().__init__(name, port, over)
        self.streams = 0  # that were opened
        self._last = ""

    def work(self) -> None:
        while not self.over.is_set():
            try:
                with Events(f"http://127.0.0.1:{self.port}", self.path, self._last) as events:
                    if events.status == 200:
                        self.streams += 1
                        self._listen(events)
                    else:
                        assert events.status == 503, (events.status, events.body)
            except (OSError, IndexError, ValueError):
                pass  # it was killed meanwhile, in the midst of a line, or is not there yet
            time.sleep(PAUSE_SECONDS)

    def _listen(self, events: Events) -> None:
        life = life_of(events.headers["esker-request"])
        for event in events:
            self.hear(event.kind, event.json(), life)
            self._last = event.id  # of events that are complete, as the standard has it
            if self.over.is_set():
                return

    def hear(self, kind: str, told: Any, life: int) -> None:
        raise NotImplementedError


class Follower(Listener, Reader):
    """Follows topics over one stream, resumed by `Last-Event-ID`."""

    def __init__(self, topics: str, port: int, over: threading.Event) -> None:
        Reader.__init__(self, f"follower-{topics}", port, over)
        self.path = f"/v1/watch?topics={topics}&start=earliest"
        self.streams = 0
        self._last = ""

    def hear(self, kind: str, told: Any, life: int) -> None:
        if kind == "record":
            self.see(told["topic"], told["shard"], told["records"])
        elif kind == "gap":
            self.gaps.append(told)
        else:
            assert kind in ("caught-up", "lagging"), (kind, told)


class Caller(Reader):
    """Follows topics over a WebSocket, and comes back with the last cursor of each shard."""

    def __init__(self, topics: str, port: int, over: threading.Event) -> None:
        super().__init__(f"caller-{topics}", port, over)
        self.topics = topics.split(",")
        self.sockets = 0  # that were opened
        self._cursors: dict[tuple[str, int], str] = {}

    def work(self) -> None:
        while not self.over.is_set():
            try:
                place = f"ws://127.0.0.1:{self.port}/v1/ws"
                with connect(place, compression=None, max_size=None, close_timeout=1) as socket:
                    self.sockets += 1
                    self._listen(socket)
            except InvalidStatus as problem:
                if problem.response.status_code != 503:
                    raise
            except (OSError, EOFError, TimeoutError, WebSocketException):
                pass  # it was killed meanwhile, or is not there yet
            time.sleep(PAUSE_SECONDS)

    def _listen(self, socket: ClientConnection) -> None:
        asked = {"op": "subscribe", "topics": self.topics, "start": "earliest"}
        socket.send(msgspec.json.encode({**asked, "cursors": [*self._cursors.values()]}).decode())
        while not self.over.is_set():
            try:
                told = msgspec.json.decode(socket.recv(timeout=0.5))
            except TimeoutError:
                continue
            kind = told["op"]
            if kind == "record":
                self.see(told["topic"], told["shard"], told["records"])
            elif kind == "gap":
                self.gaps.append(told)
            else:
                assert kind in ("subscribed", "caught_up", "lagging"), told
            if "cursor" in told:
                self._cursors[told["topic"], told["shard"]] = told["cursor"]


class Ledger:
    """What all workers did, together."""

    def __init__(self) -> None:
        self.handed: list[tuple[str, int, int, int]] = []  # value, shard, offset, life
        self.done: dict[str, int] = {}  # the life in which an ack was answered

    def hand(self, job: dict[str, Any], life: int) -> None:
        self.handed.append((job["value"], job["shard"], job["offset"], life))


class Hand(Client):
    """Settles jobs; what two kinds of workers have in common."""

    ledger: Ledger

    def settle(self, jobs: list[dict[str, Any]]) -> None:
        """Ack them. What was handed out by a server that is dead by now is somebody else's."""
        keys = ("shard", "offset", "token")
        body = {"jobs": [{key: job[key] for key in keys} for job in jobs]}
        told = self.call("POST", f"/v1/queues/{QUEUE}/ack", body)
        if told is None:
            return
        assert told.status == 200 or told.body["error"]["code"] == "stale_lease", told
        if told.status == 200:
            self.ledger.done.update((job["value"], told.life) for job in jobs)


class Claimer(Hand):
    """Claims jobs, some at a time, and acks them."""

    def __init__(self, ledger: Ledger, port: int, over: threading.Event) -> None:
        super().__init__("claimer", port, over)
        self.ledger = ledger

    def work(self) -> None:
        while not self.over.is_set():
            told = self.call("POST", f"/v1/queues/{QUEUE}/claim", {"max": 40, "wait": 0.5})
            if told is None:
                return
            assert told.status == 200, told
            for job in told.body["jobs"]:
                self.ledger.hand(job, told.life)
            if told.body["jobs"]:
                self.settle(told.body["jobs"])


class Worker(Listener, Hand):
    """Takes jobs from a stream of work, and acks each by a call of its own."""

    path = f"/v1/queues/{QUEUE}/work?max=4"

    def __init__(self, ledger: Ledger, port: int, over: threading.Event) -> None:
        super().__init__("worker", port, over)
        self.ledger = ledger

    def hear(self, kind: str, told: Any, life: int) -> None:
        assert kind == "job", (kind, told)
        self.ledger.hand(told, life)
        self.settle([told])
