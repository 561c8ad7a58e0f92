"""Upkeep of a broker: retention, checkpoints, flushes, compaction, moves between log directories.

`background.BackgroundWork` runs the periodic passes, each with Kafka's period for it, and starts
the cleaners. `cleaning.CleanerWorkers` compacts logs in a bounded pool of threads.
`scrubber.Scrubber` reads rolled segments for damage.
`directory_mover.DirectoryMover` moves replicas between the log directories of this node (KIP-113).

`node.broker` starts and stops all of it, and `node.serving` passes AlterReplicaLogDirs to the
mover. Nothing outside of node imports it.

A pass looks only at logs that changed or whose time has come, so idle partitions cost nothing. Logs
are changed on the event loop, one at a time; threads get the work that waits for a disk. Work that
a crash interrupts is repeated or discarded at the next start.
"""
