"""Ownership of a log directory whose partition.metadata names another topic than the metadata does.

Pure. Either the topic was deleted and created anew while this node was down: then the log is a
stray. Or the id in partition.metadata, which has no checksum, is damaged: then the log may be the
partition's last copy. Ids are random, so those of two topics differ in about half of their bits.
"""

from __future__ import annotations

from uuid import UUID

from tidemark.errors import StorageError
from tidemark.types import TopicPartition, uuid_to_text

_DAMAGED_BITS = 32
"""Damage changes fewer bits of an id and leaves it readable. Two random ids (122 bits each) differ
in fewer than once in ten million pairs."""


class ForeignLogError(StorageError):
    """A log's directory names a topic that the metadata does not know."""


def is_other(found: UUID, wanted: UUID) -> bool:
    """Returns whether an id is that of another topic, not the wanted one with damaged bits."""
    return (found.int ^ wanted.int).bit_count() >= _DAMAGED_BITS


def is_stray(
    *, found_is_known: bool, latest_epoch: int | None, leader_epoch: int, counts_on_it: bool
) -> bool:
    """Returns whether the log is certainly not the partition's, or is not needed.

    `found_is_known`: a topic has, or had, the id that was found. `counts_on_it`: the
    metadata expects committed records in this replica; it does not where the replica missed the
    creation of its topic. A later epoch in the log than `leader_epoch`, the partition's, is that of
    an older topic.
    """
    is_older_topic = latest_epoch is not None and latest_epoch > leader_epoch
    return found_is_known or is_older_topic or not counts_on_it


def foreign_log_error(
    topic_partition: TopicPartition, path: str, found: UUID, wanted: UUID
) -> ForeignLogError:
    """Returns the error of a log that may be the partition's last copy."""
    return ForeignLogError(
        f"{path}/{topic_partition}/partition.metadata names topic id {uuid_to_text(found)}, which"
        f" no topic has; {topic_partition.topic} has {uuid_to_text(wanted)}. If the file is"
        " damaged, stop the broker and write that id into its line topic_id. If the topic was"
        " deleted and created anew, stop the broker and move the directory out of log.dirs. It may"
        " be the last copy of the records: do not remove it"
    )
