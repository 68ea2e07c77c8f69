"""Many topics as one: a group that reads every topic of a pattern, also those to come.

It is one ordinary group of the same name in each topic, and a look at the catalog: at once when
this process has made a topic, and every second for what others have made. `start` is for topics
that were there when the group was begun, in any of them. A topic that came later is read from its
beginning, however long nobody looked: none of its records was there before the group was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from esker.engine.reader import BATCH_BYTES, check_count, check_timeout
from esker.errors import InvalidOption, StoreClosed, TopicNotFound
from esker.format.offsets import Slot
from esker.groups.batch import GroupBatch
from esker.groups.describe import GroupStatus
from esker.groups.group import POLL_RECORDS, Group, check_name, open_group
from esker.groups.lag import Lag
from esker.groups.moves import Move
from esker.groups.process import OnError, process
from esker.groups.registry import Groups

if TYPE_CHECKING:
    from esker.engine.store import Store

LOOK_SECONDS: Final = 1.0  # between looks for topics that other processes have made
WAIT_SECONDS: Final = 0.002  # between looks for records
_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping


class PatternGroup:
    """A group that reads many topics. Use it as a context manager, or close it."""

    def __init__(
        self, store: Store, name: str, patterns: Sequence[str], start: Any, how: dict[str, Any]
    ) -> None:
        self.name = name
        self.patterns = tuple(patterns)
        self._store = store
        self._start = start
        self._how = how
        self._lock = threading.RLock()  # guards the three below
        self._groups: dict[int, Group] = {}  # by the topic's id
        self._catalog: object = None  # as it was at the last look
        self._look = 0.0
        self._turn = 0
        self._stop = False
        self.closed = False

    def __repr__(self) -> str:
        return f"<esker group {self.name!r} of {', '.join(self.patterns)}: {self.topics}>"

    @property
    def topics(self) -> list[str]:
        """The topics that are read."""
        return sorted(group.topic.name for group in self._groups.values())

    @property
    def duplicates(self) -> int:
        """As `Group.duplicates`, in all topics that are read."""
        return sum(group.duplicates for group in list(self._groups.values()))

    def discover(self) -> list[str]:
        """Look for topics now; returns all that are read."""
        with self._lock:
            self._require_open()
            entries = self._store._entries()
            self._catalog = self._store._catalog.catalog
            self._look = self._store._context.clock.monotonic() + LOOK_SECONDS
            wanted = {entry.id: entry.name for entry in entries if self._matches(entry.name)}
            for gone in self._groups.keys() - wanted.keys():
                self._groups.pop(gone)._let_go()
            fresh = [wanted[each] for each in sorted(wanted.keys() - self._groups.keys())]
            if fresh:
                known = [each for each in wanted.values() if self._reads(each)]
                start = "earliest" if known else self._start
                for topic in fresh:
                    with suppress(TopicNotFound):  # deleted meanwhile
                        group = open_group(self._store[topic], self.name, start, **self._how)
                        self._groups[group.topic._existing().id] = group
            return self.topics

    def _matches(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.patterns)

    def _reads(self, name: str) -> bool:
        """Whether a topic has a group of this name already."""
        topic = self._store[name]
        with suppress(TopicNotFound):
            topic._existing()
            page = Groups.of(self._store._context).page(topic, 0)
            page.map(writable=False)
            return any(isinstance(slot, Slot) and slot.name == self.name for slot in page.slots())
        return False

    def _current(self) -> list[Group]:
        """The groups of all topics, in turn; looks for new ones when it is time to."""
        now = self._store._context.clock.monotonic()
        if self._store._catalog.catalog is not self._catalog or now >= self._look:
            self.discover()
        with self._lock:
            self._require_open()
            groups = list(self._groups.values())
        self._turn += 1
        at = self._turn % (len(groups) or 1)
        return groups[at:] + groups[:at]

    def poll(
        self, max_records: int = POLL_RECORDS, max_bytes: int = BATCH_BYTES, wait: float | None = 0,
    ) -> Iterator[GroupBatch]:  # fmt: skip
        """As `Group.poll`; `batch.topic` says from which topic it is."""
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        self._require_open()
        return self._poll(max_records, max_bytes, check_timeout(wait))

    def _poll(self, max_records: int, max_bytes: int, wait: float | None) -> Iterator[GroupBatch]:
        clock = self._store._context.clock
        deadline = None if wait is None else clock.monotonic() + wait
        while not self._stop:
            found = False
            for group in self._current():
                with suppress(TopicNotFound):  # deleted; the next look leaves it out
                    for batch in group.poll(max_records, max_bytes):
                        found = True
                        yield batch
            left = 1.0 if deadline is None else deadline - clock.monotonic()
            if found or left <= 0:
                return
            _PAUSE.wait(min(left, WAIT_SECONDS))

    def process(
        self, handler: Callable[[GroupBatch], Any], *, retries: int = 3, delay: float = 1.0,
        on_error: OnError | None = None, auto_ack: bool = True,
        max_records: int = POLL_RECORDS, max_bytes: int = BATCH_BYTES, idle: float | None = None,
    ) -> int:  # fmt: skip
        """As `Group.process`."""
        return process(
            self, handler, retries=retries, delay=delay, on_error=on_error, auto_ack=auto_ack,
            max_records=max_records, max_bytes=max_bytes, idle=idle,
        )  # fmt: skip

    def describe(self) -> list[GroupStatus]:
        """As `Group.describe`, topic by topic."""
        return [group.describe() for group in self._current()]

    def lag(self) -> list[Lag]:
        """How far behind it is, topic by topic."""
        return [group.lag() for group in self._current()]

    def seek(self, to: Any, *, dry_run: bool = False) -> list[Move]:
        """As `Group.seek`, in every topic."""
        found = []
        for group in self._current():
            found += group.seek(to, dry_run=dry_run)
        return found

    def rewind(self) -> None:
        """As `Group.rewind`, in every topic."""
        for group in list(self._groups.values()):
            group.rewind()

    def pause(self) -> None:
        """As `Group.pause`, in every topic."""
        for group in self._current():
            group.pause()

    def resume(self) -> None:
        """As `Group.resume`, in every topic."""
        for group in self._current():
            group.resume()

    def sync(self, timeout: float | None = 30.0) -> None:
        """As `Group.sync`."""
        for group in list(self._groups.values()):
            group.sync(timeout)

    def stop(self) -> None:
        """End `process` behind the batch at hand; from any thread, or a signal handler."""
        self._stop = True

    def close(self) -> None:
        """As `Group.close`, in every topic."""
        with self._lock:
            groups, self._groups, self.closed = list(self._groups.values()), {}, True
        for group in groups:
            group.close()

    def _require_open(self) -> None:
        self._store._context.require_open()
        if self.closed:
            raise StoreClosed(f"this handle of group {self.name!r} is closed; make another one")

    def __enter__(self) -> PatternGroup:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def open_pattern(
    store: Store, name: str, pattern: str | Sequence[str], start: Any = "earliest", **how: Any
) -> PatternGroup:
    """`Store.group`."""
    store._context.require_writable()
    check_name(name)
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    if not patterns or not all(isinstance(each, str) and each for each in patterns):
        raise InvalidOption(f'pattern={pattern!r}: a pattern such as "events:*", or several')
    if isinstance(start, int) and start > 0:
        raise InvalidOption(f"start={start!r}: offsets are of one topic; give a time, or earliest")
    made = PatternGroup(store, name, patterns, start, how)
    made.discover()
    return made
