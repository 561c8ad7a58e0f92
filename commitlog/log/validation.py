"""The checks of an append, and the bytes that are written.

A batch's payload is not copied. An append writes 16 new bytes (base offset, length, leader epoch)
and a view of the rest. LogAppendTime, or a wrong maximum timestamp, takes 61 new bytes with a new
CRC. If a topic's own compression.type differs from the producer's codec, the batch is rewritten
(`commitlog.log.rewriting`).

The records themselves are checked (offsets, timestamps, keys) if that needs no decompression, or if
they are decompressed anyway. The header of a batch that stays compressed is trusted
(DIVERGENCES.md). Rules: Kafka's LogValidator and UnifiedLog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from commitlog.log.rewriting import recompress, wanted_codec
from commitlog.segment.indexes import MAX_RELATIVE_OFFSET
from commitlog.types import AppendOrigin, Records, RecordsList, UnexpectedAppendOffsetError
from tidemark.config import TopicConfig
from tidemark.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordListTooLargeError,
    UnsupportedCompressionTypeError,
)
from tidemark.records.facts import append_kernel, record_facts
from tidemark.records.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    COMPRESSION_NAMES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_TIMESTAMP_MS,
    OVERHEAD_BYTES,
    PATCH_BYTES,
    TIMESTAMP_TYPE_FLAG,
    claimed_size,
    crc_is_valid,
    patch,
    restamp,
    whole_header,
)
from tidemark.records.header import BatchHeader as Header

_new_header = tuple.__new__  # `_make` and `_replace` without their checks


@dataclass(slots=True)
class Prepared:
    """Batches ready to be written: their buffers in order, and their headers with final offsets."""

    buffers: list[bytes | memoryview] = field(default_factory=list)
    headers: list[Header] = field(default_factory=list)
    sources: list[Records] = field(default_factory=list)
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    log_append_time_ms: int = -1
    has_producers: bool = False

    @property
    def last_offset(self) -> int:
        return self.headers[-1].last_offset

    def add(self, header: Header, source: Records, *pieces: bytes | memoryview) -> None:
        """Adds one batch; `header.position` is still its position in `source`."""
        self.buffers += pieces
        self.headers.append(header)
        self.sources.append(source)
        self.size_bytes += header.batch_length + OVERHEAD_BYTES
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
        if header.producer_id >= 0:
            self.has_producers = True


def prepare_leader(
    records: RecordsList,
    config: TopicConfig,
    origin: AppendOrigin,
    *,
    leader_epoch: int,
    next_offset: int,
    now_ms: int,
) -> Prepared:
    """Checks a leader's append and assigns offsets from `next_offset` on.

    Raises CorruptMessageError (CRC, shape), MessageTooLargeError, RecordListTooLargeError (more
    than a segment), InvalidTimestampError, UnsupportedCompressionTypeError. Raises
    InvalidRecordError also for unreadable records under a valid CRC: CORRUPT_MESSAGE asks for a
    retry, which helps only after damage in transit.
    """
    prepared = Prepared()
    stamp = config.message_timestamp_type == "LogAppendTime"
    is_kernels = origin is not AppendOrigin.RAFT_LEADER and not stamp  # it refuses control batches
    kernel = append_kernel() if is_kernels else None
    for buffer in _buffers(records):
        view, position, end = memoryview(buffer), 0, len(buffer)
        data = None if kernel is None else kernel.bytes_of(view)
        while position < end:
            fields = None
            if kernel is not None:
                fields = _check_at_once(kernel, data, view, position, config, now_ms)
            if fields is not None:
                following = position + fields[1] + OVERHEAD_BYTES
                changed = (next_offset, fields[1], leader_epoch, *fields[3:], position)
                header = _new_header(Header, changed)
                first = patch(next_offset, fields[1], leader_epoch)
                prepared.add(header, buffer, first, view[position + PATCH_BYTES : following])
            else:
                header = _header_of_client(view, position)
                following = header.end_position
                header, source, head, rest = _check_one(view, header, config, origin, now_ms, stamp)
                header = header._replace(
                    base_offset=next_offset, partition_leader_epoch=leader_epoch
                )
                first = patch(next_offset, header.batch_length, leader_epoch)
                prepared.add(header, source, first + head, rest)
            next_offset += header.last_offset_delta + 1
            position = following
    if not prepared.headers:
        raise CorruptMessageError("there is no record batch in the request")
    if stamp:
        prepared.log_append_time_ms = now_ms
    if prepared.size_bytes > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{prepared.size_bytes} bytes of batches are more than segment.bytes"
            f" {config.segment_bytes}; send less at once, or raise segment.bytes"
        )
    return prepared


def _check_at_once(
    kernel: Any, data: Any, view: memoryview, position: int, config: TopicConfig, now_ms: int
) -> tuple[Any, ...] | None:
    """Checks a batch by one kernel call, in a third of the time of `_check_one`. Returns the header
    fields of a batch that is valid and written unchanged; None if `_check_one` must decide.
    """
    end, oldest, newest, keyless = kernel.check(data, position)
    if end < 0 or end - position > config.max_message_bytes:
        return None
    if (
        oldest < 0
        or newest - now_ms > config.message_timestamp_after_max_ms
        or now_ms - oldest > config.message_timestamp_before_max_ms
    ):
        return None
    if keyless and config.is_compacted:  # or compressed: its keys are not checked yet
        return None
    fields = HEADER.unpack_from(view, position)
    if config.compression_type != "producer":
        codec = wanted_codec(config.compression_type)
        if codec is not None and codec != fields[5] & CODEC_MASK:
            return None
    return fields


def _check_one(
    view: memoryview,
    header: Header,
    config: TopicConfig,
    origin: AppendOrigin,
    now_ms: int,
    stamp: bool,
) -> tuple[Header, Records, bytes, memoryview]:
    """Checks a batch as `prepare_leader` describes. Returns its final header, the buffer that now
    holds it, and the bytes after the first 16: new ones, and a view of the rest.
    """
    _check_leader_batch(view, header, config, origin)
    source: Records = view
    body = view
    if origin is not AppendOrigin.RAFT_LEADER and not header.is_control:
        codec = wanted_codec(config.compression_type)
        try:
            is_kept = codec is None or codec == header.attributes & CODEC_MASK
            header = _check_records(view, header, config, now_ms, stamp, walk=not is_kept)
            if codec is not None and not is_kept:
                source = recompress(view, header, codec)
                body, header = memoryview(source), whole_header(source)
                _check_size(header, config)
        except CorruptMessageError as error:  # the CRC is valid: a retry does not help
            raise InvalidRecordError(str(error)) from error
    if not (stamp or header.attributes & TIMESTAMP_TYPE_FLAG or header.crc < 0):
        rest = body[header.position + PATCH_BYTES : header.end_position]
        return header, source, b"", rest
    time = now_ms if stamp else header.max_timestamp_ms
    head = restamp(body, header, log_append_time=stamp, max_timestamp_ms=time)
    rest = body[header.position + HEADER_BYTES : header.end_position]
    return header._replace(max_timestamp_ms=time), source, head, rest


def _header_of_client(view: memoryview, position: int) -> Header:
    """As `whole_header`, but raises InvalidRecordError for a negative number under a valid CRC: a
    retry does not help.
    """
    try:
        return whole_header(view, position)
    except CorruptMessageError as error:
        if len(view) - position >= HEADER_BYTES:
            header = Header._make((*HEADER.unpack_from(view, position), position))
            is_whole = HEADER_BYTES <= header.size_bytes <= len(view) - position
            if header.magic == MAGIC and is_whole and crc_is_valid(view, header.position, header):
                raise InvalidRecordError(str(error)) from error
        raise


def _check_leader_batch(
    view: memoryview, header: Header, config: TopicConfig, origin: AppendOrigin
) -> None:
    _check_size(header, config)
    if not crc_is_valid(view, header.position, header):
        raise CorruptMessageError(f"the batch at byte {header.position} fails its CRC check")
    codec = header.attributes & CODEC_MASK
    if codec >= len(COMPRESSION_NAMES):
        raise UnsupportedCompressionTypeError(
            f"codec {codec} is none of {', '.join(COMPRESSION_NAMES)}"
        )
    if header.base_offset and origin is AppendOrigin.CLIENT:
        raise InvalidRecordError(
            f"a client's batch begins at offset 0, not {header.base_offset}: the log gives offsets"
        )
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch says {header.record_count} records and {header.last_offset_delta + 1} offsets"
        )
    if header.is_control and origin is AppendOrigin.CLIENT:
        raise InvalidRecordError(
            "clients may not write control batches (a server's own pass origin=COORDINATOR or"
            " RAFT_LEADER)"
        )
    if header.attributes & TIMESTAMP_TYPE_FLAG and origin is AppendOrigin.CLIENT:
        raise InvalidTimestampError(
            "a client's batch says LogAppendTime, which only the server's clock gives: send"
            " CreateTime, and set message.timestamp.type=LogAppendTime for the topic"
        )
    if header.producer_id >= 0 and header.base_sequence < 0 and not header.is_control:
        raise InvalidRecordError(f"producer {header.producer_id} gives no sequence")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecordError("a transactional batch has no producer id")


def _check_size(header: Header, config: TopicConfig) -> None:
    if header.size_bytes > config.max_message_bytes:
        raise MessageTooLargeError(
            f"a batch of {header.size_bytes} bytes is larger than max.message.bytes"
            f" {config.max_message_bytes}; send smaller batches, or raise max.message.bytes"
        )


def _check_records(
    view: memoryview,
    header: Header,
    config: TopicConfig,
    now_ms: int,
    stamp: bool,
    *,
    walk: bool,
) -> Header:
    """Performs LogValidator's checks of records; returns the header with the right maximum
    timestamp. Records of a compressed batch are skipped, unless `walk` is set, since it is
    decompressed anyway.

    A header with a corrected maximum has a CRC of -1: it must be written anew.
    """
    compressed = header.attributes & CODEC_MASK != 0
    oldest, newest = header.base_timestamp_ms, header.max_timestamp_ms
    if oldest == NO_TIMESTAMP_MS:  # the first record has no timestamp: not too old
        oldest = newest
    if walk or not compressed or config.is_compacted:
        facts = record_facts(view, header)
        oldest, newest = facts.min_timestamp_ms, max(facts.max_timestamp_ms, NO_TIMESTAMP_MS)
        if facts.has_null_key and config.is_compacted:
            raise InvalidRecordError(
                "a record without a key: a compacted topic keeps the last record of each key;"
                " give every record one"
            )
    if stamp:
        return header
    _check_timestamps(min(oldest, newest), newest, config, now_ms)
    if newest != header.max_timestamp_ms:
        header = header._replace(max_timestamp_ms=newest, crc=-1)
    return header


def _check_timestamps(oldest: int, newest: int, config: TopicConfig, now_ms: int) -> None:
    if newest < 0 and oldest >= NO_TIMESTAMP_MS:
        return
    if newest - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"timestamp {newest} is {newest - now_ms} ms ahead of"
            f" this server; message.timestamp.after.max.ms is"
            f" {config.message_timestamp_after_max_ms}"
        )
    if now_ms - oldest > config.message_timestamp_before_max_ms:
        raise InvalidTimestampError(
            f"timestamp {oldest} is {now_ms - oldest} ms behind this server;"
            f" message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
        )


def prepare_follower(
    records: RecordsList,
    next_offset: int,
    *,
    gaps_allowed: bool,
    epoch_max: int | None = None,
    end_offset: int | None = None,
) -> Prepared:
    """Checks fetched batches: CRC, and offsets that continue the follower's log. With `epoch_max`
    the result ends before a batch of a later epoch, and before an incomplete one.

    Raises CorruptMessageError. Raises UnexpectedAppendOffsetError for offsets below the log end,
    for a gap unless `gaps_allowed`, and if all batches do not end at `end_offset`.
    """
    prepared = Prepared()
    for buffer in _buffers(records):
        view, position, end = memoryview(buffer), 0, len(buffer)
        while position < end:
            if epoch_max is not None and _is_cut_off(view, position):
                return prepared
            header = whole_header(view, position)
            if epoch_max is not None and header.partition_leader_epoch > epoch_max:
                return prepared
            following = position + header.batch_length + OVERHEAD_BYTES
            if crc32c(view[position + ATTRIBUTES_AT : following]) != header.crc:
                raise CorruptMessageError(f"the batch at byte {position} fails its CRC check")
            gap = header.base_offset - next_offset
            if gap < 0 or (gap > 0 and not gaps_allowed):
                raise UnexpectedAppendOffsetError(
                    f"a batch at offset {header.base_offset} does not follow offset {next_offset}"
                )
            prepared.add(header, buffer, view[position:following])
            next_offset = header.base_offset + header.last_offset_delta + 1
            position = following
    if end_offset is not None and next_offset != end_offset:
        raise UnexpectedAppendOffsetError(
            f"the batches end at offset {next_offset}; the leader says {end_offset}"
        )
    return prepared


def _is_cut_off(view: memoryview, position: int) -> bool:
    left = len(view) - position
    return left < HEADER_BYTES or claimed_size(view, position) > left


def split_by_segment(prepared: Prepared, used_bytes: int, segment_bytes: int) -> list[Prepared]:
    """Splits a follower's append into pieces. The first fits behind `used_bytes` of the active
    segment, the others fill a segment each. The offsets of a piece fit into an index.
    """
    if not prepared.headers:
        return []
    room = segment_bytes - used_bytes
    span = prepared.last_offset - prepared.headers[0].base_offset
    if prepared.size_bytes <= room and span <= MAX_RELATIVE_OFFSET:
        return [prepared]
    pieces: list[Prepared] = []
    current = Prepared()
    for header, source, buffer in zip(
        prepared.headers, prepared.sources, prepared.buffers, strict=True
    ):
        if current.headers and (
            current.size_bytes + header.size_bytes > room
            or header.last_offset - current.headers[0].base_offset > MAX_RELATIVE_OFFSET
        ):
            pieces.append(current)
            current, room = Prepared(), segment_bytes
        current.add(header, source, buffer)
    pieces.append(current)
    return pieces


def _buffers(records: RecordsList) -> tuple[Records, ...]:
    if isinstance(records, (bytes, bytearray, memoryview)):
        return (records,)
    return tuple(records)
