"""`tidemark dump-log`: segments, indexes, snapshots and checkpoints in readable form; never writes.

Options and lines are those of Kafka's DumpLogSegments (kafka-dump-log.sh). With `--json`, each
batch is one object with its `records` (if they are printed). A file is a line of its own, and every
other entry is one object. Nothing is lost: a key, value or header value that is no UTF-8 is there
in base64, too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.dump_decoders import (
    decoders_named,
    decoders_of,
    remote_log_metadata_formatter,
)
from tidemark.cli.output import Json, print_json, print_line
from tidemark.errors import ConfigError, CorruptMessageError, StorageError

if TYPE_CHECKING:
    from commitlog.dump import DumpOptions

Entry = dict[str, Any]
# The indexes whose entries a check does not print; Kafka's tool always prints a transaction index.
_CHECKED = (".index", ".timeindex", ".index.deleted", ".timeindex.deleted")
_DAMAGE_KINDS = ("damage", "mismatch")
_CHECK_KINDS = ("file", "empty", *_DAMAGE_KINDS)


Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots, "
        "checkpoints, meta.properties, partition.metadata, quorum-state; of a node that runs, too.",
    ),
]
FileList = Annotated[str, typer.Option("--files", help="The files, comma-separated (Kafka's way).")]
PrintDataLog = Annotated[
    bool, typer.Option("--print-data-log", help="Print the records of segments.")
]
DeepIteration = Annotated[
    bool, typer.Option("--deep-iteration", help="Walk the records, not only the batches.")
]
VerifyIndexOnly = Annotated[
    bool,
    typer.Option(
        "--verify-index-only",
        help="Compare an index with its log, print only what is wrong; exit status 1 if any entry "
        "is.",
    ),
]
IndexSanityCheck = Annotated[
    bool,
    typer.Option(
        "--index-sanity-check", help="The same, but an index preallocated and never used is sound."
    ),
]
MaxMessageSize = Annotated[
    int, typer.Option("--max-message-size", help="Bytes of the largest batch.", min=61)
]
MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", help="Stop a segment after so many bytes.", min=0)
]
SkipRecordMetadata = Annotated[
    bool, typer.Option("--skip-record-metadata", help="Of records, keys and payloads alone.")
]
ClusterMetadata = Annotated[
    bool,
    typer.Option(
        "--cluster-metadata-decoder", help="Values are metadata records, ours or Kafka's."
    ),
]
RemoteLogMetadata = Annotated[
    bool, typer.Option("--remote-log-metadata-decoder", help="Values are tier metadata.")
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="KEY=VALUE",
        help="Of tier metadata, KIP-405's text: print.partition, print.message.offset, "
        "print.version, print.all.event.value.fields (true or false), separator.",
    ),
]
TransactionLog = Annotated[
    bool,
    typer.Option("--transaction-log-decoder", help="Records are of Kafka's transaction log."),
]
Offsets = Annotated[
    bool,
    typer.Option("--offsets-decoder", help="Records are of consumer groups and their offsets."),
]
KeyDecoder = Annotated[
    str,
    typer.Option(
        "--key-decoder-class",
        metavar="MODULE:FUNCTION",
        help="Makes text of a key's bytes; with --print-data-log.",
    ),
]
ValueDecoder = Annotated[
    str,
    typer.Option(
        "--value-decoder-class",
        metavar="MODULE:FUNCTION",
        help="Makes text of a value's bytes; with --print-data-log.",
    ),
]


def dump_log(
    files: Files = None,
    file_list: FileList = "",
    print_data_log: PrintDataLog = False,
    deep_iteration: DeepIteration = False,
    verify_index_only: VerifyIndexOnly = False,
    index_sanity_check: IndexSanityCheck = False,
    max_message_size: MaxMessageSize = 5 << 20,
    max_bytes: MaxBytes = None,
    skip_record_metadata: SkipRecordMetadata = False,
    cluster_metadata_decoder: ClusterMetadata = False,
    remote_log_metadata_decoder: RemoteLogMetadata = False,
    transaction_log_decoder: TransactionLog = False,
    offsets_decoder: Offsets = False,
    properties: Property = None,
    key_decoder: KeyDecoder = "",
    value_decoder: ValueDecoder = "",
    as_json: Json = False,
) -> None:
    """Dump files of a log directory: segments, indexes, producer snapshots, checkpoints."""
    from commitlog.dump import DumpOptions

    decoders = decoders_of(
        cluster=cluster_metadata_decoder,
        tier=remote_log_metadata_decoder,
        transactions=transaction_log_decoder,
        offsets=offsets_decoder,
    )
    place = None
    if properties:
        if not remote_log_metadata_decoder:
            raise ConfigError("--property goes with --remote-log-metadata-decoder")
        decoders, place = remote_log_metadata_formatter(properties)
    show_records = print_data_log or bool(decoders)
    decoders = decoders_named(key_decoder, value_decoder) | decoders
    options = DumpOptions(
        **decoders,
        deep_iteration=deep_iteration or show_records or skip_record_metadata,
        print_data_log=show_records,
        max_bytes=max_bytes,
        max_message_bytes=max_message_size,
        index_sanity=index_sanity_check,
    )
    check_index = verify_index_only or index_sanity_check
    damaged = 0
    for path in _paths(files or [], file_list):
        entries = _entries(path, options, check_index=check_index)
        if place is not None:
            entries = (place(path, entry) for entry in entries)
        if as_json:
            damaged += _print_json(entries)
        else:
            damaged += _print_lines(path, entries, options, metadata=not skip_record_metadata)
    if damaged and check_index:
        raise CorruptMessageError(f"{damaged} index entries do not agree with the log")


def _entries(path: Path, options: DumpOptions, *, check_index: bool) -> Iterator[Entry]:
    """The entries of a file; of an index that is checked, only the faults."""
    from commitlog.disk.os_files import OsDirectory
    from commitlog.dump import dump_file

    entries = dump_file(OsDirectory(str(path.parent), create=False), path.name, options)
    if check_index and path.name.endswith(_CHECKED):
        return (entry for entry in entries if entry["kind"] in _CHECK_KINDS)
    return entries


def _print_json(entries: Iterator[Entry]) -> int:
    """Prints the entries of one file. Returns the number of entries that report damage."""
    damaged = 0
    for entry in _grouped(entries):
        damaged += entry["kind"] in _DAMAGE_KINDS
        print_json(json_entry(entry))
    return damaged


def _print_lines(
    path: Path, entries: Iterator[Entry], options: DumpOptions, *, metadata: bool
) -> int:
    """As `_print_json`, in Kafka's lines, which name the file as given."""
    from commitlog.dump import format_entry

    damaged, empty = 0, False
    for entry in entries:
        damaged += entry["kind"] in _DAMAGE_KINDS
        if entry["kind"] == "file":
            print_line(f"Dumping {path}")
        elif entry["kind"] == "empty":
            empty = True
            print_line(f"{path} is empty.")
        else:
            print_line(format_entry(entry, record_metadata=metadata))
    if options.index_sanity and not damaged and not empty and path.name.endswith(_CHECKED):
        print_line(f"{path} passed sanity check.")
    return damaged


def _paths(files: list[Path], file_list: str) -> Iterator[Path]:
    """The files named either way. Raises ConfigError for none, StorageError for one that is no
    file.
    """
    named = [*files, *(Path(name.strip()) for name in file_list.split(",") if name)]
    if not named:
        raise ConfigError("name the files to dump, or give them with --files")
    for path in named:
        if path.is_dir():
            raise StorageError(f"{path} is a directory: name its files, like {path}/*.log")
        if not path.is_file():
            raise StorageError(f"there is no file {path}")
        yield path


def _grouped(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Each batch with its records in it. The records of a segment are read one batch at a time."""
    batch: Entry | None = None
    for entry in entries:
        if entry["kind"] == "record" and batch is not None:
            record = {key: value for key, value in entry.items() if key != "kind"}
            batch.setdefault("records", []).append(json_entry(record))
            continue
        if batch is not None:
            yield batch
            batch = None
        if entry["kind"] == "batch":
            batch = dict(entry)
        else:
            yield entry
    if batch is not None:
        yield batch


def json_entry(entry: Entry) -> Entry:
    """An entry as JSON's types. Bytes that are no UTF-8 are base64; the message of a control record
    has its name and fields.
    """
    if entry.get("headers"):
        entry = entry | {"headers": [_json_header(*pair) for pair in entry["headers"]]}
    for name in ("key_bytes", "payload_bytes"):
        if name in entry:
            text = b64encode(entry.pop(name)).decode()
            entry[name.replace("bytes", "base64")] = text
    control = entry.get("control")
    if control is None:
        return entry
    from commitlog.dump.format import control_fields

    named = {"type": type(control.message).__name__, **control_fields(control.message)}
    return entry | {"control": named}


def _json_header(key: str, value: bytes | None) -> Entry:
    try:
        return {"key": key, "value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {"key": key, "value_base64": b64encode(value or b"").decode()}
