"""The pure Raft replica of the metadata quorum: events in, effects out; no IO, clock or randomness
of its own.

Rules: Raft (Ongaro 2014), KIP-595 (fetch-based replication), KIP-630 (snapshots), KIP-996
(pre-vote), KIP-1166 (the high watermark travels in the fetch). `Replica.step(event, now_ms) ->
Effects` is all there is to call.
"""
