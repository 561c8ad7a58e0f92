"""Steps 7 and 8 of the quickstart as a process of its own: reads a topic with PySpark, and streams.

It prints JSON, an object a line. The first has rows and mean departure delay by carrier, and the
seconds of each part. Then comes one for each batch of the stream, which counts flights by carrier
and minute into another topic. The quickstart kills it there, and runs it again with --resume.

A Spark driver forks, and the job keeps gRPC connections open. In separate processes both stay
simple.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

_BATCH_ROWS = 120_000


def session() -> Any:
    """A session of two local cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tidemark-quickstart")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def means(spark: Any, servers: str, topic: str) -> tuple[dict[str, Any], float]:
    """`{carrier: [rows, mean delay]}`, and the seconds that the plan took."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    reader = spark.read.format("tidemark").options(subscribe=topic, columns="value")
    rows = reader.option("bootstrap.servers", servers).load()
    planned_s = time.monotonic() - began
    fields = "carrier string, dep_delay double"
    flight = f.from_json(f.col("value").cast("string"), fields).alias("flight")
    grouped = rows.select(flight).groupBy("flight.carrier")
    found = grouped.agg(f.count("*").alias("n"), f.avg("flight.dep_delay").alias("mean")).collect()
    return {row.carrier: [row.n, row["mean"]] for row in found}, planned_s


def stream(
    spark: Any, servers: str, topic: str, minutes: str, checkpoint: str, late_days: int
) -> None:
    """Counts flights by carrier and minute into the topic `minutes`, up to what `topic` has now.

    A minute is written when flights of `late_days` later came, because partitions are not in step.
    Each batch prints a line.
    """
    from pyspark.sql import functions as f

    from tidemark.spark import typed

    reader = spark.readStream.format("tidemark").options(
        subscribe=topic, columns="value,timestamp", maxOffsetsPerTrigger=str(_BATCH_ROWS)
    )
    rows = typed(reader.option("bootstrap.servers", servers).load(), "json", "carrier string")
    minute = f.window("timestamp", "1 minute").alias("minute")
    counts = rows.withWatermark("timestamp", f"{late_days} days").groupBy("value.carrier", minute)
    counts = counts.agg(f.count("*").alias("flights")).select(
        "carrier", f.unix_millis("minute.start").alias("minute_ms"), "flights"
    )
    records = counts.select(
        f.concat_ws(" ", "carrier", "minute_ms").alias("key"),
        f.to_json(f.struct("carrier", "minute_ms", "flights")).alias("value"),
    )
    writing = records.writeStream.format("tidemark").outputMode("append")
    writing = writing.option("bootstrap.servers", servers).option("topic", minutes)
    writing = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query, told = writing.start(), -1
    while query.isActive:
        query.awaitTermination(0.2)
        last = query.lastProgress
        if last is not None and last["batchId"] > told:
            told = last["batchId"]
            late = sum(each["numRowsDroppedByWatermark"] for each in last["stateOperators"])
            print(json.dumps({"batch": told, "late": late}), flush=True)
    if query.exception() is not None:
        raise query.exception()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("servers", "topic", "minutes", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--late-days", type=int, required=True)
    parser.add_argument("--resume", action="store_true", help="only the stream")
    given = parser.parse_args()
    began = time.monotonic()
    spark = session()
    started_s = time.monotonic() - began
    if not given.resume:
        carriers, planned_s = means(spark, given.servers, given.topic)
        query_s = time.monotonic() - began - started_s - planned_s
        seconds = {"start": started_s, "plan": planned_s, "query": query_s}
        print(json.dumps({"carriers": carriers, "seconds": seconds}), flush=True)
    stream(spark, given.servers, given.topic, given.minutes, given.checkpoint, given.late_days)
    spark.stop()


if __name__ == "__main__":
    main()
