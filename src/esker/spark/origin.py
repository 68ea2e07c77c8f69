"""Where a query reads from, as the rest of the source sees it.

    Where       what names it: a path or a URL, and what is needed to open it. Travels to workers
    Access      how a server is talked to: the key, which no text of ours shows, and TLS
    Seen        one shard, as it was when somebody looked: its ends, places, and how it divides
    Shards      a topic, and those of its shards that are read
    Span        offsets [first, end) of one shard of one topic, named so that a task can tell
                whether it is still the topic that was meant
    Origin      topics to look at, and spans to read

Four kinds of places can be read, each by a module of its own that is an Origin: a directory
(local.py), a server (remote.py), an archive (history.py) and the files of another log (kin.py).
origins.py picks one. What is common to them, offsets and tasks and losses, is in plan.py, stream.py
and rows.py, which know none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from esker.engine.batch import Batch
from esker.engine.ranges import Atom
from esker.positions import Position
from esker.records import Gap

DELETED_SINCE: Final = "deleted since the query was planned"
HIDDEN: Final = "(redacted)"


class Access(NamedTuple):
    """How a server is talked to. Files are those of the machine that opens them."""

    key: str = ""
    timeout: str = "30s"
    retries: int = 8
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __repr__(self) -> str:
        return f"Access(key={HIDDEN if self.key else None}, timeout={self.timeout})"


NOBODY: Final = Access()


class Where(Protocol):
    """What names a place; options of a read, tasks and targets of a write are such."""

    @property
    def path(self) -> str: ...
    @property
    def cold(self) -> str: ...
    @property
    def archived(self) -> bool: ...
    @property
    def access(self) -> Access: ...


class Span(NamedTuple):
    """Offsets [first, end) of a shard."""

    topic: str
    id: int  # of the topic: another one may get its name
    shard: int
    first: int
    end: int


class Seen(Protocol):
    """A shard of a topic."""

    @property
    def visible(self) -> int:
        """The offset behind its last record."""

    @property
    def earliest(self) -> int:
        """The first offset that is there."""

    @property
    def begin(self) -> int:
        """Where it begins because somebody deleted what was before: that is not a loss."""

    def resolve(self, position: Position) -> int:
        """The offset that a position means here."""

    def since(self, time_us: int) -> int:
        """An offset before which every record is before a time."""

    def last_before(self, time_us: int, end: int) -> int:
        """An offset at and behind which every record is at or after a time."""

    def atoms(self, first: int, end: int) -> list[Atom]:
        """A range in pieces that are read together, in order and without holes."""


class Shards(NamedTuple):
    """A topic and those of its shards that are read."""

    topic: str
    id: int
    views: Mapping[int, Any]  # each of them a Seen


class Origin(Protocol):
    """Topics that can be read."""

    @property
    def shown(self) -> str:
        """What it is called in a message."""

    def names(self) -> list[str]:
        """The topics there are."""

    def look(self, name: str, shards: tuple[int, ...]) -> Shards:
        """A fresh look at a topic; no shards: all of them. Raises TopicNotFound."""

    def missed(self, topic: str, epoch: int, offset: int, shard: int) -> Gap:
        """What somebody has not read who was at an offset of a topic that was made anew."""

    def read(
        self, span: Span, columns: tuple[str, ...] = (), *, lenient: bool = False
    ) -> Iterator[Batch | Gap]:
        """All of a span: its batches, and a Gap for whatever is not there.

        `columns` are those that will be looked at; no columns: all of them. `lenient`: damage of
        which nobody can tell how many records it took is stepped over, and not raised.
        """


def weight(seen: Seen, first: int, end: int) -> int:
    """About how many bytes a range takes."""
    return sum(atom.weight for atom in seen.atoms(first, end))


def take_bytes(seen: Seen, first: int, end: int, limit: int) -> int:
    """Where to stop so as to take about so many bytes; at least one atom, if there is any."""
    taken = 0
    for atom in seen.atoms(first, end):
        if taken and taken + atom.weight > limit:
            return atom.first
        taken += atom.weight
    return end
