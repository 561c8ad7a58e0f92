"""A replica of the metadata log at work: the edge around the pure core of `quorum.raft`.

`server.RaftServer` owns the replica, its log and its sockets. Its driver task steps the core and
carries out the effects. State machines use it through the protocols of `client`.

Outsiders may import:

    client        RaftClient and RaftListener, and the values they exchange
    server        RaftServer, the implementation for a running node
    loader        the metadata image of a node, and its publishers
    settings      the settings of a node as the replica takes them
    metrics       the metrics of a replica, by Kafka's names
    bootstrap     the first voters and feature levels, for `storage format`
    recovery      new voters for a log whose majority is lost, for `quorum recover`
    service, voters_codec     the wire form of what a controller answers about the quorum

The other modules are internal: metadata_log, log_bounds, log_checks, appends, flusher, listeners,
own_damage, served_checkpoints, describe, quorum_state, voters_record, codec, sealing, transport.
`transport` also has the in-memory network for tests.

Effects are persisted before anything of the same step is sent. A failed write or fsync stops the
replica and fails `RaftServer.fatal`. A listener gets each commit once and in order. Nothing is
published to a node before its image has caught up.
"""
