"""Tiered storage (KIP-405): rolled segments of a log are copied to a store, and read from there.

- `manager`: the RemoteLogManager, one per node, with all that a node calls.
- `errors`, `metrics`: the room's errors, with codes of Kafka's table, and its counters.
- `metadata`: the state of every remote segment, in the topic `__remote_log_metadata`.
- `store`: the bytes of remote segments, in a directory or on S3.
- `tasks`: copy, expiration and deletion; the decisions are pure, in `tasks.planner`.
- `reading`: reads by offset and timestamp, their caches, and the state a follower starts from.

Outsiders import `manager`, and `slots` where partitions share a limit. To put a node together they
import `metadata.topic_based`, `store.factory` and `reading.index_cache` too, and to dump records
`metadata.codec` and `metadata.formatter`. Contracts hold the order: the manager above reading, then
tasks, store, metadata.

The room promises the very bytes that the local log had (RULES.md I10). Local retention deletes a
segment only after its copy is recorded as finished (RULES.md rule 10). Calls of a store block only
threads of bounded pools, never the event loop.
"""
