"""Esker in Spark beside Parquet and JSON lines, in one session, on the same data.

    python -m bench.spark              5 million records of 200 bytes; some minutes, 5 GB of disk
    python -m bench.spark --smoke      20,000: does it work?
    python -m bench.spark --only JSON  lines whose names match this, and nothing else
    python -m bench.spark --data DIR   keeps what it wrote there, and reads it the next time

A record is a JSON object: numbers, a user, and a text of random words, which Parquet (snappy) makes
a third shorter. Each query runs four times to warm up (the JVM compiles for that long, on the cores
of others) and three times to be timed, all formats in turn; the median counts. Everything is read
from the page cache. The table gives seconds, and how long Esker took relative to Parquet; a goal is
the most that may be. What more segments and shards cost comes after it (spark_scale.py).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import esker
import esker.spark
from bench import spark_scale
from bench.measure import RESULTS
from esker.spark import jobs

RECORDS = 5_000_000
SMOKE_RECORDS = 20_000
PIECE = 50_000
REPEATS = 3
WARM_UPS = 4
STEP_US = 1_000
T0 = 1_700_000_000_000_000
SCHEMA = "id BIGINT, user STRING, amount DOUBLE, pad STRING"
ASKED = "user STRING, amount DOUBLE"  # Spark prunes `from_json` to these by itself


class Line(NamedTuple):
    """One operation: seconds by format, and the most that Esker may take relative to Parquet."""

    operation: str
    seconds: dict[str, float]
    goal: float

    @property
    def ratio(self) -> float:
        return self.seconds["esker"] / self.seconds["parquet"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a size at which nothing means much")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to work")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", metavar="PATTERN", help="lines whose names match; no results")
    parser.add_argument("--data", type=Path, help="what is read is kept here")
    options = parser.parse_args(arguments)
    options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".bench-spark-", dir=options.dir.resolve()))
    try:
        bench = Bench(folder, SMOKE_RECORDS if options.smoke else RECORDS, options.data)
        lines = bench.run(options.only or "")
        if options.only:
            print(table(lines))
            return 0
        floor = bench.floor()
        bench.say("more segments, more shards")
        scans = spark_scale.scans(bench.spark, folder, 10_000 if options.smoke else 1_000_000)
        bench.say("planning over many segments; making them takes minutes")
        plan = spark_scale.planning(folder, 1_000 if options.smoke else 100_000)
    finally:
        esker.spark.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(lines, floor))
    print()
    print(spark_scale.table(scans, plan))
    if not options.smoke:
        told = {
            "lines": [{**line._asdict(), "ratio": round(line.ratio, 3)} for line in lines],
            "micro_batch_ms": floor,
            "layouts": [scan._asdict() for scan in scans],
            "planning": plan._asdict(),
        }
        (options.results / "spark.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0


def table(lines: list[Line], floor: float | None = None) -> str:
    head = f"{'operation':<52}{'esker':>8}{'parquet':>9}{'text':>8}{'ratio':>8}{'goal':>8}  met"
    rows = [head, "-" * len(head)]
    for line in lines:
        text = line.seconds.get("text")
        rows.append(
            f"{line.operation:<52}{line.seconds['esker']:>8.2f}{line.seconds['parquet']:>9.2f}"
            f"{f'{text:.2f}' if text else '–':>8}{line.ratio:>8.2f}{f'≤ {line.goal}':>8}"
            f"  {'yes' if line.ratio <= line.goal else 'NO'}"
        )
    if floor is None:
        return "\n".join(rows)
    met = "yes" if floor <= 200 else "NO"
    name = "a micro-batch, source to sink, milliseconds"
    rows.append(f"{name:<52}{floor:>8.0f}{'≤ 200':>33}  {met}")
    return "\n".join(rows)


def _words() -> str:
    """Four megabytes of text out of five thousand words that nobody knows."""
    chance = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    known = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(5_000)]
    return " ".join(chance.choices(known, k=700_000))


class Bench:
    """The data in three formats, and a session."""

    def __init__(self, folder: Path, records: int, data: Path | None = None) -> None:
        self.folder = folder
        self.records = records
        self.data = (data or folder / "data").resolve()
        self.store = str(self.data / "store")
        self.start = time.perf_counter()
        self.spark = esker.spark.session("bench", "local[2]", {"spark.driver.memory": "4g"})
        self.spark.sparkContext.setLogLevel("ERROR")

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.start:6.1f} s  {text}", file=sys.stderr, flush=True)

    def prepare(self) -> None:
        done = self.data / f"{self.records} records"  # written last
        if done.exists():
            return
        if self.data.exists():
            raise SystemExit(f"{self.data} is there, and not with {self.records:,} records")
        self.data.mkdir(parents=True)
        self.say(f"writing {self.records:,} records")
        words = _words()
        with esker.open(self.store) as store:
            topic = store.create("t")
            share = self.records // 20  # the last of twenty segments is not sealed: 95 % are
            history = store.create("h", segment_records=share)
            for first in range(0, self.records, PIECE):
                values = []
                for n in range(first, min(first + PIECE, self.records)):
                    user, amount = f"user-{n % 997}", f"{n % 10_007}.25"
                    text = f'{{"id": {n}, "user": "{user}", "amount": {amount}, "pad": "'
                    at = n * 7_919 % (len(words) - 200)
                    values.append((text + words[at : at + 198 - len(text)] + '"}').encode())
                begin, end = (T0 + at * STEP_US for at in (first, first + len(values)))
                stamps = pa.array(range(begin, end, STEP_US)).cast(pa.timestamp("us", "UTC"))
                piece = pa.table({"value": values, "timestamp": stamps})
                topic.append_arrow(piece)
                for at in range(0, piece.num_rows, share):
                    history.append_arrow(piece.slice(at, share))
        self.say("the same as Parquet and as text, by Spark")
        rows = self.esker(columns="offset,timestamp,value")
        rows.write.parquet(str(self.data / "parquet"), compression="snappy")
        rows.select("value").write.text(str(self.data / "text"))

        self.say(str(jobs.archive(self.spark, self.store, "h")))
        done.touch()

    # -- the formats --

    def esker(self, **options: str) -> Any:
        options = {"subscribe": "t", "valueFormat": "string", "columns": "value", **options}
        return self.spark.read.format("esker").options(**options).load(self.store)

    def parquet(self) -> Any:
        return self.spark.read.parquet(str(self.data / "parquet"))

    def text(self) -> Any:
        return self.spark.read.text(str(self.data / "text"))

    # -- operations --

    def run(self, only: str = "") -> list[Line]:
        self.prepare()
        few = self.records // 50
        low = f"timestamp_micros({T0 + self.records // 2 * STEP_US})"
        high = f"timestamp_micros({T0 + (self.records // 2 + few) * STEP_US})"
        between = f"timestamp >= {low} AND timestamp < {high}"
        total = "sum(crc32(value))"
        parsed = f"from_json(value, '{SCHEMA}') AS value"

        def grouped(rows: Any) -> None:
            rows.groupBy("value.user").sum("value.amount").agg({"user": "count"}).collect()

        operations: list[tuple[str, dict[str, Callable[[], Any]], float]] = [
            (
                "full scan, every byte, checksums verified",
                {
                    "esker": lambda: self.esker().selectExpr(total).collect(),
                    "parquet": lambda: self.parquet().selectExpr(total).collect(),
                    "text": lambda: self.text().selectExpr(total).collect(),
                },
                1.1,
            ),
            (
                "a time range of 2 %, filters pushed",
                {
                    "esker": lambda: self.esker(columns="value,timestamp").filter(between)
                    .selectExpr(total).collect(),
                    "parquet": lambda: self.parquet().filter(between).selectExpr(total).collect(),
                },
                0.9,
            ),
            (
                "JSON parsed in the source, grouped",
                {
                    "esker": lambda: grouped(self.esker(valueFormat="json", valueSchema=SCHEMA)),
                    "parquet": lambda: grouped(self.parquet().selectExpr(parsed)),
                    "text": lambda: grouped(self.text().selectExpr(parsed)),
                },
                0.5,
            ),
            (
                "the same, with the fields alone that are asked for",
                {
                    "esker": lambda: grouped(self.esker(valueFormat="json", valueSchema=ASKED)),
                    "parquet": lambda: grouped(self.parquet().selectExpr(parsed)),
                },
                0.5,
            ),
            (
                'columns="timestamp": count and max',
                {
                    "esker": lambda: self.esker(columns="timestamp")
                    .selectExpr("count(*)", "max(timestamp)").collect(),
                    "parquet": lambda: self.parquet()
                    .selectExpr("count(*)", "max(timestamp)").collect(),
                },
                2.0,
            ),
            (
                "esker.spark.table over 95 % archive",
                {
                    "esker": lambda: esker.spark.table(self.spark, self.store, "h")
                    .selectExpr(total).collect(),
                    "parquet": lambda: self.parquet().selectExpr(total).collect(),
                },
                1.1,
            ),
            (
                "batch write, synced and attached",
                {"esker": lambda: self.write("esker"), "parquet": lambda: self.write("parquet")},
                1.3,
            ),
            (
                "stream, source to sink",
                {"esker": lambda: self.stream("esker"), "parquet": lambda: self.stream("parquet")},
                1.5,
            ),
        ]  # fmt: skip
        chosen = [each for each in operations if re.search(only, each[0])]
        return [Line(name, self.timed(name, kinds), goal) for name, kinds, goal in chosen]

    def timed(self, name: str, kinds: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """Medians; the formats take turns, and each is warmed up."""
        self.say(name)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(WARM_UPS + REPEATS):
            for kind, run in kinds.items():
                begun = time.perf_counter()
                run()
                if turn >= WARM_UPS:
                    seconds[kind].append(time.perf_counter() - begun)
        return {kind: statistics.median(each) for kind, each in seconds.items()}

    def fresh(self) -> str:
        return tempfile.mkdtemp(prefix="out-", dir=self.folder)

    def write(self, kind: str) -> None:
        rows, out = self.parquet().select("value"), self.fresh()
        if kind == "esker":
            rows.write.format("esker").mode("append").option("topic", "out").save(f"{out}/data")
        else:
            rows.write.parquet(f"{out}/data", compression="snappy")
        shutil.rmtree(out)

    def stream(self, kind: str) -> None:
        out = self.fresh()
        if kind == "esker":
            rows = self.spark.readStream.format("esker").options(
                subscribe="t", startingOffsets="earliest", columns="value", valueFormat="string"
            ).load(self.store)  # fmt: skip
            writer = rows.writeStream.format("esker").option("topic", "out")
        else:
            source = self.parquet()
            rows = self.spark.readStream.schema(source.schema).parquet(str(self.data / "parquet"))
            writer = rows.select("value").writeStream.format("parquet")
        query = (
            writer.option("path", f"{out}/data").option("checkpointLocation", f"{out}/checkpoint")
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        shutil.rmtree(out)

    def floor(self) -> float:
        """The median milliseconds of a trigger with next to nothing to do."""
        self.say("micro-batches")
        out = self.fresh()
        with esker.open(f"{out}/in") as store:
            store["t"].append_many([b"x"] * 30)
        rows = self.spark.readStream.format("esker").options(
            subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="1"
        ).load(f"{out}/in")  # fmt: skip
        query = (
            rows.select("value").writeStream.format("esker").option("topic", "out")
            .option("path", f"{out}/data").option("checkpointLocation", f"{out}/checkpoint")
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        shutil.rmtree(out)
        return statistics.median(took[5:] or took)


if __name__ == "__main__":
    raise SystemExit(main())
