"""The small text files of a log directory, as Apache Kafka writes them.

Files with a line per partition: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint`, `cleaner-offset-checkpoint`. The file `leader-epoch-checkpoint` has
a line per epoch. The others are `meta.properties`, `partition.metadata` and `.kafka_cleanshutdown`.
All are replaced atomically: a crash leaves the old or the new content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from commitlog.disk.files import Directory
from tidemark.errors import InconsistentTopicIdError, StorageError
from tidemark.types import TopicPartition, uuid_from_text, uuid_to_text

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = "0"


def parse_entries(text: str, name: str) -> list[list[str]]:
    """Parses a checkpoint file: version, count, then one line per entry.

    Raises StorageError if the version is unknown, or the count is not the number of lines. Raises
    it also if the last line has no end: the rest of a torn number would be another number.
    """
    lines = text.splitlines()
    try:
        if lines[0].strip() != _VERSION:
            raise StorageError(f"{name}: unknown version {lines[0]!r}; expected {_VERSION}")
        count = int(lines[1])
    except (IndexError, ValueError) as error:
        raise _malformed(name, "no version and count at its head") from error
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise _malformed(name, f"it announces {count} entries and holds {len(entries)}")
    if not text.endswith("\n"):
        raise _malformed(name, "it ends within a line")
    return entries


def format_entries(entries: Iterable[Iterable[object]]) -> str:
    """Formats a checkpoint file; the inverse of `parse_entries`."""
    lines = [" ".join(map(str, entry)) for entry in entries]
    return "\n".join([_VERSION, str(len(lines)), *lines]) + "\n"


def _malformed(name: str, reason: str) -> StorageError:
    return StorageError(
        f"{name} is malformed: {reason}. Remove the file: what it held is found again by recovery"
    )


class OffsetCheckpoint:
    """A file of `topic partition offset` lines (Kafka's OffsetCheckpointFile)."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name

    def read(self) -> dict[TopicPartition, int]:
        """Returns the offsets; none if there is no file. Raises StorageError if it is malformed."""
        if not self._directory.exists(self._name):
            return {}
        text = self._directory.read(self._name).decode("utf-8", "replace")
        offsets: dict[TopicPartition, int] = {}
        for entry in parse_entries(text, self._name):
            try:
                topic, partition, offset = entry
                offsets[TopicPartition(topic, int(partition))] = int(offset)
            except ValueError as error:
                raise _malformed(self._name, f"line {' '.join(entry)!r}") from error
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durably replaces the file."""
        # Every few seconds one of ten thousand lines may be new, so the lines are built without
        # other objects.
        lines = [f"{topic} {n} {offset}" for (topic, n), offset in sorted(offsets.items())]
        text = "\n".join((_VERSION, str(len(lines)), *lines, ""))
        self._directory.write_atomic(self._name, text.encode())


def parse_epochs(data: bytes, name: str = LEADER_EPOCH_CHECKPOINT) -> list[tuple[int, int]]:
    """Parses a leader-epoch checkpoint into (epoch, start offset). Raises StorageError if it is
    malformed.
    """
    try:
        return [
            (int(epoch), int(start))
            for epoch, start in parse_entries(data.decode("utf-8", "replace"), name)
        ]
    except ValueError as error:
        raise _malformed(name, str(error)) from error


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Formats a leader-epoch checkpoint; the tier stores it with a segment, too."""
    return format_entries(entries).encode()


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory (`meta.properties`, version 1)."""

    cluster_id: str
    node_id: int
    directory_id: UUID

    @classmethod
    def read(cls, directory: Directory) -> MetaProperties | None:
        """Reads the file; None if the directory is not formatted. Raises StorageError if it is
        malformed.
        """
        if not directory.exists(META_PROPERTIES):
            return None
        values: dict[str, str] = {}
        for line in directory.read(META_PROPERTIES).decode("utf-8", "replace").splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith("#"):
                values[key.strip()] = value.strip()
        where = f"{directory.path}/{META_PROPERTIES}"
        if values.get("version") != "1":
            raise StorageError(f"{where}: unknown version {values.get('version')!r}; expected 1")
        try:
            return cls(
                values["cluster.id"], int(values["node.id"]), uuid_from_text(values["directory.id"])
            )
        except (KeyError, ValueError) as error:
            raise StorageError(
                f"{where} is malformed ({error}); format the directory again, or restore the file"
            ) from error

    def write(self, directory: Directory) -> None:
        """Durably writes the file."""
        text = (
            f"#\nnode.id={self.node_id}\ndirectory.id={uuid_to_text(self.directory_id)}\n"
            f"version=1\ncluster.id={self.cluster_id}\n"
        )
        directory.write_atomic(META_PROPERTIES, text.encode())

    def check(self, directory_path: str, *, cluster_id: str | None, node_id: int) -> None:
        """Raises StorageError if the directory belongs to another cluster or node."""
        where = f"{directory_path}/{META_PROPERTIES}"
        if cluster_id is not None and self.cluster_id != cluster_id:
            raise StorageError(
                f"{where} is of cluster {self.cluster_id}, this node is of cluster {cluster_id};"
                " point log.dirs at this cluster's directories, or format new ones"
            )
        if self.node_id != node_id:
            raise StorageError(
                f"{where} is of node {self.node_id}, this node is {node_id};"
                " correct node.id or log.dirs: two nodes must never share a directory"
            )


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The topic id of a partition's directory (`partition.metadata`, KIP-516)."""

    topic_id: UUID

    @classmethod
    def read(cls, directory: Directory) -> PartitionMetadata | None:
        """Reads the file; None if there is none. Raises StorageError if it is malformed."""
        if not directory.exists(PARTITION_METADATA):
            return None
        text = directory.read(PARTITION_METADATA).decode("utf-8", "replace")
        values: dict[str, str] = {}
        for line in text.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                values[key.strip()] = value.strip()
        try:
            if values["version"] != _VERSION:
                raise ValueError(f"version {values['version']}")
            return cls(uuid_from_text(values["topic_id"]))
        except (KeyError, ValueError) as error:
            raise StorageError(
                f"{directory.path}/{PARTITION_METADATA} is malformed ({error}). The replica is"
                " copied anew as soon as another one is in sync. If there is none, stop the broker"
                f" and write two lines into the file, 'version: {_VERSION}' and 'topic_id: ID' with"
                " the id that `tidemark topics describe` shows"
            ) from error

    def write(self, directory: Directory) -> None:
        """Durably writes the file."""
        text = f"version: {_VERSION}\ntopic_id: {uuid_to_text(self.topic_id)}"
        directory.write_atomic(PARTITION_METADATA, text.encode())


def check_topic_id(
    directory: Directory, topic_partition: TopicPartition, topic_id: UUID | None
) -> UUID | None:
    """Returns the topic id of a partition's directory; a new directory gets `topic_id`.

    Raises InconsistentTopicIdError if the directory belongs to another topic of the same name.
    """
    metadata = PartitionMetadata.read(directory)
    if metadata is None:
        if topic_id is not None:
            PartitionMetadata(topic_id).write(directory)
        return topic_id
    if topic_id is not None and metadata.topic_id != topic_id:
        raise InconsistentTopicIdError(
            f"{directory.path} holds {topic_partition} of topic id {metadata.topic_id}, not"
            f" {topic_id}: the topic was deleted and created anew"
        )
    return metadata.topic_id


class CleanShutdown:
    """The marker of a clean stop. If it exists, a start trusts all files; then it is removed at
    once.

    It holds the broker epoch of the registration that stopped cleanly. So the controller can tell a
    clean restart from an unclean one (KIP-966).
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def exists(self) -> bool:
        return self._directory.exists(CLEAN_SHUTDOWN)

    def broker_epoch(self) -> int:
        """Returns the broker epoch in the marker; -1 if there is none, or it is unreadable."""
        if not self.exists():
            return -1
        try:
            return int(json.loads(self._directory.read(CLEAN_SHUTDOWN))["brokerEpoch"])
        except (ValueError, KeyError, TypeError):
            return -1

    def write(self, broker_epoch: int) -> None:
        """Durably writes the marker, as the last step of a clean stop."""
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._directory.write_atomic(CLEAN_SHUTDOWN, text.encode())

    def remove(self) -> None:
        """Durably removes the marker, before anything else is written."""
        if self.exists():
            self._directory.remove(CLEAN_SHUTDOWN)
            self._directory.fsync()
