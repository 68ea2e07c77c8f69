"""A group of the log that shows how far a stream of Spark is.

The memory of a stream is Spark's checkpoint, which nobody but Spark reads. With the option `group`
the stream puts the cursors of a group where it is: at its beginning, and whenever Spark has written
down that a batch is done. So its lag is seen where that of all other readers is, and what it has
not read is protected from retention as theirs is. It reads nothing from the group: one that was
moved by hand, or could not be moved, changes nothing in the stream, and the next batch puts it
right.
"""

from __future__ import annotations

from typing import Any

from esker.engine.context import LOG
from esker.engine.store import open_store
from esker.errors import EskerError
from esker.groups.group import check_name
from esker.spark.origin import NOBODY, Access
from esker.spark.remote import is_server, open_store_at


class Shown:
    """The group of one stream, in the process that plans its batches."""

    def __init__(self, path: str, name: str, access: Access = NOBODY) -> None:
        self.begun = False
        self._path = path
        self._access = access
        self._name = check_name(name)
        self._store: Any = None
        self._groups: dict[tuple[str, int], Any] = {}  # by topic and epoch

    def __getstate__(self) -> dict[str, object]:
        """Copies that read in the workers show nothing."""
        return {**self.__dict__, "_store": None, "_groups": {}}

    def show(self, offsets: dict[str, dict[int, int]]) -> None:
        """Put the cursors there. What goes wrong is told; the stream does not end of it."""
        try:
            if self._store is None:
                self._store = self._opened()
            for topic, shards in offsets.items():
                if topic in self._store:
                    self._put(self._store, topic, shards)
            self.begun = True
        except EskerError as problem:
            LOG.warning("group %r does not show how far the stream is: %s", self._name, problem)

    def _opened(self) -> Any:
        if is_server(self._path):
            return open_store_at(self._path, self._access, writing=True)
        return open_store(self._path, background=False, routes=False)

    def _put(self, store: Any, name: str, shards: dict[int, int]) -> None:
        topic = store[name]
        key = (name, topic.epoch)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = topic.group(self._name)
        cursors = group.cursors()
        for number, offset in shards.items():
            if cursors.get(number, offset) != offset:
                group.seek(offset, number)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store, self._groups = None, {}
