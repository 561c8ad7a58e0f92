"""The metadata quorum: Raft over the log `__cluster_metadata`, the metadata image, the controller.

From the bottom up:

    raft         the pure Raft replica: no IO, no clock
    image        the metadata as an immutable value, and deltas between two of them
    replica      the replica at work: log, disk, network, listeners, snapshots
    controller   the pure controller, and the queue that commits its records
    services     the gRPC services of a controller, and the calls of a node to the controller
    inspect      a read-only view of a metadata log or of a live cluster

Outsiders may import `quorum.image`, `quorum.replica.client`, `quorum.replica.loader`, and what the
faces of `quorum.replica`, `quorum.services` and `quorum.inspect` name. Import contracts in
pyproject.toml hold the order above.

A record is visible in an image only after it is committed. An image never changes, so a reference
to one is a consistent view for as long as it is held.
"""
