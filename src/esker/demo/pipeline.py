"""Spark over what was written: revenue in windows back into a topic, and orders to Parquet.

    python -m esker.demo.pipeline DATA NOTES RUN

What it does is noted step by step, so that the one who waits sees why:

    starting | upto end … | aggregating done total | revenue records windows |
    archiving done total | archive rows files | missing text
"""

from __future__ import annotations

import sys
from threading import Event
from typing import Any, Final

from esker.demo import child
from esker.demo.goods import ORDERS, REVENUE
from esker.demo.notes import Notes
from esker.errors import JavaMissing, PySparkMissing

WINDOW: Final = 5  # seconds
SPEC: Final[dict[str, Any]] = {
    "window": f"{WINDOW}s",
    "group_by": ["region"],
    "schema": {"region": "STRING", "cents": "BIGINT"},
    "metrics": {"orders": "count", "cents": "sum(cents)"},
}


def pipeline(data: str, steps: Notes) -> None:
    """Both jobs, in one session."""
    import esker.spark

    try:
        steps.add("starting")
        spark = esker.spark.session("esker-demo", lean=True)
    except (PySparkMissing, JavaMissing) as problem:
        steps.add("missing", problem)
        return
    from esker.spark import jobs

    try:
        with esker.open(data, "r") as store:
            orders = store[ORDERS]
            steps.add("upto", *(orders.end(shard) for shard in range(orders.shards)))
        made = jobs.aggregate(
            spark, data, ORDERS, SPEC, to=REVENUE, on_bad_value="skip",
            progress=lambda progress: steps.add("aggregating", progress.done, progress.total),
        )  # fmt: skip
        steps.add("revenue", made.matched, made.windows)
        kept = jobs.archive(
            spark, data, ORDERS,
            progress=lambda progress: steps.add("archiving", progress.done, progress.total),
        )  # fmt: skip
        steps.add("archive", kept.rows, kept.files)
    finally:
        esker.spark.shutdown()


def main() -> None:
    data, notes, run = sys.argv[1:4]

    def work(stop: Event) -> None:
        pipeline(data, Notes(notes, int(run), "spark"))

    child.live(work, grace=0.5)


if __name__ == "__main__":
    main()
