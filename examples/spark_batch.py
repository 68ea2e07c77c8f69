"""A batch job: orders from a topic, turnover by product, into another topic.

    python examples/spark_batch.py [directory]

Needs `pip install esker[spark]` and, where there is no Java, `esker[spark-java]`.
"""

from __future__ import annotations

import sys

import esker
import esker.spark


def main(data: str) -> None:
    with esker.open(data) as store:
        store["orders"].append_many(
            [b'{"product": "%s", "price": %d}' % (b"tea milk scones".split()[n % 3], n % 7)
             for n in range(30_000)]
        )  # fmt: skip

    spark = esker.spark.session("turnover", lean=True)
    orders = (
        spark.read.format("esker")
        .option("subscribe", "orders")
        .option("valueFormat", "json")  # parsed where it is read, by Arrow
        .option("valueSchema", "product STRING, price BIGINT")
        .load(data)
    )
    turnover = orders.groupBy("value.product").sum("value.price").toDF("product", "turnover")
    turnover.orderBy("product").show()

    (
        turnover.selectExpr("product AS key", "to_json(struct(*)) AS value")
        .write.format("esker")
        .mode("append")
        .option("topic", "turnover")
        .save(data)  # all of it or nothing
    )
    with esker.open(data, mode="r") as store:
        for record in store["turnover"].read():
            print(record.offset, record.key, record.text)
    esker.spark.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
