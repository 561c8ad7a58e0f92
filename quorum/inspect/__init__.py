"""A read-only view of a metadata log, a checkpoint or a live cluster."""
