"""A topic's handle: what it is called, whether it exists, and how each of its shards looks now.

`writing.py` and `reading.py` build on it; `topic.py` is both together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from esker.engine import consumed, intake, tally
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.follower import Follower
from esker.engine.layout import require_dirs
from esker.engine.reader import View, count_records, earliest_of
from esker.engine.shard import Shard
from esker.errors import (
    InvalidOption,
    InvalidRecord,
    StorageError,
    TopicNotFound,
    deleted,
    nearest,
)
from esker.format.catalog import TopicEntry
from esker.options import TopicOptions

if TYPE_CHECKING:
    from esker.engine.store import Store


class Handle:
    """The part of a topic that both writing and reading need."""

    def __init__(self, store: Store, name: str, entry: TopicEntry | None) -> None:
        self._store = store
        self.name = name
        self._entry: TopicEntry | None = None
        self._buffer: Buffer = CLOSED
        self._shards: list[Shard] = []
        self._followers: list[Follower] = []
        self._gone = False  # deleted: this handle is of no use any more
        self._turn = 0
        self._shared = 0  # flushes left before a buffer may have an owner again
        self._lock = Lock()  # guards _entry, _shards, _followers
        if entry is not None:
            self._attach(entry)

    def __repr__(self) -> str:
        if self._entry is None:
            return f"<esker topic {self.name!r}, not yet created>"
        options = self._entry.options
        shards = "1 shard" if options.shards == 1 else f"{options.shards} shards"
        return f"<esker topic {self.name!r}, {shards}, {options.durability}>"

    def _attach(self, entry: TopicEntry) -> TopicEntry:
        context = self._store._context
        self._shards = [Shard(context, entry, n) for n in range(entry.options.shards)]
        self._followers = [Follower(context, entry, n) for n in range(entry.options.shards)]
        if not context.read_only:
            require_dirs(context.files, [shard.folder for shard in self._shards])
        for shard in self._shards:
            shard.door = self
            context.shards.append(shard)
        self._entry = entry
        return entry

    def _created(self) -> TopicEntry:
        """The catalog's entry; the topic is created with default options if need be."""
        entry = self._entry
        if entry is None:
            with self._lock:
                if self._gone:
                    raise deleted(self.name)
                entry = self._entry or self._attach(self._store._ensure(self.name))
        return entry

    def _existing(self) -> TopicEntry:
        """The catalog's entry; an error when there is none."""
        self._store._context.require_open()
        entry = self._entry
        if entry is not None:
            return entry
        if self._gone:
            raise deleted(self.name)
        with self._lock:
            known = self._entry or self._store._lookup(self.name)
            if known is None:
                raise TopicNotFound(
                    f"no topic {self.name!r} in {self._store.path}, appending would create it; "
                    f"{nearest(self.name, list(self._store))}"
                )
            return known if known is self._entry else self._attach(known)

    @contextmanager
    def _told_if_deleted(self) -> Iterator[None]:
        """A file that is missing because the topic was deleted meanwhile is told as that."""
        before = self._entry
        try:
            yield
        except StorageError as problem:
            entry = before or self._entry
            if isinstance(problem.__cause__, FileNotFoundError) and (
                self._gone or (entry is not None and self._store._is_on_its_way_out(entry.id))
            ):
                raise deleted(self.name) from problem
            raise

    @property
    def options(self) -> TopicOptions:
        """The topic's options, as the catalog has them."""
        return self._existing().options

    @property
    def shards(self) -> int:
        """How many shards it has."""
        return self._existing().options.shards

    @property
    def epoch(self) -> int:
        """A number of this topic alone: one of the same name that is made later has another.

        Who keeps an offset for later keeps this with it, and gives both to `read` or `follow`.
        """
        return self._existing().id

    def shard_of(self, key: bytes | str) -> int:
        """The shard that records with this key go to."""
        checked = intake.key_of(key)
        if checked is None:
            raise InvalidRecord("a record without a key belongs to no shard of its own")
        return intake.fnv1a(checked) % self.shards

    def _limit(self) -> int:
        """The largest value that this topic takes, also when it has yet to be made."""
        entry = self._entry
        return entry.options.max_record_bytes if entry else self._store._limit_of(self.name)

    def _forsake(self) -> None:
        """The topic was deleted; whoever still has this handle is told."""
        with self._lock:
            self._gone, self._entry, self._buffer = True, None, CLOSED
            for follower in self._followers:
                follower.forget()

    # ---- views ----------------------------------------------------------------------------

    def _view(self, number: int) -> View:
        """The freshest view of a shard: our own writer's, or what another process published."""
        if self._gone:
            raise deleted(self.name)
        shard = self._shards[number]
        if shard.writing:
            return shard
        if shard.durability == "ephemeral":
            shard.look()
            return shard
        follower = self._followers[number]
        follower.refresh()
        # opened meanwhile: the page may already tell what the shard is about to show
        return shard if shard.writing else follower

    def _known_view(self, number: int, offset: int) -> View:
        """A view that has this offset: what is visible once stays so, and need not be looked up."""
        self._existing()
        if type(number) is int and 0 <= number < len(self._followers):
            follower = self._followers[number]
            if 0 <= offset < follower.visible and not self._shards[number].writing:
                return follower
        return self._views(number)[0]

    def _views(self, shard: int | None) -> list[View]:
        count = self._existing().options.shards
        if shard is None:
            return [self._view(number) for number in range(count)]
        if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < count:
            raise InvalidOption(f"shard={shard}: topic {self.name!r} has shards 0..{count - 1}")
        return [self._view(shard)]

    # ---- state ----------------------------------------------------------------------------

    def end(self, shard: int = 0) -> int:
        """The offset behind the last record that readers see."""
        return self._views(shard)[0].visible

    def earliest(self, shard: int = 0) -> int:
        """The first offset that is still there."""
        return earliest_of(self._views(shard)[0])

    def durable(self, shard: int = 0) -> int:
        """The offset behind the last record that survives power loss."""
        return self._views(shard)[0].durable

    def __len__(self) -> int:
        """How many records readers see, over all shards."""
        return sum(
            count_records(view, earliest_of(view), view.visible) for view in self._views(None)
        )

    def counters(self, shard: int = 0) -> dict[str, int]:
        """Every counter of a shard's page, also while another process writes it."""
        self._views(shard)
        tally.tell(self._shards[shard])
        consumed.tell(self._shards[shard])
        page = self._shards[shard].counters or self._followers[shard]._page()
        return page.as_dict() if page is not None else {}
