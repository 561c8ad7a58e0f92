"""Replication between brokers: hosts what the metadata assigns, keeps ISRs, follows leaders.

`hosting.Hosting` is a metadata publisher: it makes the leaders, followers and logs of an image.
`isr.IsrKeeper` moves high watermarks by followers' fetches and proposes ISRs (AlterPartition).
`replica_fetcher.ReplicaFetchers` follows leaders, with one fetcher per peer, whose states and
session are `fetcher_core.FetcherCore`. `follower_log` changes a follower's log by a leader's
answer. `tier_bootstrap.TierBootstrap` starts a follower above the tier (KIP-405),
`tier_restore.TierRestore` a leader whose log is gone. `client` has the calls of a follower to a
peer, `peer_listener` the choice of its listener.

The rooms above import `isr`; `node.broker` puts all of it together; nothing outside of node imports
it. Requests never pass through here: `node.serving` works on the same registry of partitions.

A replica's log is deleted only when the metadata removes the replica. A follower truncates only to
where the leader's history parts from its own. An update of metadata runs to its end without
waiting, so a request sees the state before it or after it.
"""
