"""The flat files of a node's remote log metadata, and the commits that make them one state.

Files are in `remote-log-metadata` under the first usable log directory, one for each user partition
(`tiering.metadata.flat_file`). They are appended to, and written anew when most of their entries
are outdated. A manifest names each file with its size and CRC-32C. It also has the leader epoch of
each metadata partition's last record: by it a start sees whether the topic still has it.
`_rlmm_committed_offsets` has the position of each metadata partition, in Kafka's format, and is
written last. It commits the manifest that has the same positions. Bytes behind a file's size were
not committed.

So a restart finds exactly the state of one commit, or notices damage; then the metadata partition
is read anew from its topic. All methods block and are called by one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c

from commitlog.disk.files import Directory
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.types import TopicIdPartition, uuid_from_text, uuid_to_text
from tiering.metadata.flat_file import encode_header

logger = logging.getLogger(__name__)

OFFSETS_NAME = "_rlmm_committed_offsets"
DIRECTORY_NAME = "remote-log-metadata"
_MANIFEST = "manifest."
_OUTDATED_FACTOR, _OUTDATED_MIN = 2, 64


@dataclass(frozen=True, slots=True)
class FlatFileState:
    """A file as of a commit; `entries` counts the outdated ones too."""

    name: str
    size_bytes: int
    crc: int
    entries: int


@dataclass(frozen=True, slots=True)
class FlatFileChange:
    """Entries to append to the file of a partition; with `anew` they are all of it."""

    partition: TopicIdPartition
    content: bytes
    entries: int
    anew: bool


_Key = tuple[int, UUID, int]  # metadata partition, topic id, partition


@dataclass(slots=True)
class _Manifest:
    topic_id: UUID
    positions: dict[int, int]
    epochs: dict[int, int]
    files: dict[_Key, FlatFileState]


class FlatFileStore:
    """The files below one directory; `open` comes first."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._directory = root.subdirectory(DIRECTORY_NAME)
        self._topic_id: UUID | None = None
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._files: dict[_Key, FlatFileState] = {}
        self._generation = 0

    def open(self, topic_id: UUID) -> None:
        """Finds the state of the last commit; begins anew without one, or with one of another
        metadata topic. Raises StorageError.
        """
        self._topic_id, self._positions, self._epochs, self._files = topic_id, {}, {}, {}
        try:
            committed = _parse_offsets(self._root.read(OFFSETS_NAME))
        except (StorageError, CorruptMessageError) as error:
            logger.info("remote log metadata is read from its topic: %s", error)
            committed = {}
        numbers = (n.removeprefix(_MANIFEST) for n in self._directory.list() if _MANIFEST in n)
        for generation in sorted(int(number) for number in numbers if number.isdigit()):
            self._generation, name = generation, f"{_MANIFEST}{generation}"
            try:
                found = _parse_manifest(self._directory.read(name))
            except (StorageError, CorruptMessageError) as error:
                logger.warning("%s/%s: %s", self._directory.path, name, error)
                continue
            if found.topic_id == topic_id and found.positions == committed:
                self._positions, self._epochs = found.positions, found.epochs
                self._files = found.files

    def position(self, number: int) -> int:
        """Returns the offset of the first record of a metadata partition that is not committed."""
        return self._positions.get(number, 0)

    def epoch(self, number: int) -> int:
        """Returns the leader epoch of the record before the position; -1: unknown."""
        return self._epochs.get(number, -1)

    def read(self, number: int) -> list[tuple[int, bytes]]:
        """Returns (partition, content) of the files of a metadata partition. Raises
        CorruptMessageError or StorageError if one is damaged.
        """
        found = []
        for (each, _, partition), state in self._files.items():
            if each != number:
                continue
            content = self._directory.read(state.name)[: state.size_bytes]
            if len(content) != state.size_bytes or crc32c(content) != state.crc:
                raise CorruptMessageError(f"{self._directory.path}/{state.name} is damaged")
            found.append((partition, content))
        return found

    def drop(self, number: int) -> None:
        """Forgets the files of a metadata partition, from the next commit on."""
        self._positions.pop(number, None)
        self._epochs.pop(number, None)
        self._files = {key: state for key, state in self._files.items() if key[0] != number}

    def is_outdated(self, number: int, partition: TopicIdPartition, live: int, added: int) -> bool:
        """Whether a file is to be written anew: it is missing, or most of it was replaced."""
        state = self._files.get((number, partition.topic_id, partition.partition))
        limit = _OUTDATED_FACTOR * live + _OUTDATED_MIN
        return state is None or state.entries + added > limit

    def commit(
        self, number: int, position: int, changes: Iterable[FlatFileChange], epoch: int = -1
    ) -> None:
        """Appends the changes of a metadata partition up to `position`; they count all or none.
        `epoch` is that of the record before the position.

        Raises StorageError or FsyncError; then the last commit still holds.
        """
        self._generation += 1
        files = dict(self._files)
        for change in changes:
            key = (number, change.partition.topic_id, change.partition.partition)
            files[key] = self._write(number, position, change, files.get(key))
        self._directory.fsync()
        positions = {**self._positions, number: position}
        epochs = {**self._epochs, number: epoch}
        assert self._topic_id is not None
        manifest = _Manifest(self._topic_id, positions, epochs, files)
        self._directory.write_atomic(f"{_MANIFEST}{self._generation}", _format_manifest(manifest))
        self._root.write_atomic(OFFSETS_NAME, _format_offsets(positions))
        self._positions, self._epochs, self._files = positions, epochs, files
        self._clean_up()

    def _write(
        self, number: int, position: int, change: FlatFileChange, known: FlatFileState | None
    ) -> FlatFileState:
        content, entries = change.content, change.entries
        if known is None or change.anew:
            content = encode_header(change.partition, position) + content
            topic = uuid_to_text(change.partition.topic_id)
            name = f"{number}.{topic}.{change.partition.partition}.{self._generation}"
            known = FlatFileState(name, 0, 0, 0)
        file = self._directory.open(known.name, create=not known.size_bytes)
        try:
            file.truncate(known.size_bytes)  # bytes of an interrupted commit
            file.append(content)
            file.fsync()
        finally:
            file.close()
        return FlatFileState(
            known.name,
            known.size_bytes + len(content),
            crc32c(content, known.crc),
            known.entries + entries,
        )

    def _clean_up(self) -> None:
        """Removes what the last commit does not name. What stays is removed by a later one."""
        named = {state.name for state in self._files.values()}
        named.add(f"{_MANIFEST}{self._generation}")
        try:
            for name in self._directory.list():
                if name not in named:
                    self._directory.remove(name)
        except StorageError as error:
            logger.warning("outdated remote log metadata stays: %s", error)


def _format_offsets(positions: Mapping[int, int]) -> bytes:
    """Formats `_rlmm_committed_offsets`: the version, then a partition and its offset a line."""
    lines = ["0", *(f"{number} {offset}" for number, offset in sorted(positions.items()))]
    return ("\n".join(lines) + "\n").encode()


def _parse_offsets(content: bytes) -> dict[int, int]:
    lines = content.decode("ascii", "replace").splitlines()
    try:
        if not lines or int(lines[0]) != 0:
            raise ValueError("no version 0")
        return {int(number): int(offset) for number, offset in (one.split() for one in lines[1:])}
    except ValueError as error:
        raise CorruptMessageError(f"{OFFSETS_NAME}: {error}") from error


def _format_manifest(manifest: _Manifest) -> bytes:
    lines = [f"topic {uuid_to_text(manifest.topic_id)}"]
    lines += [f"position {number} {at}" for number, at in sorted(manifest.positions.items())]
    lines += [f"epoch {number} {epoch}" for number, epoch in sorted(manifest.epochs.items())]
    lines += [f"file {s.name} {s.size_bytes} {s.crc} {s.entries}" for s in manifest.files.values()]
    content = ("\n".join(lines) + "\n").encode()
    return content + b"crc %d\n" % crc32c(content)


def _parse_manifest(content: bytes) -> _Manifest:
    body, marker, crc = content.rpartition(b"crc ")
    found = _Manifest(UUID(int=0), {}, {}, {})
    try:
        if not marker or int(crc) != crc32c(body):
            raise ValueError("its CRC does not match")
        for line in body.decode().splitlines():
            kind, *values = line.split(" ")
            if kind == "topic":
                found.topic_id = uuid_from_text(values[0])
            elif kind == "position":
                found.positions[int(values[0])] = int(values[1])
            elif kind == "epoch":
                found.epochs[int(values[0])] = int(values[1])
            elif kind == "file":
                state = FlatFileState(values[0], int(values[1]), int(values[2]), int(values[3]))
                number, topic, partition, _ = state.name.split(".")
                found.files[int(number), uuid_from_text(topic), int(partition)] = state
    except (ValueError, IndexError) as error:
        raise CorruptMessageError(f"the manifest is damaged: {error}") from error
    return found
