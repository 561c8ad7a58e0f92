"""The production servers of the quorum (RaftServer, MetadataLoader, QuorumController,
BrokerLifecycle) under one seed: virtual time, memory disks, a network in memory.

`tests.sim` drives the replica alone, ten times as fast. Here the edges around it are real, too, and
the checks are about what clients were told. No acknowledged metadata change is lost, and every node
has the same image at the same offset.
"""
