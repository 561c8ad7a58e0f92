"""Shows what is in the files of a log: the facts that Kafka's DumpLogSegments prints.

Read-only and tolerant of damage: a bad batch is named with the byte at which it begins, and
what can be read behind it is shown, too. `dump_file` yields plain dictionaries (their key
"kind" tells which fields they have), `commitlog.dump.format.format_entry` gives Kafka's line
for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from commitlog.batches import crc_is_valid, unpack_header
from commitlog.checkpoints import META_PROPERTIES, PARTITION_METADATA, parse_entries
from commitlog.dump.index import damage, index_entries
from commitlog.files import Directory, File
from commitlog.producer_state import SNAPSHOT_SUFFIX, decode_snapshot
from commitlog.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from tidemark.errors import CorruptMessageError, StorageError, TidemarkError
from tidemark.records import decode_batch, decode_control_records
from tidemark.records.header import DELETE_HORIZON_FLAG, HEADER_BYTES, TIMESTAMP_TYPE_FLAG
from tidemark.records.header import BatchHeader as Header

Entry = dict[str, Any]
CHECKPOINT_SUFFIX = ".checkpoint"
BOOTSTRAP = "bootstrap.checkpoint"
CODEC_MASK = 7
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # 0xED only ever leads a character
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show. `decode_value` turns a record's value into text where it is not UTF-8."""

    deep_iteration: bool = True
    print_data_log: bool = True
    decode_value: Callable[[bytes], str] | None = None
    max_bytes: int | None = None  # of a segment's whole batches; None: all
    max_message_bytes: int = 5 << 20  # what an index entry's batch is looked for in
    index_sanity: bool = False  # of indexes, what a start looks at


def dump_file(
    directory: Directory, name: str, options: DumpOptions | None = None
) -> Iterator[Entry]:
    """The entries of one file; StorageError for a name that is no file of a log directory."""
    options = options or DumpOptions()
    plain = name.removesuffix(".deleted").removesuffix(".swap").removesuffix(".cleaned")
    yield {"kind": "file", "name": f"{directory.path}/{name}"}
    if plain.endswith((LOG_SUFFIX, CHECKPOINT_SUFFIX)):
        yield from _start(plain)
        yield from _batches(directory, name, options)
    elif plain.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
        yield from index_entries(
            directory, name, plain, options.max_message_bytes, sanity=options.index_sanity
        )
    elif plain.endswith(SNAPSHOT_SUFFIX):
        yield from _producers(directory, name)
    elif plain.endswith(("-checkpoint", ".leader_epoch_checkpoint")):
        yield from _checkpoint(directory, name)
    elif plain in (META_PROPERTIES, PARTITION_METADATA):
        yield from _properties(directory, name)
    else:
        raise StorageError(
            f"{name} is no file of a log: expected .log, .index, .timeindex, .txnindex, .snapshot,"
            " .checkpoint, *-checkpoint, meta.properties or partition.metadata"
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


def _batches(directory: Directory, name: str, options: DumpOptions) -> Iterator[Entry]:
    file = directory.open_read_only(name)
    gaps: list[tuple[int, int]] = []
    previous = -1
    try:
        position, size = 0, file.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        while position < limit:
            data = file.pread(HEADER_BYTES, position)
            try:
                if len(data) < HEADER_BYTES:
                    raise CorruptMessageError("there are fewer bytes than a batch header has")
                header = unpack_header(data, position)
                if header.end_position > size:
                    raise CorruptMessageError(
                        f"the batch says {header.size_bytes} bytes, {size - position} are left"
                    )
            except CorruptMessageError as error:
                yield damage(name, position, size - position, str(error))
                return
            if header.end_position > limit:
                break
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


def _batch(file: File, name: str, header: Header, options: DumpOptions) -> Iterator[Entry]:
    data = file.pread(header.size_bytes, header.position)
    valid = crc_is_valid(data, header._replace(position=0))
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
    if not valid:
        yield damage(name, header.position, header.size_bytes, "the CRC check fails")
    elif options.deep_iteration:
        try:
            yield from _records(data, header, options)
        except TidemarkError as error:
            yield damage(name, header.position, header.size_bytes, str(error))


def _records(data: bytes, header: Header, options: DumpOptions) -> Iterator[Entry]:
    controls = decode_control_records(data) if header.is_control else ()
    messages = {control.offset: control for control in controls}
    for record in decode_batch(data):
        entry: Entry = {
            "kind": "record",
            "offset": record.offset,
            "timestamp_type": _timestamp_type(header),
            "timestamp_ms": record.timestamp_ms,
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
            "sequence": -1
            if header.base_sequence < 0
            else (header.base_sequence + record.offset - header.base_offset) & 0x7FFFFFFF,
            "header_keys": [key for key, _ in record.headers],
        }
        control = messages.get(record.offset)
        if control is not None:
            entry["control"] = control
        elif options.print_data_log and not header.is_control:
            entry["key"] = None if record.key is None else text_of(record.key)
            entry["payload"] = _payload(record.value, record.offset, options)
        yield entry


def _payload(value: bytes | None, offset: int, options: DumpOptions) -> str | None:
    if value is None:
        return None
    if options.decode_value is None:
        return text_of(value)
    try:
        return options.decode_value(value)
    except TidemarkError as error:
        return f"Error at {offset}, skipping. {error}"


def text_of(data: bytes) -> str:
    """UTF-8 as Java reads it: what is none becomes U+FFFD, a surrogate's three bytes one of them
    (Python makes three).
    """
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def _timestamp_type(header: Header) -> str:
    return "LogAppendTime" if header.attributes & TIMESTAMP_TYPE_FLAG else "CreateTime"


def _delete_horizon(header: Header) -> int | None:
    """Where the cleaner set one, the base timestamp's field holds it."""
    return header.base_timestamp_ms if header.attributes & DELETE_HORIZON_FLAG else None


# --- indexes, snapshots, text files


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


def _checkpoint(directory: Directory, name: str) -> Iterator[Entry]:
    text = directory.read(name).decode("utf-8", "replace")
    try:
        for fields in parse_entries(text, name):
            if len(fields) == 2:
                epoch, start = map(int, fields)
                yield {"kind": "epoch", "epoch": epoch, "start_offset": start}
            else:
                topic, partition, offset = fields
                yield {
                    "kind": "checkpoint",
                    "topic": topic,
                    "partition": int(partition),
                    "offset": int(offset),
                }
    except (StorageError, ValueError) as error:
        yield damage(name, 0, len(text), str(error))


def _properties(directory: Directory, name: str) -> Iterator[Entry]:
    separator = ":" if name == PARTITION_METADATA else "="
    for line in directory.read(name).decode("utf-8", "replace").splitlines():
        key, found, value = line.partition(separator)
        if found and not key.startswith("#"):
            yield {"kind": "property", "key": key.strip(), "value": value.strip()}
