"""Background work of a broker: retention, compaction, checkpoints, moves between directories."""
