"""The whole cluster with a tier: tiered topics, a bucket that all brokers share, and its faults.

- `store`: the bucket, and the plug-in by which brokers reach it.
- `world`: a seed of it; what holds at every instant, and when all is quiet again.
- `canaries`: planted bugs.
"""
