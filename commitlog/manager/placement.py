"""Placement of logs: where a new log is made, and which of two logs of one partition stays.

Pure: decides from the state of the log directories, the ids that the metadata assigns, and what was
found in the directories. It reads and writes no file.

A log is never recreated while its records may exist elsewhere. They may in a directory that is
offline, or in one that this node no longer has (KIP-112, KIP-858). Nor is it recreated where the
metadata counts on its records: an empty log would lead, and the followers would cut theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from commitlog.disk.log_directory import LogDirectoryOfflineError, offline_error
from commitlog.manager.ownership import is_other
from tidemark.errors import StorageError
from tidemark.types import TopicPartition, uuid_to_text

_WAYS_OUT = (
    "Give the directory with its log back. Only if that is lost for good: name the partition in"
    " tidemark elect-leaders --election-type unclean. Another replica is elected then or, where"
    " none is in service, this one without its records. What the tier has of a tiered topic comes"
    " back, so do not delete the topic: its tier would be deleted, too"
)

KnownReplica = tuple[UUID, UUID | None]
"""Topic id and directory id in the metadata for a replica of this node."""


class Place(Protocol):
    """One entry of log.dirs; `LogDirectory` implements it."""

    @property
    def path(self) -> str: ...
    @property
    def directory_id(self) -> UUID | None: ...
    @property
    def failure(self) -> str:
        """Reason why it is offline; empty while it is online."""


P = TypeVar("P", bound=Place)


class Found(NamedTuple, Generic[P]):
    """A log found in a directory, with the topic id in its partition.metadata."""

    directory: P
    topic_id: UUID | None


def online(directories: Iterable[P]) -> list[P]:
    """Returns the directories that have not failed, in the order of log.dirs."""
    return [directory for directory in directories if not directory.failure]


def current_of(first: Found[P], second: Found[P], known: KnownReplica | None) -> P | None:
    """Returns the directory of the current one of two logs; None if the metadata does not determine
    it.

    The topic id decides, and between logs of one topic the directory id. Of two logs of different
    topics that are both deleted, one came back with its directory: either may stay, as neither is
    needed.
    """
    if _are_both_outdated(first.topic_id, second.topic_id, known[0] if known else None):
        return first.directory
    if known is None:
        return None
    topic_id, directory_id = known
    of_topic = [found.directory for found in (first, second) if found.topic_id == topic_id]
    in_place = [directory for directory in of_topic if directory.directory_id == directory_id]
    current = of_topic if len(of_topic) == 1 else in_place
    return current[0] if len(current) == 1 else None


def _are_both_outdated(first: UUID | None, second: UUID | None, known: UUID | None) -> bool:
    """Whether two ids are of different topics, and neither is the known one or that, damaged."""
    if first is None or second is None or not is_other(first, second):
        return False
    return known is None or (is_other(first, known) and is_other(second, known))


def home_of_new(
    topic_partition: TopicPartition,
    directories: Sequence[P],
    *,
    preferred: P | None,
    assigned: UUID | None,
    may_hold_data: bool,
    logs_in: Callable[[P], int],
) -> P:
    """Returns the directory in which to make a new log.

    `preferred` is the directory an operator requested, `assigned` the directory id in the metadata.
    `logs_in` counts the logs of a directory, with those on their way to it. `may_hold_data`: the
    metadata counts on this replica's records.

    Raises LogDirectoryOfflineError if the log may exist in a directory that is offline or missing,
    or if no directory is online. Raises StorageError if the metadata counts on its records, and all
    directories are there without it.
    """
    if preferred is not None and preferred.failure:
        preferred = None
    known = next((d for d in directories if d.directory_id == assigned), None)
    if assigned is None or known is None or known.failure:
        _check_offline(topic_partition, directories, assigned, may_hold_data)
    if may_hold_data:
        check_home(topic_partition, directories, assigned)
        raise StorageError(
            f"{topic_partition} is not made anew: the cluster counts on the records of this"
            f" replica, and its log is in no log directory of this node. {_WAYS_OUT}"
        )
    if assigned is not None and known is not None and not known.failure:
        return preferred or known
    return preferred or emptiest(directories, logs_in)


def check_home(
    topic_partition: TopicPartition, directories: Iterable[P], assigned: UUID | None
) -> None:
    """Raises LogDirectoryOfflineError if this node does not have the directory in which the
    metadata counts on a log.
    """
    if assigned is None or any(d.directory_id == assigned for d in directories):
        return
    raise LogDirectoryOfflineError(
        f"the cluster counts on the records of {topic_partition} in the log directory"
        f" {uuid_to_text(assigned)}, which this node does not have any more. {_WAYS_OUT}"
    )


def _check_offline(
    topic_partition: TopicPartition,
    directories: Iterable[P],
    assigned: UUID | None,
    may_hold_data: bool,
) -> None:
    offline = [
        directory
        for directory in directories
        if directory.failure and (assigned is None or directory.directory_id in (None, assigned))
    ]
    if offline and (assigned is not None or may_hold_data):
        reasons = "; ".join(str(offline_error(d.path, d.failure)) for d in offline)
        raise LogDirectoryOfflineError(
            f"{topic_partition} is not made anew: its log may be in a directory that is"
            f" offline ({reasons})"
        )


def emptiest(directories: Sequence[P], logs_in: Callable[[P], int]) -> P:
    """Returns the online directory with the fewest logs (Kafka's rule; sizes do not count).

    Raises LogDirectoryOfflineError if none is online.
    """
    found = online(directories)
    if not found:
        raise LogDirectoryOfflineError("no log directory is online")
    return min(found, key=logs_in)
