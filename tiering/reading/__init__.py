"""Reads of remote segments, and their caches.

- `reader`: reads by offset and by timestamp.
- `aux_state`: the state a follower starts from, in a pool of its own.
- `calls`: the blocking calls of the store, in threads that partitions share; `places`: shares.
- `failures`: errors of reads, typed, counted and logged.
- `fetch_quota`: the quota of reads.
- `segment_reader`: reads within one segment, and reading ahead.
- `order`: checks of batches against the metadata of their segment (pure).
- `chunk_cache`: ranges of logs in memory; `index_cache`: index files on local disk.
- `remote_indexes`: look-ups in the index files (pure).
- `transactions`: the aborted transactions of a range.
- `plans`: the objects and byte ranges that hold a range of records, for readers past the broker.

Outsiders import only the name of the cache's directory, from `index_cache`, and `node.serving` the
plans; `tiering.manager` uses the rest.

A read returns whole batches, the very bytes of the local log. Every read has a deadline, and their
number is bounded. Memory and disk of the caches are bounded. A cancelled read does not waste its
load, which completes into the cache.
"""
