"""Many who wait for what is appended, each on a connection of his own: with Esker, with its peers.

All connections of a crowd are plain sockets that one thread watches by epoll, for every subject
alike: what is measured is the server, and nobody's client. A record is delivered when its bytes
are read.

    Esker   a stream of server-sent events each
    NATS    a push consumer of the JetStream stream each, delivered to a subscription of its own
    Redis   XREAD BLOCK each, asked again as soon as its answer is whole, as a client has to
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterable
from typing import Any

from bench.server import Esker, Nats, Redis, answer, json_body, post, values

QUIET_SECONDS = 30.0
PIECE = 1 << 18


class Crowd:
    """Those who wait, and who appends what they wait for."""

    def __init__(self, made: Iterable[socket.socket]) -> None:
        self.sockets = {each.fileno(): each for each in made}
        self._poll = select.epoll()
        for each in self.sockets.values():
            self._poll.register(each, select.EPOLLIN)

    def append(self, count: int) -> None:
        """Send so many records, all at once."""
        raise NotImplementedError

    def settle(self) -> None:
        """Read what the server says to that."""
        raise NotImplementedError

    def came(self, number: int, data: bytes) -> int:
        """How many records this piece of an answer ends."""
        raise NotImplementedError

    def heard(self, each: int) -> list[float]:
        """Read until all have heard so many records; when each of them was."""
        left, when = each * len(self.sockets), []
        deadline = time.monotonic() + QUIET_SECONDS
        while left > 0:
            for number, _ in self._poll.poll(QUIET_SECONDS):
                data = self.sockets[number].recv(PIECE)
                if not data:
                    raise RuntimeError("the server hung up")
                found = self.came(number, data)
                left -= found
                when += [time.perf_counter()] * found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} records did not come")
        return when

    def close(self) -> None:
        self._poll.close()
        for each in self.sockets.values():
            each.close()


class _Marked(Crowd):
    """Each record that comes has a mark, in which it may be cut."""

    mark: bytes

    def __init__(self, made: Iterable[socket.socket]) -> None:
        super().__init__(made)
        self._ends = dict.fromkeys(self.sockets, b"")

    def came(self, number: int, data: bytes) -> int:
        data = self._ends[number] + data
        self._ends[number] = data[1 - len(self.mark) :]
        return data.count(self.mark)


# ---- Esker -----------------------------------------------------------------------------------


def ask(topic: str) -> bytes:
    """How one asks for a stream of events."""
    return f"GET /v1/watch?topics={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Watchers(_Marked):
    """Many streams of one topic."""

    mark = b'"offset":'

    def __init__(self, esker: Esker, topic: str, count: int) -> None:
        self._esker = esker
        self._path = f"/v1/topics/{topic}/records"
        self._posts: dict[int, bytes] = {}
        made = [esker._connected() for _ in range(count)]
        for each in made:
            each.sendall(ask(topic))
        for each in made:
            heard = b""
            while b"event: caught-up" not in heard or not heard.endswith(b"\n\n\r\n"):
                piece = each.recv(1 << 16)
                if not piece or heard.startswith(b"HTTP/1.1 4"):
                    raise RuntimeError(heard[:500].decode(errors="replace"))
                heard += piece
        super().__init__(made)

    def append(self, count: int) -> None:
        if count not in self._posts:
            self._posts[count] = post(self._path, json_body(values(count)))
        self._esker._sockets[0].sendall(self._posts[count])

    def settle(self) -> None:
        answer(self._esker._sockets[0])


# ---- peers -----------------------------------------------------------------------------------


class NatsCrowd(_Marked):
    """Many push consumers of one stream."""

    def __init__(self, nats: Nats, topic: str, count: int) -> None:
        self._nats = nats
        self._topic = topic
        self.mark = f"MSG {topic} 1 ".encode()  # under the subject as which it was published
        self._writer = _nats_socket(nats.port, b"SUB acks 1\r\n")
        self._acks = 0
        made = [
            _nats_socket(nats.port, f"SUB to.{topic}.{number} 1\r\n".encode())
            for number in range(count)
        ]
        nats.consume(topic, [f"to.{topic}.{number}" for number in range(count)])
        super().__init__(made)

    def append(self, count: int) -> None:
        self._acks = count
        sent = [f"PUB {self._topic} acks {len(each)}\r\n{each}\r\n" for each in values(count)]
        self._writer.sendall("".join(sent).encode())

    def settle(self) -> None:
        data = b""
        while data.count(b"MSG acks ") < self._acks or not data.endswith(b"}\r\n"):
            data += self._writer.recv(PIECE)

    def close(self) -> None:
        self._nats.forget(self._topic)
        self._writer.close()
        super().close()


def _nats_socket(port: int, subscribe: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n' + subscribe + b"PING\r\n")
    heard = b""
    while b"PONG\r\n" not in heard:
        heard += made.recv(1 << 16)
    return made


class RedisCrowd(Crowd):
    """Many who block in XREAD on one stream. Its ids are 1-1, 2-1, 3-1: they count the records."""

    def __init__(self, redis: Redis, topic: str, count: int) -> None:
        self._key = topic.encode()
        self._next = 1
        self._sent = 0
        self._writer = _redis_socket(redis.port)
        super().__init__(_redis_socket(redis.port) for _ in range(count))
        self._at = dict.fromkeys(self.sockets, 0)
        self._read = dict.fromkeys(self.sockets, b"")
        for number in self.sockets:
            self._ask(number)

    def _ask(self, number: int) -> None:
        last = b"%d-1" % self._at[number]
        self.sockets[number].sendall(
            _command(b"XREAD", b"BLOCK", b"0", b"STREAMS", self._key, last)
        )

    def append(self, count: int) -> None:
        parts = []
        for value in values(count):
            name = b"%d-1" % self._next
            parts.append(_command(b"XADD", self._key, name, b"v", value.encode()))
            self._next += 1
        self._sent = count
        self._writer.sendall(b"".join(parts))

    def settle(self) -> None:
        data = b""
        while data.count(b"-1\r\n") < self._sent:
            data += self._writer.recv(PIECE)

    def came(self, number: int, data: bytes) -> int:
        data = self._read[number] + data
        head = _HEAD.match(data)
        names = _NAME.findall(data)
        if head is None or len(names) < int(head[1]) or not _whole(data, names[-1]):
            self._read[number] = data  # the rest is on its way
            return 0
        self._read[number] = b""
        found = int(names[-1]) - self._at[number]
        self._at[number] += found
        self._ask(number)
        return found

    def close(self) -> None:
        self._writer.close()
        super().close()


_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
_NAME = re.compile(rb"\$\d+\r\n(\d+)-1\r\n")


def _whole(data: bytes, last: bytes) -> bool:
    """Whether the last record of an answer is all there: its name, and two texts behind it."""
    behind = data[data.rindex(last + b"-1\r\n") :]
    return behind.count(b"\r\n") == 6  # the name, *2, $1, v, $110 and the value


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b\r\n" % (len(each), each) for each in words
    )


def _redis_socket(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def peers(bench: Any, topic: str, count: int) -> dict[str, Crowd]:
    """A crowd of each peer that is there; of those that keep data as class `disk` does."""
    made: dict[str, Crowd] = {}
    for name, kind in (("nats", NatsCrowd), ("redis", RedisCrowd)):
        if bench.peers[name]:
            made[name] = kind(bench.peers[name][False], topic, count)
    return made
