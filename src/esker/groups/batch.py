"""A batch that a group has read: as any other, with an `ack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esker.engine.batch import Batch
from esker.errors import InvalidOption

if TYPE_CHECKING:
    from esker.groups.group import Group
    from esker.groups.held import Held


class GroupBatch(Batch):
    """Records of one shard, delivered to one member of a group."""

    __slots__ = ("_first", "_group", "_held")

    def __init__(self, group: Group, held: Held, batch: Batch, first: int) -> None:
        super().__init__(batch.shard, batch.begin, batch.columns, batch._offsets, batch.next_offset)
        self._group = group
        self._held = held
        self._first = first

    @property
    def topic(self) -> str:
        """The name of the topic that it is from."""
        return self._group.topic.name

    @property
    def acked(self) -> bool:
        """Whether all of it is acked, and all before it."""
        return self._held.acked >= self.next_offset

    def ack(self, upto: int | None = None, *, wait: bool = False) -> None:
        """Say that it is done with: all of it, or the records up to and with an offset.

        With `wait`, when this returns the ack survives power loss. Raises `Fenced` if the shard has
        another owner by now, who gets these records again.
        """
        group = self._group
        end = self.next_offset if upto is None or upto == self.last else self._behind(upto)
        with group._lock:
            self._held.ack(self._first, end)
        if wait:
            group.sync()

    def _behind(self, upto: Any) -> int:
        if type(upto) is not int or not self.first <= upto <= self.last:
            raise InvalidOption(
                f"upto={upto!r}: an offset of this batch, {self.first}..{self.last}"
            )
        return upto + 1
