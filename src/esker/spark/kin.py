"""The files of another log, as a query reads them: `load("kin+comet:///var/log/edge")`.

Each process surveys the directory for itself and maps its files; nothing is written and nothing is
repaired. A task is a row of whole files where there are enough of them, for in a file the way to a
record leads over all that are before it, or those since the last entry of an index.

Which offsets are lost a format may not be able to tell. Then damage fails a query, and with
onDataLoss=skip reading goes on in the next file.

A stream needs offsets that mean the same record for ever. Three of the formats store them; the
other two count what is there, and are read by batch queries only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from esker.engine.batch import Batch
from esker.engine.ranges import Atom
from esker.engine.reader import Range
from esker.errors import InvalidOption, TopicNotFound
from esker.kin import is_kin, open_kin
from esker.kin.store import KinStore, KinTopic
from esker.positions import Position
from esker.records import Gap
from esker.spark.local import BATCH_BYTES, checked
from esker.spark.origin import Shards, Span
from esker.storage.files import size_of

__all__ = ["Kin", "is_kin", "refuse_stream"]

_COUNTED: Final = {
    "comet": "Comet keeps the number of a record in its index only, which may be lost and rebuilt",
    "cursus": "cursus stores no offsets, and counts what is there",
}

_open: dict[tuple[str, str], KinTopic] = {}  # as far as they were surveyed


def let_go() -> None:
    """Forget what was surveyed."""
    while _open:
        _open.popitem()[1]._store.close()


def refuse_stream(path: str, *, group: str = "") -> None:
    """Refuse to stream what would not be the same records when it is read again."""
    if group:
        raise InvalidOption(f"group={group}: {path} is only read, and has no groups")
    kind = open_kin(path).kind
    if kind in _COUNTED:
        raise InvalidOption(
            f"{path} cannot be streamed: {_COUNTED[kind]}, so a checkpoint could come to mean "
            "other records. Use spark.read, or import it: esker import"
        )


class InFiles:
    """A shard of another log, as it was when it was surveyed."""

    def __init__(self, topic: KinTopic, shard: int) -> None:
        self._topic = topic
        self._shard = shard
        self.visible = topic.end(shard)
        self.earliest = self.begin = topic.earliest(shard)

    def resolve(self, position: Position) -> int:
        return self._topic._resolve(self._shard, position)

    def since(self, time_us: int) -> int:
        return self.earliest  # nothing but reading it all would tell

    def last_before(self, time_us: int, end: int) -> int:
        return end

    def atoms(self, first: int, end: int) -> list[Atom]:
        """One a file; offsets before the first file's are a part of it."""
        parts = self._topic._known(self._shard)
        found: list[Atom] = []
        for part, behind in zip(parts, [*(each.first for each in parts[1:]), end], strict=True):
            upto = min(behind, end)
            if first < upto:
                found.append(Atom(first, upto, size_of(self._topic._files, part.path)))
                first = upto
        return found


class Kin:
    """The topics of another log."""

    def __init__(self, path: str) -> None:
        self.shown = path
        self._surveyed: KinStore | None = None

    def _fresh(self) -> KinStore:
        self._surveyed = open_kin(self.shown)
        return self._surveyed

    def names(self) -> list[str]:
        return list(self._fresh())

    def look(self, name: str, shards: tuple[int, ...]) -> Shards:
        store = self._surveyed or self._fresh()
        topic = store[name]
        chosen = checked(name, shards, sorted(topic._shards(None)))
        return Shards(name, 0, {number: InFiles(topic, number) for number in chosen})

    def missed(self, topic: str, epoch: int, offset: int, shard: int) -> Gap:
        raise TopicNotFound(f"no topic {topic!r} in {self.shown}")  # they have no epochs to differ

    def read(
        self, span: Span, columns: tuple[str, ...] = (), *, lenient: bool = False
    ) -> Iterator[Batch | Gap]:
        topic = self._reaching(span)
        ranges = [Range(span.shard, span.first, span.end)]
        return topic._batches(ranges, BATCH_BYTES, 0, "skip" if lenient else "yield")

    def _reaching(self, span: Span) -> KinTopic:
        """The topic as this process knows it, surveyed anew if it has grown since."""
        known = _open.get((self.shown, span.topic))
        if known is None or known.end(span.shard) < span.end:
            known = _open[self.shown, span.topic] = self._fresh()[span.topic]
        return known
