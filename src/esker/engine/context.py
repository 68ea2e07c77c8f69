"""What all parts of one open store share.

What goes wrong is raised or returned to whoever asked. What nobody asked for also goes to the
logger "esker", for those who listen: findings of a recovery, a shard that is poisoned, a failed
sealing. Nothing is logged per record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from esker.clock import Clock
from esker.engine.ahead import Ahead
from esker.engine.findings import Finding
from esker.engine.progress import Progress
from esker.errors import (
    Corruption,
    EskerError,
    ReadOnlyStore,
    StoreClosed,
    StoreForked,
    deleted,
)
from esker.format import names
from esker.format.catalog import TopicEntry
from esker.options import StoreOptions
from esker.storage.cold import cold_place, cold_root
from esker.storage.files import Files, parent
from esker.storage.maps import Fetched, Maps

if TYPE_CHECKING:
    from esker.engine.background import Background
    from esker.engine.committer import Committer
    from esker.engine.guests import Guest
    from esker.engine.shard import Shard


LOG = logging.getLogger("esker")
LOG.addHandler(logging.NullHandler())


class Gauge:
    """Bytes that are written but not yet durable, over all shards."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._lock = threading.Lock()  # guards bytes

    def add(self, amount: int) -> None:
        with self._lock:
            self.bytes = max(0, self.bytes + amount)

    @property
    def over(self) -> bool:
        return self.bytes > self.limit


class Context:
    """One handle's surroundings: the world it was given, and its state."""

    def __init__(
        self, *, root: str, store: bytes, files: Files, clock: Clock, options: StoreOptions,
        read_only: bool,
    ) -> None:  # fmt: skip
        self.root = root
        self.store = store
        self.files = files
        self.clock = clock
        self.options = options
        self.read_only = read_only
        place = cold_place(options.cold) if options.cold else ""
        self.cold = cold_root(place)
        self.maps = Maps(
            files, options.mapped_bytes, Fetched(files, options.cold_cache_bytes, place)
        )
        self.ahead = Ahead(self.maps.cold)
        self.gauge = Gauge(options.max_unflushed_bytes)
        self.boot = files.boot_id()
        self.progress: Callable[[Progress], None] | None = None  # told while it is recovered
        self.gaps_met = 0  # gaps that readers of this handle came across
        self.told_bounds = False  # that there is no cold store for topics that have bounds
        self.ending = False  # somebody closes it; what is under way may still append
        self.closing = False  # nothing new is accepted; what was accepted is being written
        self.closed = False
        self.forked = False
        self.recover_again = _nothing  # set by the store
        self.found: Callable[[Finding], None] = _unsaid  # set by the store: for its report
        self.retain = _nothing  # set by the store: look at every topic with a policy
        self.follow_catalog = _nothing  # set by the store: take up what others have altered
        self.is_gone: Callable[[int], bool] = _never  # set by the store: a topic that was deleted?
        self.is_listed: Callable[[int], bool] = _never  # set by the store: a topic in the catalog?
        self.forsaken: Callable[[TopicEntry], None] = _unheard  # set by the store: it was deleted
        self.committer: Committer
        self.background: Background
        self.shards: list[Shard] = []
        self.guests: list[Guest] = []  # what rooms above the engine have open
        self.at_rest: list[Callable[[], None]] = []  # called first of all when it is to be closed

    @property
    def note(self) -> str:
        """When a lock was taken, for the error that names its holder."""
        return _second(self.clock.now_us() // 1_000_000)

    def vanished(self, entry: TopicEntry, folder: str) -> EskerError:
        """What to say of a shard whose directory is not there."""
        removed = parent(folder) + names.DELETED
        if self.files.kind(removed) or not self.is_listed(entry.id):
            self.forsaken(entry)
            return deleted(entry.name)
        return Corruption(
            f"the directory of topic {entry.name!r} is missing", path=folder, reason="missing"
        )

    def require_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store {self.root} is closed; open it again to use it")

    def require_staying(self) -> None:
        """Not even about to be closed: then files are closed that somebody may be reading."""
        self.require_open()
        if self.closing:
            raise StoreClosed(f"the store {self.root} is being closed; open it again to use it")

    def require_writable(self) -> None:
        self.require_staying()
        if self.forked:
            raise StoreForked(
                f"this process was forked after {self.root} was opened; only the parent may "
                "write. Open the store again in the child, on shards the parent does not write."
            )
        if self.read_only:
            raise ReadOnlyStore(f'{self.root} was opened with mode="r"; open it with mode="rw"')


@lru_cache(16)
def _second(since_1970: int) -> str:
    """A moment as text. Opening a store takes a lock for each shard, all in the same second."""
    return datetime.fromtimestamp(since_1970, UTC).isoformat(timespec="seconds")


def _unsaid(_: Finding) -> None:
    """Stands in until the store sets its own."""


def _unheard(_: TopicEntry) -> None:
    """Stands in until the store sets its own."""


def _never(_: int) -> bool:
    """Stands in until the store sets its own."""
    return False


def _nothing() -> None:
    """Stands in until the store sets its own."""
