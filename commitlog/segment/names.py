"""Names of a segment's files (Kafka's): 20 digits of the base offset, then a suffix by kind."""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
"""Added to the name of a file that left its log and waits for the delete delay."""


def log_name(base_offset: int) -> str:
    """Returns the name of the file with a segment's records."""
    return f"{base_offset:020d}{LOG_SUFFIX}"


def snapshot_name(offset: int) -> str:
    """Returns the name of the snapshot of the producers' state before `offset`."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"
