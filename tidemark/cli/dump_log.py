"""`tidemark dump-log`: segments, indexes, snapshots and checkpoints in readable form; reads only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli.output import Json, print_json, print_line
from tidemark.errors import StorageError


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
    """Dump files of a log directory: .log, .index, .timeindex, .txnindex, .snapshot, .checkpoint."""
    from commitlog.dump import DumpOptions, dump_file
    from commitlog.files import OsDirectory

    options = DumpOptions(
        print_data_log=print_data_log,
        deep_iteration=deep_iteration,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        cluster_metadata_decoder=cluster_metadata_decoder,
        remote_log_metadata_decoder=remote_log_metadata_decoder,
    )
    for path in files:
        if not path.is_file():
            raise StorageError(f"{path} is no file")
        directory = OsDirectory(str(path.parent), create=False)
        if not as_json:
            print_line(f"Dumping {path}")
        for row in dump_file(directory, path.name, options):
            if as_json:
                print_json({"file": str(path), **_plain(row)})
            else:
                print_line(_line(row))


def _line(row: dict[str, Any]) -> str:
    return " ".join(f"{key}: {_text(value)}" for key, value in row.items())


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, bytes) else value
