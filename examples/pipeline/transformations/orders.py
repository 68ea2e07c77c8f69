"""Orders from a topic: a table of all, turnover by product, and the expensive ones as a topic."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DATA = os.path.abspath(os.environ.get("ESKER_DATA", "data"))  # the store's directory
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """All orders; a streaming table, to which each run adds what is new in the topic."""
    return (
        spark.readStream.format("esker")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")  # parsed where it is read, by Arrow
        .option("valueSchema", "product STRING, price BIGINT")
        .load(DATA)
        .selectExpr("value.product", "value.price", "partition", "offset", "timestamp")
    )


@dp.materialized_view
def turnover() -> DataFrame:
    """What each product brought in, of all orders there are."""
    return spark.read.table("orders").groupBy("product").agg(F.sum("price").alias("turnover"))


dp.create_sink("expensive", "esker", {"path": DATA, "topic": "expensive"})


@dp.append_flow(target="expensive")
def expensive_orders() -> DataFrame:
    """The expensive ones as records again, each of them once."""
    return (
        spark.readStream.table("orders")
        .where("price >= 40")
        .selectExpr(
            "product AS key", "to_json(struct(product, price, offset)) AS value", "timestamp"
        )
    )
