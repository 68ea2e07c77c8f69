"""What rooms above the engine have open in a store: queues, groups.

The engine does not know them. It lets them do in the background what is due, and closes them before
its own shards.
"""

from __future__ import annotations

from typing import Protocol


class Guest(Protocol):
    """Something that lives as long as the store is open."""

    def tend(self) -> None:
        """Do what is due; called every `sync_interval`, and by `store.tick`."""

    def close(self) -> None:
        """Make everything durable, and let go."""
