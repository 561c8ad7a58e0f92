"""Spark jobs over topics, which the command `tidemark spark run` starts.

    session              the Spark session of a job
    batches              what each batch of a job reads, and its file in the journal; pure
    journal              plans and results of the batches, durable; where a killed job goes on
    files                files of any Hadoop file system, through the session
    reading              questions to the cluster, and data frames of a batch
    running              the loop over the batches of a run
    export               a topic to Parquet
    iceberg              a table of Iceberg with the batches of an export
    target               a topic that a job writes to: its ends, and what a batch added
    copying              mirror and replay: a topic to a topic
    translating          a consumer group to the other cluster of a mirror
    importing            files to a topic
    stats                records, bytes, keys and timestamps of topics

A job that writes works in batches. The plan of a batch, its range of offsets in each partition, is
durable before anything is written. A batch that was interrupted is done again from the same plan,
so its records are the same, and what it writes takes effect once. Counts of what was read and
written are compared per partition before a batch counts as done.

Importing this package loads nothing of Spark. Outsiders import its modules.
"""
