"""Conversion between partitions and the bytes of their records, for images of a million of them.

Nearly all of a large image is PartitionRecords, and protobuf's Python objects cost ten times their
contents. The plain kind is read and written by hand here, a topic's run at a time. Plain means node
ids below 128 and fields in protobuf's own order. Everything else goes through protobuf. So do the
fields after the ISR, once per distinct combination of leader and epochs, of which there are few.

The bytes are protobuf's deterministic ones in both directions; a test holds both ways equal.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from google.protobuf.message import DecodeError

from quorum.image.records import (
    directory_id,
    encode_record,
    leader_to_wire,
    partition_from_record,
    partition_record,
)
from quorum.image.types import PartitionRegistration, intern_ids
from tidemark.v1 import metadata_pb2 as pb

PARTITION_TAG = b"\x22"
"""First byte of every PartitionRecord's value: field 4 of MetadataRecord."""
_INDEX_TAG, _TOPIC_TAG, _REPLICAS_TAG, _ISR_TAG = 0x08, b"\x12\x10", 0x1A, 0x22
_DIRECTORY_TAG = b"\x5a\x10"
_DIRECTORY_BYTES = 2 + 16
_ONE_BYTE_VARINT = 0x80
_REMEMBERED_MAX = 1 << 14

_VARINTS = [bytes((n,)) for n in range(_ONE_BYTE_VARINT)]
_VARINTS += [bytes((n & 0x7F | 0x80, n >> 7)) for n in range(_ONE_BYTE_VARINT, 1 << 14)]

# The fields after the ISR, as bytes and as the fields of PartitionRegistration from `leader` on.
_States = tuple[object, ...]
_states: dict[bytes, _States] = {}
_state_bytes: dict[_States, bytes] = {}


def topic_field(topic_id: bytes) -> bytes:
    """A topic's id as encoded in the records of its partitions."""
    return _TOPIC_TAG + topic_id


def partition_from_value(value: bytes, field: bytes) -> tuple[int, PartitionRegistration] | None:
    """Index and state in a plain PartitionRecord of the topic of `field`.

    None for any other value, which protobuf has to decode.
    """
    if not value.startswith(PARTITION_TAG):
        return None
    head, _, tail = value.partition(field)
    if len(head) == 4 and head.isascii() and head[1] == len(value) - 2 and head[2] == _INDEX_TAG:
        index = head[3]
    else:
        found = _index(head, len(value))
        if found is None:
            return None
        index = found
    registration = _registration(tail)
    return None if registration is None else (index, registration)


def _index(head: bytes, value_bytes: int) -> int | None:
    """Partition index in a record's head: tag, length, tag of the index, index."""
    length, position = _varint(head, 1)
    if length != value_bytes - position:
        return None
    if position == len(head):
        return 0
    if head[position] != _INDEX_TAG:
        return None
    index, position = _varint(head, position + 1)
    return index if position == len(head) else None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A varint of up to four bytes and its end; (-1, 0) if there is none."""
    value = 0
    for shift, byte in enumerate(data[position : position + 4]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < _ONE_BYTE_VARINT:
            return value, position + shift + 1
    return -1, 0


def _registration(tail: bytes) -> PartitionRegistration | None:
    """State in a record's bytes after the topic's id; None unless it is of the plain kind."""
    size = len(tail)
    if size < 2 or tail[0] != _REPLICAS_TAG:
        return None
    replicas_end = end = 2 + tail[1]
    isr_ids = b""
    if end < size and tail[end] == _ISR_TAG:
        isr_begin = end + 2
        end = isr_begin + tail[end + 1] if isr_begin <= size else size + 1
        isr_ids = tail[isr_begin:end]
    # A byte beyond 127 belongs to a longer varint: a node id, or a length.
    if end > size or not tail[:end].isascii():
        return None
    replica_ids = tail[2:replicas_end]
    replicas = intern_ids(replica_ids)
    isr = replicas if isr_ids == replica_ids else intern_ids(isr_ids)
    rest = tail[end:]
    state = _states.get(rest) or _state(rest)
    if state is None:
        return None
    # As `_make`, without its extra call and check.
    return tuple.__new__(PartitionRegistration, (replicas, isr, *state))


def _state(rest: bytes) -> _States | None:
    """The fields from `leader` on; None if one of them does not belong there."""
    plain, tag, _ = rest.partition(_DIRECTORY_TAG)
    raw = rest[len(plain) :]
    if tag and not _is_directories(raw):
        plain, raw = rest, b""
    state = _states.get(plain)
    if state is None:
        try:
            record = pb.PartitionRecord.FromString(plain)
        except DecodeError:
            return None
        if record.partition_id or record.topic_id or record.replicas or record.isr:
            return None
        state = partition_from_record(record)[2:]
        if len(_states) < _REMEMBERED_MAX:
            _states[plain] = state
    if not raw:
        return state
    starts = range(len(_DIRECTORY_TAG), len(raw), _DIRECTORY_BYTES)
    return (*state[:-1], tuple([directory_id(raw[at : at + 16]) for at in starts]))


def _is_directories(raw: bytes) -> bool:
    """Whether the bytes are directories and nothing else."""
    count, left = divmod(len(raw), _DIRECTORY_BYTES)
    return not left and raw[0::_DIRECTORY_BYTES] + raw[1::_DIRECTORY_BYTES] == (
        _DIRECTORY_TAG[:1] * count + _DIRECTORY_TAG[1:] * count
    )


def partition_encoder(topic_id: UUID) -> Callable[[int, PartitionRegistration], bytes]:
    """Returns a function that encodes a topic's partitions as values of PartitionRecords."""
    field = topic_field(topic_id.bytes)

    def encode(index: int, partition: PartitionRegistration) -> bytes:
        value = _plain_value(field, index, partition)
        if value is None:
            return encode_record(partition_record(topic_id, index, partition))
        return value

    return encode


def _plain_value(field: bytes, index: int, partition: PartitionRegistration) -> bytes | None:
    replicas, isr = partition.replicas, partition.isr
    try:
        replica_ids = bytes(replicas)
        isr_ids = replica_ids if isr is replicas else bytes(isr)
    except ValueError:
        return None
    if not replica_ids or not isr_ids or not replica_ids.isascii() or not isr_ids.isascii():
        return None
    if len(replica_ids) >= _ONE_BYTE_VARINT or index >= len(_VARINTS):
        return None
    # Fields after the directories are rare enough for protobuf.
    if partition.elr or partition.last_known_elr:
        return None
    scalars = partition[2:-1]
    rest = _state_bytes.get(scalars)
    if rest is None:
        rest = _encoded_state(partition)
        if len(_state_bytes) < _REMEMBERED_MAX:
            _state_bytes[scalars] = rest
    if partition.directories:
        rest += b"".join([_DIRECTORY_TAG + d.bytes for d in partition.directories])
    number = b"\x08" + _VARINTS[index] if index else b""
    body = b"%b%b\x1a%c%b\x22%c%b%b" % (
        number,
        field,
        len(replica_ids),
        replica_ids,
        len(isr_ids),
        isr_ids,
        rest,
    )
    size = len(body)
    return None if size >= len(_VARINTS) else PARTITION_TAG + _VARINTS[size] + body


def _encoded_state(partition: PartitionRegistration) -> bytes:
    """Leader, epochs, and the lists of a reassignment."""
    record = pb.PartitionRecord(
        removing_replicas=partition.removing,
        adding_replicas=partition.adding,
        leader=leader_to_wire(partition.leader),
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    return record.SerializeToString(deterministic=True)
