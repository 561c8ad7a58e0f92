"""The Spark data source `tidemark`: rows of topics as Arrow batches, over gRPC.

Spark finds it by name through `pyspark_tidemark`, or a program calls `register(spark)`. Its options
and columns are those of Spark's Kafka source.

    source, portable     the classes that Spark calls; portable ones load the others where they run
    options, versions    the options of a read, checked; what PySpark 4.0 to 4.3 differ in
    planning, lookups    ask the cluster for partitions and offsets, in the driver
    offsets, pushdown    the arithmetic of ranges and slices, and filters that cut them; pure
    stream, sizes        the reader of a streaming query; bytes of the records that it has to read
    stream_offsets       its offsets, and what each batch may read; pure
    progress, reporting  numbers of each batch, for listeners and Prometheus; for a consumer group
    direct               reads of the tier past the brokers; take_snapshot: plans in a file
    slices, columns      read one slice within a task
    sink                 writes of batches and streams, each batch once
    values, topic_values typed values in place of bytes, by value_decoders; from topics' settings
    clients, worker      what a worker has: consumers between slices, errors of one line; security

A read, or a batch of a stream, has a start and an end for each partition, fixed when it is planned.
The room promises that it returns exactly the records between them, in offset order within a
partition, or raises DataLossError. With failOnDataLoss=false it returns those that the log still
has.

Importing this package or `source` loads neither gRPC nor Arrow, because Spark imports them wherever
`pyspark_tidemark` is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidemark.spark.portable import register as register
from tidemark.spark.values import typed as typed

if TYPE_CHECKING:
    from tidemark.spark.direct.snapshots import take_snapshot as take_snapshot


def __getattr__(name: str) -> Any:
    if name == "take_snapshot":
        return importlib.import_module("tidemark.spark.direct.snapshots").take_snapshot
    raise AttributeError(f"module 'tidemark.spark' has no attribute {name!r}")
