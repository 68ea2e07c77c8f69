"""Spark looks for data sources in modules whose names begin with pyspark_: here is Esker's.

With this package installed `spark.read.format("esker")` works in any session, classic or Connect,
without a jar and without registration.
"""

from esker.spark.source import EskerSource


class DefaultSource(EskerSource):
    """What Spark makes when it is asked for the format "esker"."""
