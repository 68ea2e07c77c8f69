"""Batches that are numbered, on a server: each of them is appended once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esker.client import bodies
from esker.client.pool import part
from esker.engine import intake
from esker.errors import InvalidOption, TopicNotFound
from esker.options import PRODUCER_BYTES_MAX
from esker.records import Offset, Record, Span, Value

if TYPE_CHECKING:
    from esker.client.topic import RemoteTopic


class RemoteProducer:
    """Somebody who numbers his batches: 0, 1, 2, none left out. `topic.producer(name)` makes one.

    A batch whose answer was lost can be sent again under its number, by whomever. So who does not
    say the number has it asked for first, and the call can be repeated as it is.
    """

    def __init__(self, topic: RemoteTopic, name: str, shard: int | None = None) -> None:
        size = len(name.encode(errors="replace")) if isinstance(name, str) else 0
        if not 0 < size <= PRODUCER_BYTES_MAX:
            raise InvalidOption(f"producer {name!r:.80}: text, 1 to {PRODUCER_BYTES_MAX} bytes")
        name.encode()  # a lone surrogate cannot be sent
        if shard is not None and (type(shard) is not int or shard < 0):
            raise InvalidOption(f"shard={shard!r}: the number of a shard")
        self._topic = topic
        self.name = name
        self._shard = shard
        self._path = f"/producers/{part(name)}"

    def __repr__(self) -> str:
        return f"<esker producer {self.name!r} of topic {self._topic.name!r}>"

    @property
    def last(self) -> int:
        """The number of its last batch; -1 if there is none. Go on with the next one."""
        try:
            answer = self._topic._call("GET", self._path, {"shard": self._shard}, again=True)
        except TopicNotFound:
            if self._topic._gone:
                raise
            return -1
        return int(answer.json()["last"])

    def append(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
        *, sequence: int | None = None, wait: bool | float = False,
    ) -> int:  # fmt: skip
        """Append one record under the next number, or under this one, and return its offset."""
        record = Record(value, key, tag, node, headers, timestamp)  # type: ignore[arg-type]
        found = self.append_many([record], sequence=sequence, wait=wait)
        several = self._topic._shards() > 1
        return Offset(found.first, found.shard) if several else found.first

    def append_many(
        self, records: Any, *, sequence: int | None = None, wait: bool | float = False
    ) -> Span:
        """Append records as one atomic batch under the next number, or under this one."""
        self._topic._store._require_writable()
        if sequence is not None and (type(sequence) is not int or not 0 <= sequence < 1 << 62):
            raise InvalidOption(
                f"sequence={sequence!r}: a whole number, from 0 on; one more each time"
            )
        given, wait = intake.batch_of(records), intake.wait_of(wait)
        if not given:
            raise InvalidOption("a batch of a producer has at least one record")
        media, body = bodies.batch(given)
        number = self.last + 1 if sequence is None else sequence  # or a retry would be the next one
        asked = {"producer": self.name, "sequence": number, "shard": self._shard}
        answer = self._topic._post("/records", asked, media, body, wait, again=True)
        (span,) = bodies.spans([answer])
        return span
