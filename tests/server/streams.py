"""A client of streams, as others would write it: an EventSource by the rules of the standard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec


class Event(NamedTuple):
    """What an EventSource dispatches."""

    kind: str
    data: str
    id: str

    def json(self) -> Any:
        return msgspec.json.decode(self.data)


class Events:
    """An EventSource: parses as the HTML standard says, remembers the last id."""

    def __init__(
        self, url: str, path: str, last: str = "", *, small: bool = False, **headers: str
    ) -> None:
        where = urlsplit(url)
        self.last = last
        self.retry = 0
        self.comments: list[str] = []
        self.socket = socket.socket()
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(30)
        try:
            self._open(path, where.netloc, (where.hostname or "", where.port or 0), headers)
        except BaseException:
            self.socket.close()
            raise
        self._parsed = self._parse()

    def _open(self, path: str, host: str, place: tuple[str, int], headers: dict[str, str]) -> None:
        self.socket.connect(place)
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Accept: text/event-stream"]
        if self.last:
            lines.append(f"Last-Event-ID: {self.last}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self.socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self.body = b""
        if self.headers.get("transfer-encoding") != "chunked":
            self.body = self._file.read(int(self.headers.get("content-length", "0")))

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def _lines(self) -> Iterator[str]:
        left = b""
        while True:
            size = int(self._file.readline() or b"0", 16)
            if not size:
                return
            left += self._file.read(size)
            self._file.readline()
            *whole, left = left.split(b"\n")
            for line in whole:
                yield line.decode().removesuffix("\r")

    def _parse(self) -> Iterator[Event]:
        kind, data = "", ""
        for line in self._lines():
            if not line:
                if data:
                    yield Event(kind or "message", data.removesuffix("\n"), self.last)
                kind, data = "", ""
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not name:
                self.comments.append(value)
            elif name == "event":
                kind = value
            elif name == "data":
                data += value + "\n"
            elif name == "id" and "\0" not in value:
                self.last = value
            elif name == "retry":
                self.retry = int(value)

    def __iter__(self) -> Iterator[Event]:
        return self._parsed

    def next(self, kind: str = "") -> Event:
        """The next event; of this kind, if one is given."""
        for event in self._parsed:
            if not kind or event.kind == kind:
                return event
        raise EOFError("the stream has ended")

    def values(self, count: int) -> list[str]:
        """So many values."""
        found: list[str] = []
        while len(found) < count:
            found += [each["value"] for each in self.next("record").json()["records"]]
        return found
