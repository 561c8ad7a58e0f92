"""A log directory: its own files, its logs, and its checkpoints against the ends of the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from commitlog.disk.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    MetaProperties,
    OffsetCheckpoint,
)
from commitlog.disk.files import Directory
from commitlog.disk.names import STRAY_SUFFIX, parse_directory_name, parse_future_name
from commitlog.verify.findings import Finding
from commitlog.verify.logs import LogBounds, LogCheck, OnBytes, is_segment
from tidemark.errors import StorageError
from tidemark.types import TopicPartition

_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
Offsets = Mapping[str, Mapping[TopicPartition, int]]


def bytes_of(directory: Directory) -> int:
    """Returns the number of bytes that `verify_directory` reports as checked, about."""
    total = 0
    for name in directory.list():
        with suppress(StorageError):  # removed meanwhile
            if not directory.is_directory(name):
                total += directory.size_of(name)
            elif _is_log(name):
                total += bytes_of(directory.subdirectory(name, create=False))
    return total


def verify_directory(
    directory: Directory, on_bytes: OnBytes = lambda _: None, *, only: str | None = None
) -> Iterator[Finding]:
    """Yields what is wrong in a log directory, or in the directory of one partition.

    `only`: the name of one partition's directory in it. `on_bytes` is called with the bytes of
    each step. Raises StorageError if `directory` is neither.
    """
    names = directory.list()
    if any(is_segment(name) for name in names):
        yield from LogCheck(directory, LogBounds(), on_bytes).findings()
        return
    logs = [name for name in names if directory.is_directory(name) and _is_log(name)]
    if not logs and META_PROPERTIES not in names:
        raise StorageError(
            f"{directory.path} is no log directory: name an entry of log.dirs, or a partition in it"
        )
    offsets: dict[str, Mapping[TopicPartition, int]] = {}
    for found in _own_files(directory, offsets):
        if only is None:
            yield found
    for name in logs if only is None else [only]:
        yield from _twice(directory, name, offsets, on_bytes)


def _own_files(
    directory: Directory, offsets: dict[str, Mapping[TopicPartition, int]]
) -> Iterator[Finding]:
    """Reads the files of the log directory itself; fills `offsets`, by checkpoint."""

    def read(name: str) -> None:
        if name == META_PROPERTIES:
            MetaProperties.read(directory)
        else:
            offsets[name] = OffsetCheckpoint(directory, name).read()

    for name in (META_PROPERTIES, *_CHECKPOINTS):
        try:
            read(name)
        except StorageError as error:
            yield Finding(f"{directory.path}/{name}", None, str(error))


def _is_log(name: str) -> bool:
    return (
        parse_directory_name(name) is not None
        or parse_future_name(name) is not None
        or name.endswith(STRAY_SUFFIX)
    )


def _twice(
    directory: Directory, name: str, offsets: Offsets, on_bytes: OnBytes
) -> Iterator[Finding]:
    """Checks a log. A node that runs may change it between two reads, or may have changed it since
    the checkpoints were read. So damage in a log that is not closed must be found again.
    """
    is_closed = CleanShutdown(directory).exists()
    found = list(_log(directory, name, offsets, is_closed, on_bytes))
    again: set[Finding] | None = None
    if not is_closed and any(one.is_damage for one in found):
        newer: dict[str, Mapping[TopicPartition, int]] = {}
        for _ in _own_files(directory, newer):
            pass  # told before
        again = set(_log(directory, name, newer, CleanShutdown(directory).exists(), lambda _: None))
    for one in found:
        if again is None or not one.is_damage or one in again:
            yield one


def _log(
    directory: Directory, name: str, offsets: Offsets, is_closed: bool, on_bytes: OnBytes
) -> Iterator[Finding]:
    partition = parse_directory_name(name)

    def said(checkpoint: str) -> int | None:
        return None if partition is None else offsets.get(checkpoint, {}).get(partition)

    recovery_point = said(RECOVERY_POINT_CHECKPOINT)
    cleaned_to = None if partition is None else said(CLEANER_OFFSET_CHECKPOINT) or 0
    log_start = said(LOG_START_OFFSET_CHECKPOINT) or 0
    bounds = LogBounds(is_closed, recovery_point, cleaned_to, log_start)
    check = LogCheck(directory.subdirectory(name, create=False), bounds, on_bytes)
    try:
        yield from check.findings()
    except StorageError:
        if directory.exists(name):
            raise
        return  # deleted meanwhile
    end = check.end_offset or 0
    if is_closed and recovery_point is not None and recovery_point < end:
        reason = f"{name} ends at offset {end}; a clean stop left its recovery point at"
        yield Finding(f"{directory.path}/{_CHECKPOINTS[0]}", None, f"{reason} {recovery_point}")
    for checkpoint in _CHECKPOINTS[:3]:
        offset = said(checkpoint)
        if offset is not None and offset > end:
            reason = f"{name} ends at offset {end}, below {offset}"
            damage = is_closed or checkpoint == RECOVERY_POINT_CHECKPOINT
            yield Finding(f"{directory.path}/{checkpoint}", None, reason, damage)
