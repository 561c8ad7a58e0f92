"""The runtime of both coordinators (Kafka's coordinator-common): a state machine per partition.

Outsiders import all modules of it.

    result       what a state machine decides: records, and an answer
    shard        what the runtime asks of a state machine
    runtime      loads a partition's records, appends decisions, waits for their commit
    batches      records as batches of the internal topic
    deadlines    times by key
    now          the wall clock's time and the monotonic one
    hashing      the partition of a group or a transactional id

A decision changes nothing. Its records are appended first and replayed then, so a failed append
leaves nothing behind. An answer is given when all that was appended before it is committed. That
holds for a request without records, too: it may tell of what is not committed yet.
"""
