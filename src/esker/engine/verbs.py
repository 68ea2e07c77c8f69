"""Verbs of a store that rooms above the engine speak.

`store.queue(...)` belongs on the store, and the room that knows how lies above it. So that room's
opener is entered here by the package's front door (`esker/__init__.py`), which may import every
room, and found when the verb is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esker.queues.queue import Queue

OPENERS: dict[str, Callable[[], Callable[..., Any]]] = {}
"""Who does it, by the name of the verb: a function that imports the function to call."""


class StoreVerbs:
    """The part of a store that is done elsewhere."""

    def queue(self, name: str, **options: Any) -> Queue:
        """The queue of that name: a topic whose records are claimed under leases, then acked.

        It is made if need be, with the options that are given; see docs/queues.md. Options that
        differ from those it has are changed, for everybody who opens it from then on.
        """
        opened: Queue = OPENERS["queue"]()(self, name, **options)
        return opened
