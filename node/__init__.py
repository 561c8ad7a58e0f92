"""The data node: partitions, replication, the answers to clients, and the process of a node.

From the bottom up; a room imports only from rooms below it:

    runtime      clocks, tasks, health, the directories of a node
    partition    one partition (pure core), the partitions hosted here, the cluster they see
    membership   the broker at the controller: identity, lifecycle, log directories
    replication  hosts what the metadata assigns, keeps ISRs, fetches from leaders
    upkeep       periodic work: retention, checkpoints, cleaning, moves between directories
    serving      the answers of a listener
    coordination groups and transactions: the coordinators on this node
    metrics      metrics for Prometheus, and probes, over HTTP
    broker       one broker, put together
    server       one node: controller, broker, or both

Outsiders may import `node.server`, `node.runtime.storage` and `node.runtime.process`. Import
contracts in pyproject.toml hold the order above.

Everything of a node runs on one event loop, which owns partitions and logs. Threads do work that
waits for a disk or takes long. The metadata decides what a node hosts and leads; a node never
decides that itself.
"""
