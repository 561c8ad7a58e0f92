"""The whole cluster with a tier: tiered topics, a bucket that all brokers share, and its faults.

- `store`: the bucket, and the plug-in by which brokers reach it.
- `faults`: the store's weather, damage, and crashes amid the work of the tier.
- `checks`: what holds at every instant; `watching`: what production's calls must not do.
- `programs`: clients of topics that expire, or lose records by unclean elections.
- `rest`: the bucket when all is quiet.
- `world`: a seed of it.
- `canaries`: planted bugs.
"""
