"""A program with a streaming query that kills itself, JVM and all, at one point of a batch.

Usage: python -m tests.spark.killed_driver SERVERS DIRECTORY POINT

The query drains the topic `t` in batches of 50 rows. Each batch becomes a file, written whole by a
rename. SIGKILL ends the driver at POINT; with the POINT `none` it ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

POINTS = ("before the offsets", "after the offsets", "before the commit", "after the commit")
_BATCH = 2  # of each run: the first batches have gone well


def main(servers: str, directory: Path, point: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(dying_source(point, os.getpgrp()))
    out = directory / "out"
    out.mkdir(exist_ok=True)
    written: list[int] = []

    def take(rows: Any, number: int) -> None:
        values = [f"{row.partition} {row.offset}\n" for row in rows.collect()]
        temporary = out / f".{number}"
        temporary.write_text("".join(values))
        temporary.rename(out / f"{number}-{len(list(out.glob(f'{number}-*')))}")
        written.append(number)
        if point == "before the commit" and len(written) == _BATCH:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    reading = spark.readStream.format("dying").option("bootstrap.servers", servers)
    rows = reading.options(subscribe="t", maxOffsetsPerTrigger="50").load()
    writing = rows.select("partition", "offset").writeStream.foreachBatch(take)
    writing = writing.option("checkpointLocation", str(directory / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()


def dying_source(point: str, group: int) -> type[Any]:
    """The source, whose stream reader kills the process group `group` at a point."""
    from tidemark.spark.portable import portable_source

    class Source(portable_source()):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamReader(self, schema: Any) -> Any:
            reader = super().streamReader(schema)
            calls = {"latestOffset": 0, "partitions": 0}

            def dies(method: str, at: int, before: bool) -> None:
                inner = getattr(reader, method)

                def call(*arguments: Any) -> Any:
                    calls[method] += 1
                    answer = None if before and calls[method] == at else inner(*arguments)
                    if calls[method] == at:
                        os.killpg(group, signal.SIGKILL)
                    return answer

                setattr(reader, method, call)

            if point == "before the offsets":
                dies("latestOffset", _BATCH, before=False)
            elif point == "after the offsets":
                dies("partitions", _BATCH, before=True)
            elif point == "after the commit":
                dies("latestOffset", _BATCH + 1, before=True)
            return reader

    return Source


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
