"""A streaming job: a topic is copied, filtered, into another one, each record exactly once.

    python examples/spark_stream.py [directory]

Run it again and it goes on where it stopped: the checkpoint beside the data remembers where. Kill
it in between, and nothing is lost or doubled.
"""

from __future__ import annotations

import sys

import esker
import esker.spark


def main(data: str) -> None:
    with esker.open(data) as store:
        store["events"].append_many(
            [b"%s %d" % (b"error" if n % 10 == 0 else b"info", n) for n in range(5_000)]
        )

    spark = esker.spark.session("errors", lean=True)
    events = (
        spark.readStream.format("esker")
        .option("subscribe", "events")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .option("valueFormat", "string")
        .load(data)
    )
    query = (
        events.filter("value LIKE 'error%'")
        .select("value")
        .writeStream.format("esker")
        .option("topic", "errors")
        .option("path", data)
        .option("checkpointLocation", f"{data}-checkpoint")
        .trigger(availableNow=True)  # all that is there now; leave it out to run for ever
        .start()
    )
    query.awaitTermination()
    for progress in query.recentProgress:
        print(f"batch {progress['batchId']}: {progress['numInputRows']} records read")

    with esker.open(data, mode="r") as store:
        print(f"{len(store['errors'])} errors in {len(store['events'])} events")
    esker.spark.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
