"""The partitions of a simulated cluster under one seed: the production controller core, and brokers
that run the production partition core over modelled logs.

`tests.sim` proves the metadata quorum. Here the metadata is taken as committed at once, and the
question is whether elections keep the records of partitions (RULES.md I6). Brokers see the metadata
late, and stop, lose power, directories or whole disks, while min.insync.replicas, eligible leader
replicas and assignments change.
"""
