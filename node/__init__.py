"""The data node: partitions, replication, produce and fetch, a broker's life, and the process.

Where to look: `partition` (the pure core), `replica_manager` with `produce`, `fetching`, `offsets`
(requests), `replica_fetcher` (following leaders), `lifecycle` (the controller's view),
`broker_server` (all of it together), `server` and `process` (the process of a node), `storage` (its
directories).
"""
