"""The servers of the quorum as they are in production (RaftServer, MetadataLoader,
QuorumController, BrokerLifecycle) under one seed: virtual time, memory disks, a network in memory.

`tests.sim` drives the replica itself, ten times as fast; here the edges around it are the real ones
too, and what is asked for is what clients were told: no acknowledged change of the metadata is
lost, and every node has the same image at the same offset.
"""
