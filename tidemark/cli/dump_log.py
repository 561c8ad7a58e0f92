"""`tidemark dump-log`: segments, indexes, snapshots, checkpoints to read; never writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli.output import Json, print_json, print_line
from tidemark.errors import ConfigError, CorruptMessageError, StorageError


def dump_log(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print the records of segments.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Walk the records, not only the batches.")
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Compare an index with its log only.")
    ] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Check an index as a start does.")
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help="Values are metadata records.")
    ] = False,
    remote_log_metadata_decoder: Annotated[
        bool, typer.Option("--remote-log-metadata-decoder", help="Values are tier metadata.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Dump files of a log directory: segments, indexes, producer snapshots, checkpoints."""
    from commitlog.dump import DumpOptions, dump_file, format_entry
    from commitlog.files import OsDirectory

    check_index = verify_index_only or index_sanity_check
    decoder = _decoder(cluster_metadata_decoder, remote_log_metadata_decoder)
    show_records = print_data_log or decoder is not None
    options = DumpOptions(
        deep_iteration=deep_iteration or show_records,
        print_data_log=show_records,
        index_sanity_check=check_index,
        decode_value=decoder,
    )
    damaged = 0
    for path in files:
        if not path.is_file():
            raise StorageError(f"{path} is no file")
        directory = OsDirectory(str(path.parent), create=False)
        for entry in dump_file(directory, path.name, options):
            damaged += entry["kind"] == "damage"
            if verify_index_only and entry["kind"] not in ("file", "damage"):
                continue
            if as_json:
                print_json(json_entry(entry))
            else:
                print_line(format_entry(entry))
    if damaged and check_index:
        raise CorruptMessageError(f"{damaged} index entries do not agree with the log")


def _decoder(cluster_metadata: bool, remote_log_metadata: bool) -> Callable[[bytes], str] | None:
    """What makes text of a record's value; None for values that are text."""
    if cluster_metadata and remote_log_metadata:
        raise ConfigError("a file holds metadata of the cluster or of the tier, not of both")
    if cluster_metadata:
        return _cluster_metadata
    if remote_log_metadata:
        from tiering.codec import decode, format_metadata

        return lambda value: format_metadata(decode(value))
    return None


def _cluster_metadata(value: bytes) -> str:
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.message import DecodeError

    from tidemark.v1.metadata_pb2 import MetadataRecord

    try:
        return MessageToJson(MetadataRecord.FromString(value), indent=None)
    except DecodeError as error:
        raise CorruptMessageError(f"a value is no metadata record: {error}") from error


def json_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as JSON's types: the message of a control record by its name and fields."""
    control = entry.get("control")
    if control is None:
        return entry
    from commitlog.dump_format import control_fields

    named = {"type": type(control.message).__name__, **control_fields(control.message)}
    return entry | {"control": named}
