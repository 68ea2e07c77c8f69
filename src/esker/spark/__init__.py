"""Esker in Apache Spark: read topics as tables and streams, and a session that starts by itself.

    import esker.spark
    spark = esker.spark.session()       # local, tuned, with a Java from a wheel if need be

    spark.read.format("esker").option("subscribe", "orders").load("data")

    source.py       the format "esker": what Spark calls, in batch queries
    stream.py       the same as a stream
    shown.py        a group of the log that shows how far a stream is
    sink.py         writing, in batches and streams, each batch exactly once
    wanted.py       the options of reading, with Kafka's names
    plan.py         which offsets are read, and how they are divided
    origin.py       what all places have in common that can be read; origins.py picks one:
    local.py        a directory
    remote.py       a server
    history.py      an archive
    kin.py          the files of another log
    yard.py         where rows are staged and committed: in a directory, on a server
    tasks.py        what a worker is told
    rows.py         records as rows, in the workers
    worker.py       what is done once in each worker
    table.py        archive and log as one DataFrame; `esker.spark.table()`
    jobs/           archive, scrub, replay and so on, over whole logs
    session.py      a tuned local session; `esker.spark.session()`
    java.py         which Java Spark is started with
    cache.py        the few files that both keep in the user's cache directory

Needs `pip install esker[spark]`. Importing this package does not import PySpark: that happens when
a session is asked for, so that a program without Spark does not pay for it.
"""

from esker.spark.session import environment, require, session, shutdown
from esker.spark.table import table

__all__ = ["environment", "require", "session", "shutdown", "table"]
