"""A sink whose driver dies behind a decision, before it commits what it decided. Also a program
that runs a query with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from tidemark.spark.source import TidemarkDataSource
from tidemark.spark.versions import limits


def dying(group: int | None) -> type[Any]:
    """The data source `dying`; in its end it kills a process group, too."""
    from tidemark.spark.sink.writers import TidemarkStreamWriter

    def die(*_: object) -> None:
        if group is not None:
            os.killpg(group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    class DyingWriter(TidemarkStreamWriter):
        def commit(self, messages: Sequence[Any], batchId: int) -> None:
            from tidemark.spark.sink import core

            core._commit_all = die  # type: ignore[assignment]
            TidemarkStreamWriter.commit(self, messages, batchId)

        def abort(self, messages: Sequence[Any], batchId: int) -> None:
            die()  # the same process, for Spark

    class Dying(TidemarkDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            made = TidemarkDataSource.streamWriter(self, schema, overwrite)
            return DyingWriter(made._options, schema)

    return Dying


def query(spark: Any, servers: str, checkpoint: str, format_: str, tasks: int) -> Any:
    """Starts the copy of topic `from` to topic `to`, up to the present end; in batches of 200 where
    Spark has limits."""
    reader = spark.readStream.format("tidemark").option("bootstrap.servers", servers)
    if limits is not None:
        reader = reader.option("maxOffsetsPerTrigger", "200")
    rows = reader.option("subscribe", "from").load().select("key", "value").repartition(tasks)
    writing = rows.writeStream.format(format_).option("bootstrap.servers", servers)
    writing = writing.option("topic", "to").option("checkpointLocation", checkpoint)
    return writing.trigger(availableNow=True).start()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    from tests.spark.sink import dying as this

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.dataSource.register(this.dying(os.getpgrp()))
    this.query(session, sys.argv[1], sys.argv[2], "dying", 3).awaitTermination()
