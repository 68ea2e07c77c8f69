"""Jobs that nobody has come upon yet, and of these the ones that wait for their time.

A job that is put with a delay says so in a header; the leases know of it when a claim has passed
it. Whoever counts jobs before that looks at the headers, once for each job: what was looked at is
remembered, and frames without headers cost no more than being read.
"""

from __future__ import annotations

from contextlib import suppress

from esker.engine.batch import Batch
from esker.errors import EskerError
from esker.queues.claiming import AHEAD_BYTES, not_before
from esker.queues.lane import Lane


class Fresh:
    """What was seen of the jobs behind the cursor of a lane."""

    def __init__(self) -> None:
        self._seen: tuple[int, dict[int, int]] = (0, {})  # up to here; offsets, and when they may

    def waiting(self, lane: Lane, cursor: int, end: int, wall: int) -> int:
        """How many of the jobs [cursor, end) may not be handed out yet."""
        seen, known = self._seen
        times = {offset: at for offset, at in known.items() if offset >= cursor}
        seen = max(seen, cursor)
        if seen < end:
            with suppress(EskerError):  # what cannot be read is told to whoever claims
                for batch in lane.topic._whole(seen, end, lane.number, AHEAD_BYTES):
                    if isinstance(batch, Batch) and batch.columns.headers is not None:
                        found = ((record.offset, not_before(record)) for record in batch.records())
                        times.update((offset, at) for offset, at in found if at)
        self._seen = (max(seen, end), times)
        return sum(at > wall for at in times.values())
