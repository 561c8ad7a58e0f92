"""Small value types that every room shares: ids, topic partitions, endpoints.

Ids are `uuid.UUID` in memory and 16 raw bytes on the wire. In files and output they are 22
characters of URL-safe base64 without padding, as Apache Kafka prints them
(org.apache.kafka.common.Uuid).
"""

from __future__ import annotations

import base64
import binascii
from enum import IntEnum
from typing import NamedTuple, TypeVar
from uuid import UUID

from tidemark.surroundings import surroundings

T = TypeVar("T")

ZERO_UUID = UUID(int=0)
ONE_UUID = UUID(int=1)  # Kafka's METADATA_TOPIC_ID; as a directory id: LOST
METADATA_TOPIC = "__cluster_metadata"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
COORDINATOR_TOPICS = frozenset({GROUP_TOPIC, TRANSACTION_TOPIC})
"""Topics that coordinators alone write, and whose number of partitions tells who coordinates."""


class TopicPartition(NamedTuple):
    """A partition by its topic's name; prints as Kafka names its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id and name. A topic recreated under its old name has another
    id.
    """

    topic_id: UUID
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{uuid_to_text(self.topic_id)}:{self.topic}-{self.partition}"


class Endpoint(NamedTuple):
    """Host and port of a listener; `address` is the form that gRPC takes."""

    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parses `host:port` or `[v6]:port`. Raises ValueError for anything else."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.strip("[]"), int(port))


class Listener(NamedTuple):
    """A named listener of a node, and its endpoint."""

    name: str
    host: str
    port: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


class OffsetSpec(IntEnum):
    """Offsets that ListOffsets takes by name, as Kafka's special timestamps."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class OwnDamage(IntEnum):
    """Damage on a quorum replica's own disk that nothing has replaced yet. Values as in
    raft.proto."""

    NONE = 0
    OTHER = 1
    LOG = 2
    LOG_TAIL = 3
    CHECKPOINT = 4

    @classmethod
    def _missing_(cls, value: object) -> OwnDamage:
        return cls.OTHER  # of a newer node


class ConfigResourceType(IntEnum):
    """Kinds of owners of settings; Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    """A topic by name, or a broker by its id as text; BROKER with an empty name stands for all
    brokers.

    `type` is a ConfigResourceType, or a number that this version does not know.
    """

    type: int
    name: str

    @property
    def kind(self) -> str:
        """`topic`, `broker` or `broker_logger`."""
        return ConfigResourceType(self.type).name.lower()

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None) -> ConfigResource:
        """The resource of a broker; None stands for the default of all brokers."""
        return cls(ConfigResourceType.BROKER, "" if broker_id is None else str(broker_id))

    @classmethod
    def broker_logger(cls, node_id: int) -> ConfigResource:
        """The levels of the loggers of a node, which may be a controller."""
        return cls(ConfigResourceType.BROKER_LOGGER, str(node_id))


class OrderedSet(dict[T, None]):
    """A set that is iterated in the order of insertion.

    The order of a plain set follows from addresses and hashes. Where it shows, two runs of one
    simulation would differ.
    """

    __slots__ = ()

    def add(self, item: T) -> None:
        """Adds an item that may be there already."""
        self[item] = None

    def discard(self, item: T) -> None:
        """Removes an item if it is there."""
        self.pop(item, None)


def random_uuid() -> UUID:
    """A random id that is none of Kafka's reserved ones and does not begin with '-' in text
    form.
    """
    random_bytes = surroundings().random_bytes
    while True:
        candidate = UUID(bytes=random_bytes(16), version=4)
        if candidate.int > 100 and not uuid_to_text(candidate).startswith("-"):
            return candidate


def uuid_to_text(value: UUID) -> str:
    """The id as 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def uuid_from_text(text: str) -> UUID:
    """The inverse of `uuid_to_text`. Raises ValueError for text that is no id."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a 22-character base64 id") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a 22-character base64 id")
    return UUID(bytes=raw)
