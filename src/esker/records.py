"""The values that cross the API's edge: Record, Span, Gap, Offset.

They are small, frozen and cheap. Nothing on a hot path makes them one by one: a reader builds a
whole batch of records with one `map` in C, and a writer takes plain bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

Value = bytes | str | dict[str, Any]
"""What can be appended: bytes, text (stored as UTF-8), or a dict (stored as JSON)."""

SHOWN: Final = 80  # characters or bytes of a value in a repr


def _short(given: Any) -> str:
    if isinstance(given, bytes | str) and len(given) > SHOWN:
        return f"{given[:SHOWN]!r}… ({len(given)} {'bytes' if type(given) is bytes else 'letters'})"
    text = repr(given)
    return text if len(text) <= 5 * SHOWN else f"{text[: 5 * SHOWN]}…"


class Record(msgspec.Struct, frozen=True):
    """One record, as read; or as given to `append_many`, where only `value` is needed."""

    value: bytes
    key: bytes | None = None
    tag: str | None = None
    node: str | None = None
    headers: Mapping[str, bytes] | None = None
    timestamp: int | None = None  # microseconds since 1970, UTC
    offset: int = -1
    shard: int = 0

    def __repr__(self) -> str:
        """What is set, with long values cut: a record of megabytes is one line in a log, too."""
        shown = [f"offset={self.offset}, shard={self.shard}"] if self.offset >= 0 else []
        shown.append(f"value={_short(self.value)}")
        for name in ("key", "tag", "node", "headers"):
            given = getattr(self, name)
            if given is not None:
                shown.append(f"{name}={_short(given)}")
        if self.timestamp is not None:
            shown.append(f"timestamp={self.timestamp}")
        return f"Record({', '.join(shown)})"

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime in UTC."""
        return datetime.fromtimestamp((self.timestamp or 0) / 1e6, UTC)

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    def json(self) -> Any:
        """The value decoded as JSON."""
        return msgspec.json.decode(self.value)


class Span(msgspec.Struct, frozen=True):
    """The offsets [first, last] that a batch got in one shard."""

    shard: int
    first: int
    count: int

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.first + self.count - 1

    @property
    def next(self) -> int:
        """The offset behind the last record."""
        return self.first + self.count

    def __len__(self) -> int:
        return self.count


class Spans(tuple[Span, ...]):
    """What a batch got when its keys spread it over several shards."""

    __slots__ = ()

    @property
    def count(self) -> int:  # type: ignore[override]  # records, not a search in the tuple
        """How many records, over all shards."""
        return sum(span.count for span in self)


class Offset(int):
    """An offset that knows its shard; what `append` returns for a topic of several shards."""

    shard: int

    def __new__(cls, value: int, shard: int) -> Offset:
        self = super().__new__(cls, value)
        self.shard = shard
        return self

    def __repr__(self) -> str:
        return f"Offset({int(self)}, shard={self.shard})"

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, how: str) -> str:
        return format(int(self), how)


class Gap(msgspec.Struct, frozen=True):
    """Offsets first..last were lost before you read them, because of `reason`.

    `missed` is how many records at the most: offsets that were set aside for a writer that lost
    power were perhaps never issued.
    """

    topic: str
    shard: int
    first: int
    last: int
    reason: str

    @property
    def missed(self) -> int:
        """How many records at the most."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} shard {self.shard}: offsets {self.first}..{self.last} "
            f"({self.missed} at most) are gone ({self.reason})"
        )
