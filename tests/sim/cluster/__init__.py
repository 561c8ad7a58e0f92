"""The whole cluster under one seed: production's nodes and clients of `tidemark.testing.Cluster`,
faults of every kind, and a workload whose history is judged. Run it by
`python -m tests.sim --cluster`.

    world     one seed: nodes, faults, workload, healing, final requirements
    racks     that with brokers in racks and consumers that read from followers
    faults    the storms: crashes, power, cuts, pauses, disks, clocks, reassignments
    plans     directed faults: sequences of steps that storms hardly make
    programs  clients on topics that are deleted, made anew, or lose records
    spoiling  damage of batches on their way to a consumer
    views     what the checks of the quorum and of images need of a real node
    checks    invariants of data partitions, read off the real brokers after every instant
    planting  how a bug is planted in production code
    canaries  bugs planted in brokers and controllers; client_canaries: those of clients
"""
