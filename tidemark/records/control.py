"""Control batches in Kafka's own encoding: transaction markers and the messages of Raft.

A control record's key is a version and a type, both int16. Its value is an end-of-transaction
marker (KIP-98) or a message of Raft, version first, in the flexible encoding of KIP-482. The
messages are LeaderChange (KIP-595), SnapshotHeader and SnapshotFooter (KIP-630), KRaftVersion and
Voters (KIP-853).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from tidemark.errors import CorruptMessageError
from tidemark.records.header import BytesLike, read_header
from tidemark.records.kafka_codec import Reader, Writer
from tidemark.records.plain import Record, decode_batch, encode_batch
from tidemark.types import ZERO_UUID

_KEY_VERSION = 0


class ControlType(IntEnum):
    """The type in a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(slots=True, frozen=True)
class EndTransactionMarker:
    """The end of a producer's transaction in this partition."""

    committed: bool
    coordinator_epoch: int
    version: int = 0


@dataclass(slots=True, frozen=True)
class VoterId:
    """A voter in a LeaderChange; the directory id is written from version 1 on (KIP-853)."""

    voter_id: int
    voter_directory_id: UUID = ZERO_UUID


@dataclass(slots=True, frozen=True)
class LeaderChange:
    """The first record of a leader's epoch: the leader, the voters, and the voters that granted the
    vote.
    """

    leader_id: int
    voters: tuple[VoterId, ...] = ()
    granting_voters: tuple[VoterId, ...] = ()
    version: int = 0


@dataclass(slots=True, frozen=True)
class SnapshotHeader:
    """The begin of a checkpoint, with the append time of the last log record in it, in ms."""

    last_contained_log_timestamp_ms: int
    version: int = 0


@dataclass(slots=True, frozen=True)
class SnapshotFooter:
    """The end of a checkpoint; a file without it is not whole."""

    version: int = 0


@dataclass(slots=True, frozen=True)
class KRaftVersion:
    """The feature level of the Raft protocol: 0 is static voters, 1 is voters in the log."""

    kraft_version: int
    version: int = 0


@dataclass(slots=True, frozen=True)
class VoterEndpoint:
    """The address of a voter's listener."""

    name: str
    host: str
    port: int


@dataclass(slots=True, frozen=True)
class Voter:
    """One voter with its endpoints and the Raft feature levels that it supports."""

    voter_id: int
    voter_directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_supported_version: int = 0
    max_supported_version: int = 1


@dataclass(slots=True, frozen=True)
class Voters:
    """The whole voter set."""

    voters: tuple[Voter, ...]
    version: int = 0


ControlMessage = (
    EndTransactionMarker | LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | Voters
)


@dataclass(slots=True, frozen=True)
class ControlRecord:
    """A decoded control record."""

    offset: int
    timestamp_ms: int
    type: ControlType
    message: ControlMessage


def control_type_of(message: ControlMessage) -> ControlType:
    """Returns the type for a message's key."""
    match message:
        case EndTransactionMarker(committed=committed):
            return ControlType.COMMIT if committed else ControlType.ABORT
        case LeaderChange():
            return ControlType.LEADER_CHANGE
        case SnapshotHeader():
            return ControlType.SNAPSHOT_HEADER
        case SnapshotFooter():
            return ControlType.SNAPSHOT_FOOTER
        case KRaftVersion():
            return ControlType.KRAFT_VERSION
        case Voters():
            return ControlType.KRAFT_VOTERS


def encode_control_key(control_type: ControlType) -> bytes:
    """Returns version and type, two int16."""
    writer = Writer()
    writer.int16(_KEY_VERSION)
    writer.int16(control_type)
    return writer.getvalue()


def encode_control_value(message: ControlMessage) -> bytes:
    """Encodes a message as Kafka does."""
    writer = Writer()
    writer.int16(message.version)
    match message:
        case EndTransactionMarker(coordinator_epoch=epoch):
            writer.int32(epoch)
            return writer.getvalue()
        case LeaderChange():
            writer.int32(message.leader_id)
            _write_voter_ids(writer, message.voters, message.version)
            _write_voter_ids(writer, message.granting_voters, message.version)
        case SnapshotHeader(last_contained_log_timestamp_ms=timestamp_ms):
            writer.int64(timestamp_ms)
        case SnapshotFooter():
            return writer.getvalue() + b"\0"
        case KRaftVersion(kraft_version=level):
            writer.int16(level)
        case Voters(voters=voters):
            writer.compact_array_length(len(voters))
            for voter in voters:
                _write_voter(writer, voter)
    writer.tagged_fields()
    return writer.getvalue()


def _write_voter_ids(writer: Writer, voters: Sequence[VoterId], version: int) -> None:
    writer.compact_array_length(len(voters))
    for voter in voters:
        writer.int32(voter.voter_id)
        if version >= 1:
            writer.uuid(voter.voter_directory_id)
        writer.tagged_fields()


def _write_voter(writer: Writer, voter: Voter) -> None:
    writer.int32(voter.voter_id)
    writer.uuid(voter.voter_directory_id)
    writer.compact_array_length(len(voter.endpoints))
    for endpoint in voter.endpoints:
        writer.compact_string(endpoint.name)
        writer.compact_string(endpoint.host)
        writer.uint16(endpoint.port)
        writer.tagged_fields()
    writer.int16(voter.min_supported_version)
    writer.int16(voter.max_supported_version)
    writer.tagged_fields()  # of the feature range
    writer.tagged_fields()


def decode_control_type(key: bytes | None) -> ControlType:
    """Decodes the type of a control record's key. Raises CorruptMessageError for an unknown one."""
    if key is None:
        raise CorruptMessageError("a control record without a key")
    reader = Reader(key)
    reader.int16()
    number = reader.int16()
    try:
        return ControlType(number)
    except ValueError:
        raise CorruptMessageError(f"control record type {number} is unknown") from None


def decode_control_value(control_type: ControlType, value: bytes | None) -> ControlMessage:
    """Decodes a control record's message. Raises CorruptMessageError for a malformed one."""
    if value is None:
        raise CorruptMessageError(f"a {control_type.name} record without a value")
    reader = Reader(value)
    version = reader.int16()
    match control_type:
        case ControlType.ABORT | ControlType.COMMIT:
            return EndTransactionMarker(control_type is ControlType.COMMIT, reader.int32(), version)
        case ControlType.LEADER_CHANGE:
            message: ControlMessage = LeaderChange(
                reader.int32(),
                _read_voter_ids(reader, version),
                _read_voter_ids(reader, version),
                version,
            )
        case ControlType.SNAPSHOT_HEADER:
            message = SnapshotHeader(reader.int64(), version)
        case ControlType.SNAPSHOT_FOOTER:
            message = SnapshotFooter(version)
        case ControlType.KRAFT_VERSION:
            message = KRaftVersion(reader.int16(), version)
        case ControlType.KRAFT_VOTERS:
            count = reader.non_null_array_length()
            message = Voters(tuple(_read_voter(reader) for _ in range(count)), version)
    reader.tagged_fields()
    return message


def _read_voter_ids(reader: Reader, version: int) -> tuple[VoterId, ...]:
    voters = []
    for _ in range(reader.non_null_array_length()):
        voter_id = reader.int32()
        directory_id = reader.uuid() if version >= 1 else ZERO_UUID
        reader.tagged_fields()
        voters.append(VoterId(voter_id, directory_id))
    return tuple(voters)


def _read_voter(reader: Reader) -> Voter:
    voter_id = reader.int32()
    directory_id = reader.uuid()
    endpoints = []
    for _ in range(reader.non_null_array_length()):
        name, host = reader.non_null_string(), reader.non_null_string()
        endpoints.append(VoterEndpoint(name, host, reader.uint16()))
        reader.tagged_fields()
    minimum, maximum = reader.int16(), reader.int16()
    reader.tagged_fields()
    reader.tagged_fields()
    return Voter(voter_id, directory_id, tuple(endpoints), minimum, maximum)


def encode_control_batch(
    messages: Sequence[ControlMessage],
    *,
    base_offset: int,
    timestamp_ms: int,
    partition_leader_epoch: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """Encodes one control batch, a transactional one for an end-of-transaction marker, as
    in Kafka.
    """
    records = [
        Record(
            base_offset + position,
            timestamp_ms,
            encode_control_key(control_type_of(message)),
            encode_control_value(message),
        )
        for position, message in enumerate(messages)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=any(isinstance(message, EndTransactionMarker) for message in messages),
        control=True,
    )


def decode_control_records(buffer: BytesLike, position: int = 0) -> list[ControlRecord]:
    """Decodes the control batch at `position`. Raises CorruptMessageError."""
    header = read_header(buffer, position)
    if not header.is_control:
        raise CorruptMessageError(f"batch {header.base_offset} is no control batch")
    result = []
    for record in decode_batch(buffer, position):
        control_type = decode_control_type(record.key)
        message = decode_control_value(control_type, record.value)
        result.append(ControlRecord(record.offset, record.timestamp_ms, control_type, message))
    return result


def end_transaction(buffer: BytesLike, position: int) -> EndTransactionMarker | None:
    """Returns the marker in the control batch at `position`; None if it ends no transaction.

    Raises CorruptMessageError if the records can not be decoded.
    """
    for record in decode_batch(buffer, position):
        key, value = record.key or b"", record.value or b""
        if len(key) >= 4 and len(value) >= 6:
            kind = int.from_bytes(key[2:4], "big")
            if kind in (ControlType.ABORT, ControlType.COMMIT):
                epoch = int.from_bytes(value[2:6], "big", signed=True)
                return EndTransactionMarker(kind == ControlType.COMMIT, epoch)
    return None
