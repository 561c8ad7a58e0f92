"""The Spark data source `tidemark`: rows of topics as Arrow batches, read over gRPC.

Spark finds it by name through `pyspark_tidemark`; programs import nothing from here. Its options
and columns are those of Spark's Kafka source.

    source     the classes that Spark calls
    options    the options of a read, parsed and checked
    planning   asks the cluster for partitions and offsets, in the driver
    offsets    the arithmetic of ranges and slices; pure
    slices     reads one slice within a task

A read has a start and an end for each partition, fixed when it is planned. The room promises that a
query returns exactly the records between them, in offset order within a partition, or raises
DataLossError. With failOnDataLoss=false it returns the records that the log still has.

Importing this package or `source` loads neither gRPC nor Arrow, because Spark imports them wherever
`pyspark_tidemark` is installed.
"""
