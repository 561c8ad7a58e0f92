"""The Spark Data Source `tidemark`: rows of topics as Arrow batches, read over gRPC.

`offsets` is the arithmetic of ranges (no IO, shared by batch and streaming), `options` what a user
may say, `slices` the reading of one range within a task, `source` the classes that Spark calls.
Importing this package or `source` loads neither gRPC nor Arrow: Spark imports it eagerly wherever
`pyspark_tidemark` is installed.
"""
