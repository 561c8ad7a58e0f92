"""Flights of a topic as rows, each once; and the mean delay of each carrier."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidemark.spark import typed

spark = SparkSession.active()


@dp.table
def flights() -> DataFrame:
    """One row per record; `_corrupt` has the bytes of a record that is no flight."""
    stream = spark.readStream.format("tidemark").options(
        **{"bootstrap.servers": spark.conf.get("tidemark.bootstrap.servers")},
        subscribe=spark.conf.get("tidemark.topic"),
        columns="value,partition,offset",
    )
    rows = typed(stream.load(), "json", "carrier string, dep_delay double")
    return rows.select("value.*", "partition", "offset", "_corrupt")


@dp.materialized_view
def delays() -> DataFrame:
    """Flights and mean delay by carrier."""
    known = spark.read.table("flights").where("_corrupt IS NULL")
    return known.groupBy("carrier").agg(f.count("*").alias("n"), f.avg("dep_delay").alias("mean"))
