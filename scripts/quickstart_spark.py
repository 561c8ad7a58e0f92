"""Step 7 of the quickstart as a process of its own: reads a topic with PySpark.

It prints rows and mean departure delay by carrier, as one JSON object. A Spark driver forks, and
the job keeps gRPC connections open; in separate processes both stay simple. Usage:
quickstart_spark.py BOOTSTRAP_SERVERS TOPIC
"""

from __future__ import annotations

import json
import os
import sys


def main(bootstrap_servers: str, topic: str) -> None:
    """Prints `{carrier: [rows, mean delay]}`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tidemark-quickstart")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = (
        spark.read.format("tidemark")
        .option("bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    fields = "carrier string, dep_delay double"
    flight = f.from_json(f.col("value").cast("string"), fields).alias("flight")
    grouped = rows.select(flight).groupBy("flight.carrier")
    found = grouped.agg(f.count("*").alias("n"), f.avg("flight.dep_delay").alias("mean")).collect()
    print(json.dumps({row.carrier: [row.n, row["mean"]] for row in found}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
