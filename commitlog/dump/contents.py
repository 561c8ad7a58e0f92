"""Shows the contents of a log's files: the facts that Kafka's DumpLogSegments prints.

Read-only and tolerant of damage. A bad batch is reported with the byte at which it begins, and what
can be read after it is shown too. `dump_file` yields plain dictionaries, whose key "kind"
determines their fields. `commitlog.dump.format.format_entry` returns Kafka's line for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from commitlog.disk.files import Directory, File
from commitlog.dump.index import damage, index_entries
from commitlog.dump.text_files import (
    JSON_FILES,
    PROPERTIES,
    checkpoint_entries,
    json_entries,
    property_entries,
)
from commitlog.segment.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from commitlog.segment.producer_state import decode_snapshot
from tidemark.errors import CorruptMessageError, StorageError, TidemarkError
from tidemark.records.control import (
    ControlRecord,
    ControlType,
    decode_control_type,
    decode_control_value,
)
from tidemark.records.header import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    TIMESTAMP_TYPE_FLAG,
    crc_is_valid,
    read_header,
    sequence_after,
)
from tidemark.records.header import BatchHeader as Header
from tidemark.records.plain import Record, iter_records

Entry = dict[str, Any]
CHECKPOINT_SUFFIX = ".checkpoint"
BOOTSTRAP = "bootstrap.checkpoint"
CODEC_MASK = 7
_CONTROL_KEY_BYTES = 4
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # 0xED is a lead byte only
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


Decoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Makes texts of a record's key and value. Raises CorruptMessageError."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Selection of what to show.

    `decode_key` and `decode_value` make text of other data than UTF-8, `decode_record` of key and
    value together.
    """

    deep_iteration: bool = True
    print_data_log: bool = True
    decode_key: Callable[[bytes], str] | None = None
    decode_value: Callable[[bytes], str] | None = None
    decode_record: Decoder | None = None
    max_bytes: int | None = None  # of a segment's whole batches; None: all
    max_message_bytes: int = 5 << 20  # limit for a batch of an index entry
    index_sanity: bool = False  # check indexes as a start does


def dump_file(
    directory: Directory, name: str, options: DumpOptions | None = None
) -> Iterator[Entry]:
    """Yields the entries of one file. Raises StorageError if the name is no file of a log
    directory.
    """
    entries = _entries_of(directory, name, options or DumpOptions())
    yield {"kind": "file", "name": f"{directory.path}/{name}"}
    yield from entries


def _entries_of(directory: Directory, name: str, options: DumpOptions) -> Iterator[Entry]:
    plain = name.removesuffix(".deleted").removesuffix(".swap").removesuffix(".cleaned")
    if plain.endswith((LOG_SUFFIX, CHECKPOINT_SUFFIX)):
        return _segment(directory, name, plain, options)
    if plain.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
        limit = options.max_message_bytes
        return index_entries(directory, name, plain, limit, sanity=options.index_sanity)
    if plain.endswith(SNAPSHOT_SUFFIX):
        return _producers(directory, name)
    if plain.endswith(("-checkpoint", ".leader_epoch_checkpoint")):
        return checkpoint_entries(name, directory.read(name))
    if plain in PROPERTIES:
        return property_entries(name, directory.read(name))
    if plain in JSON_FILES:
        return json_entries(name, directory.read(name))
    raise StorageError(
        f"{name} is no file of a log: expected .log, .index, .timeindex, .txnindex, .snapshot,"
        " .checkpoint, *-checkpoint, meta.properties, partition.metadata, quorum-state or"
        " .kafka_cleanshutdown"
    )


# --- batches


def _start(name: str) -> Iterator[Entry]:
    stem = name.split(".")[0]
    if name == BOOTSTRAP:
        yield {"kind": "bootstrap"}
    elif name.endswith(LOG_SUFFIX) and stem.isdigit():
        yield {"kind": "start", "offset": int(stem)}
    elif name.endswith(CHECKPOINT_SUFFIX):
        end, _, epoch = stem.partition("-")
        if end.isdigit() and epoch.isdigit():
            yield {"kind": "snapshot", "end_offset": int(end), "epoch": int(epoch)}


def _segment(directory: Directory, name: str, plain: str, options: DumpOptions) -> Iterator[Entry]:
    yield from _start(plain)
    yield from _batches(directory, name, options)


def _batches(directory: Directory, name: str, options: DumpOptions) -> Iterator[Entry]:
    file = directory.open_read_only(name)
    gaps: list[tuple[int, int]] = []
    previous, floor = -1, _base_of(name)
    try:
        position, size = 0, file.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        while position < limit:
            data = file.pread(HEADER_BYTES, position)
            try:
                if len(data) < HEADER_BYTES:
                    raise CorruptMessageError("there are fewer bytes than a batch header has")
                header = read_header(data, 0, position)
                if header.end_position > size:
                    raise CorruptMessageError(
                        f"the batch says {header.size_bytes} bytes, {size - position} are left"
                    )
            except CorruptMessageError as error:
                yield damage(name, position, size - position, str(error))
                return
            if header.end_position > limit:
                break
            if header.base_offset < floor:
                reason = f"offset {header.base_offset} where {floor} or more is expected"
                yield damage(name, position, header.size_bytes, reason)
            floor = max(floor, header.next_offset)
            for entry in _batch(file, name, header, options):
                if entry["kind"] == "record":
                    if entry["offset"] != previous + 1:
                        gaps.append((previous, entry["offset"]))
                    previous = entry["offset"]
                yield entry
            position = header.end_position
        if gaps:
            yield {"kind": "gaps", "name": f"{directory.path}/{name}", "pairs": gaps}
    finally:
        file.close()


def _base_of(name: str) -> int:
    """Returns the base offset of a segment; 0 for a checkpoint."""
    stem = name.split(".")[0]
    return int(stem) if LOG_SUFFIX in name and stem.isdigit() else 0


def _batch(file: File, name: str, header: Header, options: DumpOptions) -> Iterator[Entry]:
    data = file.pread(header.size_bytes, header.position)
    valid = crc_is_valid(data, 0, header)
    codec = header.attributes & CODEC_MASK
    yield {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": _delete_horizon(header),
        "position": header.position,
        "timestamp_type": _timestamp_type(header),
        "max_timestamp_ms": header.max_timestamp_ms,
        "size_bytes": header.size_bytes,
        "magic": header.magic,
        "compression": _CODECS[codec] if codec < len(_CODECS) else str(codec),
        "crc": header.crc,
        "is_valid": valid,
    }
    reason = "" if valid else "the CRC check fails"
    if options.deep_iteration:
        try:
            yield from _records(data, header, options)
        except TidemarkError as error:
            reason = reason or str(error)
    if reason:
        yield damage(name, header.position, header.size_bytes, reason)


def _records(data: bytes, header: Header, options: DumpOptions) -> Iterator[Entry]:
    """Yields the records as far as they can be read, even if the CRC check fails: what is left may
    show why.
    """
    for record in iter_records(data, check_crc=False):
        entry: Entry = {
            "kind": "record",
            "offset": record.offset,
            "timestamp_type": _timestamp_type(header),
            "timestamp_ms": record.timestamp_ms,
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
            "sequence": -1
            if header.base_sequence < 0
            else sequence_after(header.base_sequence, record.offset - header.base_offset),
            "header_keys": [key for key, _ in record.headers],
        }
        if header.is_control:
            entry |= _control_of(record)
        elif options.print_data_log:
            entry["headers"] = record.headers
            entry |= _raw("key", record.key) | _raw("payload", record.value)
            entry["key"], entry["payload"] = _texts(record, options)
        yield entry


def _control_of(record: Record) -> Entry:
    """Returns the fields of a control record; of an unknown type only the number."""
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    if len(record.key or b"") >= _CONTROL_KEY_BYTES and number not in set(ControlType):
        return {"control_type": f"UNKNOWN({number})"}
    kind = decode_control_type(record.key)
    message = decode_control_value(kind, record.value)
    return {"control": ControlRecord(record.offset, record.timestamp_ms, kind, message)}


def _texts(record: Record, options: DumpOptions) -> tuple[str | None, str | None]:
    if options.decode_record is None:
        key = _decoded(record.key, record.offset, options.decode_key)
        return key, _decoded(record.value, record.offset, options.decode_value)
    try:
        return options.decode_record(record.key, record.value)
    except TidemarkError as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


def _decoded(data: bytes | None, offset: int, decode: Callable[[bytes], str] | None) -> str | None:
    if data is None:
        return None
    if decode is None:
        return text_of(data)
    try:
        return decode(data)
    except TidemarkError as error:
        return f"Error at {offset}, skipping. {error}"


def _raw(name: str, data: bytes | None) -> Entry:
    """Returns the field `<name>_bytes` for bytes that are no UTF-8; a text holds all others."""
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return {f"{name}_bytes": data}
    return {}


def text_of(data: bytes) -> str:
    """Decodes UTF-8 as Java does: an invalid sequence becomes U+FFFD. The three bytes of a
    surrogate become one U+FFFD, where Python makes three.
    """
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def _timestamp_type(header: Header) -> str:
    return "LogAppendTime" if header.attributes & TIMESTAMP_TYPE_FLAG else "CreateTime"


def _delete_horizon(header: Header) -> int | None:
    """Returns the delete horizon in ms; the cleaner sets it in the base timestamp's field."""
    return header.base_timestamp_ms if header.attributes & DELETE_HORIZON_FLAG else None


# --- snapshots


def _producers(directory: Directory, name: str) -> Iterator[Entry]:
    data = directory.read(name)
    try:
        entries = decode_snapshot(data, name)
    except StorageError as error:
        yield damage(name, 0, len(data), str(error))
        return
    for entry in entries:
        shown: Entry = {
            "kind": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.current_txn_first_offset,
            "last_timestamp_ms": entry.last_timestamp_ms,
        }
        for batch in entry.batches:
            shown["first_sequence"] = batch.first_sequence
            shown["last_sequence"] = batch.last_sequence
            shown["last_offset"] = batch.last_offset
            shown["offset_delta"] = batch.offset_delta
            shown["timestamp_ms"] = batch.timestamp_ms
        yield shown
