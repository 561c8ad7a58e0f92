"""Partitions on this node: the pure core of one, its log and waiters, and the registry of all.

`core.Partition` decides roles, ISR and high watermark, without IO and with time as an argument.
`replica_state.ReplicaState` is its view of one remote replica. `hosted.HostedPartition` joins the
core with its log and wakes those who wait for either. `registry.PartitionRegistry` finds a hosted
partition, or raises Kafka's error for it. `flushes.LogFlushes` does the flushes of flush.messages.
`cluster_view.ClusterView` is the published metadata:
brokers, leaders, settings of topics and of this broker.

The rooms above may import all of it; nothing outside of node does.

The high watermark never passes a replica that the controller may count as in sync (RULES.md rule 9
and I9). It sinks only when a log is truncated. Nothing here awaits: an append, a change of role and
a wake-up are each atomic for all other tasks of the loop.
"""
