"""The group `billing`, which reads the orders and adds them up.

    python -m esker.demo.billing DATA NOTES RUN NUMBER PAUSE

It pauses after every batch, so that one sees it fall behind. Without a pause it is in a hurry, and
ends when it has caught up. A bill is noted when the batch is acked: then the group's cursor is
behind it, in every process and after a crash.
"""

from __future__ import annotations

import sys
from threading import Event
from typing import Final

import esker
from esker.demo import child
from esker.demo.goods import BILLING, ORDERS, order_of
from esker.demo.notes import Notes

BATCH: Final = 250  # orders on a bill


def bill(group: esker.Group, notes: Notes, stop: Event, pause: float) -> None:
    """Bill what there is; without a pause, until there is nothing left."""
    while not stop.is_set():
        found = False
        for batch in group.poll(BATCH, wait=0.2 if pause else 0):
            found = True
            orders = filter(None, map(order_of, batch.values))
            cents = sum(order.cents for order in orders)
            batch.ack()
            notes.add(batch.shard, batch.first, len(batch), cents)
            if stop.wait(pause):
                return
        if not pause and not found and not group.lag().records:
            return


def main() -> None:
    data, notes, run, number, pause = sys.argv[1:6]

    def work(stop: Event) -> None:
        with (
            esker.open(data, routes=False) as store,
            store[ORDERS].group(BILLING) as group,
        ):
            bill(group, Notes(notes, int(run), "bills", f"b{number}"), stop, float(pause))

    child.live(work)


if __name__ == "__main__":
    main()
