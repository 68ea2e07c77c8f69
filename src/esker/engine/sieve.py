"""What a reader leaves out, by whole batches: what was deleted, and what came from its own node.

A batch is held against a mask that Arrow makes in one go. Most batches hold nothing of the kind;
they are passed on as they are, standing on the mapped file. From the others the records that stay
are copied, and their offsets go along, for they no longer follow each other.

What is left out is not lost: no Gap is told of it, and who reads on does so behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import InvalidOption
from esker.format.columns import Columns
from esker.storage.marks import Marks


class Sieve(NamedTuple):
    """Which records to leave out."""

    node: str | None = None  # those that came from this node
    deleted: bool = True  # those that were deleted

    def keep(self, columns: Columns, first: int, marks: Marks) -> Any:
        """Which of the records from `first` on stay, as a boolean array; None for all of them."""
        keep: Any = None
        if self.node is not None and columns.nodes is not None:
            other = pc.not_equal(columns.nodes, self.node)
            keep = pc.fill_null(other, True) if other.null_count else other  # from no node at all
        deleted = marks.mask(first, columns.count) if self.deleted and marks else None
        if deleted is not None:
            keep = pc.invert(deleted) if keep is None else pc.and_not(keep, deleted)
        return None if keep is None or pc.all(keep).as_py() else keep


def sift(columns: Columns, first: int, keep: Any) -> tuple[Columns, Any]:
    """The records that stay, and their offsets. The first of all has offset `first`."""
    left = Columns(
        *(
            column if column is None or isinstance(column, int) else column.filter(keep)
            for column in columns
        )
    )
    return left, pa.arange(first, first + columns.count).filter(keep)


def is_text(given: Any) -> bool:
    """Whether it is text that a record can hold: some, and Unicode."""
    try:
        return isinstance(given, str) and bool(given.encode())
    except UnicodeEncodeError:
        return False


def check_node(node: Any) -> Sieve:
    """What `skip_node` asks for."""
    if node is not None and not is_text(node):
        raise InvalidOption(f"skip_node={node!r}: the name of a node, as append(node=...) has it")
    return Sieve(node)
