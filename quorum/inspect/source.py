"""Reads an image from a checkpoint file, a metadata log directory, or a live cluster.

Strictly read-only: no file is opened for writing, no lock is taken, nothing is recovered. A live
controller sees a reader that is no replica (id -1), which leaves no trace.

A directory is read as its newest whole checkpoint plus the log after it, even while a node writes
there. The end of a log on disk may not be committed yet. Of a live cluster, only records below the
high watermark are read. Source: KIP-630, KIP-631.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from commitlog.disk.files import Directory
from commitlog.disk.os_files import OsDirectory
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.inspect.tree import MetadataView
from snapshot import FileSnapshotReader, SnapshotId, list_snapshots, parse_name, write_piece
from snapshot.values import decode_values
from tidemark.errors import (
    ApiError,
    ConfigError,
    CorruptMessageError,
    NotControllerError,
    StorageError,
    raise_for,
)
from tidemark.records import (
    BatchHeader,
    KRaftVersion,
    LeaderChange,
    Voters,
    decode_batch,
    decode_control_records,
)
from tidemark.records.header import HEADER_BYTES, OVERHEAD_BYTES, claimed_size, read_header
from tidemark.types import METADATA_TOPIC, uuid_to_text

PARTITION_DIRECTORY = f"{METADATA_TOPIC}-0"
LOG_SUFFIX = ".log"
_FETCH_BYTES_MAX = 8 << 20
_ATTEMPTS_MAX = 5
_CALL_TIMEOUT_S = 30.0


Progress = Callable[[Iterator[bytes], int], Iterator[bytes]]
"""Yields the batches of a checkpoint, and may show the progress.

Takes the batches and their total size in bytes.
"""


def _unshown(batches: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
    return batches


class _Replayer:
    """Applies batches in order up to `as_of` (inclusive; None: all)."""

    def __init__(self, as_of: int | None) -> None:
        self._as_of = as_of
        self._voters_in_log = False
        self.image: MetadataImage = EMPTY_IMAGE
        self.quorum: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        return self._as_of is not None and self.image.offset >= self._as_of

    def load(self, snapshot_id: SnapshotId, batches: Iterator[bytes]) -> None:
        """Loads a checkpoint from its beginning."""
        delta = MetadataDelta(EMPTY_IMAGE)
        for raw in batches:
            header = read_header(raw)
            if header.is_control:
                self._control(header, raw)
                continue
            for value in decode_values(raw):
                delta.replay_value(value)
        self.image = delta.apply(snapshot_id.end_offset - 1, snapshot_id.epoch)
        self.quorum["snapshot"] = snapshot_id.name

    def add(self, raw: bytes) -> None:
        """Applies the next batch of the log; skips records that the image already contains."""
        header = read_header(raw)
        if header.last_offset <= self.image.offset:
            return
        if header.base_offset > self.image.offset + 1:
            raise StorageError(
                f"offsets {self.image.offset + 1} to {header.base_offset - 1} are missing: the log "
                "does not continue its checkpoint"
            )
        last = header.last_offset if self._as_of is None else min(header.last_offset, self._as_of)
        epoch = header.partition_leader_epoch
        if header.is_control:
            self._control(header, raw)
            self.image = MetadataDelta(self.image).apply(last, epoch)
            return
        values = [record.value or b"" for record in decode_batch(raw) if record.offset <= last]
        self.image = _applied(self.image, values, last, epoch)

    def _control(self, header: BatchHeader, raw: bytes) -> None:
        for record in decode_control_records(raw):
            message = record.message
            if isinstance(message, LeaderChange):
                self.quorum["leaderId"] = message.leader_id
                self.quorum["leaderEpoch"] = header.partition_leader_epoch
                if not self._voters_in_log:
                    self.quorum["voters"] = [{"id": v.voter_id} for v in message.voters]
            elif isinstance(message, KRaftVersion):
                self.quorum["kraftVersion"] = message.kraft_version
            elif isinstance(message, Voters):
                self._voters_in_log = True
                self.quorum["voters"] = [_voter(voter) for voter in message.voters]


def _voter(voter: Any) -> dict[str, Any]:
    return {
        "id": voter.voter_id,
        "directoryId": uuid_to_text(voter.voter_directory_id),
        "endpoints": [f"{e.name}://{e.host}:{e.port}" for e in voter.endpoints],
    }


def _applied(image: MetadataImage, values: list[bytes], offset: int, epoch: int) -> MetadataImage:
    delta = MetadataDelta(image)
    for value in values:
        delta.replay_value(value)
    return delta.apply(offset, epoch)


def load(source: str, as_of: int | None = None, progress: Progress = _unshown) -> MetadataView:
    """Loads the metadata of `source`.

    `source` is a path to a checkpoint, a `__cluster_metadata-0` directory or a log directory with
    one, or host:port of nodes. `as_of` is the offset of the last record to apply. `progress` sees
    the batches of a checkpoint file.

    Raises ConfigError for an offset or source that does not exist, CorruptMessageError,
    StorageError, NetworkError.
    """
    path = Path(source)
    if path.is_file():
        return _of_checkpoint(path, as_of, progress)
    if path.is_dir():
        return _of_directory(path, as_of, progress)
    if "/" in source or ":" not in source:
        raise ConfigError(f"{source!r} is no file, no directory and no host:port")
    return _of_cluster(source, as_of)


def _view(
    replayer: _Replayer, source: str, facts: dict[str, Any], notes: list[str]
) -> MetadataView:
    quorum = {"offset": replayer.image.offset, "epoch": replayer.image.epoch}
    quorum |= replayer.quorum | facts | {"source": source}
    return MetadataView(replayer.image, quorum, tuple(notes))


# --- files --------------------------------------------------------------------------------------


def _of_checkpoint(path: Path, as_of: int | None, progress: Progress) -> MetadataView:
    snapshot_id = parse_name(path.name)
    if snapshot_id is None:
        raise ConfigError(
            f"{path.name} is no checkpoint (20 digits, '-', 10 digits, '.checkpoint'); for a log "
            "name its directory"
        )
    last = snapshot_id.end_offset - 1
    if as_of is not None and as_of != last:
        raise ConfigError(
            f"{path.name} is the state at offset {last} only; --as-of needs the log's directory"
        )
    directory = OsDirectory(path.parent, create=False)
    FileSnapshotReader(directory, snapshot_id, name=path.name).verify()
    replayer = _Replayer(None)
    replayer.load(snapshot_id, progress(_batches(directory, path.name), path.stat().st_size))
    return _view(replayer, str(path), {}, [])


def _of_directory(path: Path, as_of: int | None, progress: Progress) -> MetadataView:
    if (path / PARTITION_DIRECTORY).is_dir():
        path = path / PARTITION_DIRECTORY
    directory = OsDirectory(path, create=False)
    for attempt in range(_ATTEMPTS_MAX):
        names = directory.list()
        try:
            return _replay_directory(directory, str(path), as_of, progress)
        except StorageError:
            # A live node may have deleted files meanwhile: list the directory again.
            if attempt + 1 == _ATTEMPTS_MAX or directory.list() == names:
                raise
    raise StorageError(f"{path} changes faster than it can be read")


def _replay_directory(
    directory: Directory, path: str, as_of: int | None, progress: Progress
) -> MetadataView:
    notes: list[str] = []
    replayer = _Replayer(as_of)
    logs = [name for name in directory.list() if _base_offset(name) is not None]
    snapshots = list_snapshots(directory)
    if not logs and not snapshots:
        raise ConfigError(f"there is neither a checkpoint nor a log in {path}")
    for snapshot_id in reversed(snapshots):
        if as_of is not None and snapshot_id.end_offset - 1 > as_of:
            continue
        try:
            reader = FileSnapshotReader(directory, snapshot_id)
            reader.verify()
        except CorruptMessageError as error:
            notes.append(f"not used: {error}")
            continue
        name = snapshot_id.name if directory.exists(snapshot_id.name) else _long(snapshot_id)
        replayer.load(snapshot_id, progress(_batches(directory, name), directory.size_of(name)))
        break
    first = _base_offset(logs[0]) if logs else None
    if first is not None and first > replayer.image.offset + 1:
        least = min((s.end_offset for s in snapshots), default=first)
        raise ConfigError(
            f"{path} holds no state before offset {least - 1} (its log begins at {first})"
        )
    end_offset = _replay_logs(directory, logs, replayer, notes)
    if as_of is not None and replayer.image.offset < as_of:
        raise ConfigError(f"the last record in {path} has offset {end_offset - 1}")
    facts = {"logStartOffset": first, "logEndOffset": end_offset} if logs else {}
    return _view(replayer, path, facts, notes)


def _replay_logs(
    directory: Directory, logs: list[str], replayer: _Replayer, notes: list[str]
) -> int:
    """Replays the logs; returns the end offset that was reached."""
    for index, name in enumerate(logs):
        following = _base_offset(logs[index + 1]) if index + 1 < len(logs) else None
        if following is not None and following <= replayer.image.offset + 1:
            continue  # the checkpoint covers the whole segment
        try:
            for raw in _batches(directory, name, torn_end=True):
                replayer.add(raw)
                if replayer.done:
                    return replayer.image.end_offset
        except CorruptMessageError as error:
            notes.append(f"the log is read up to offset {replayer.image.offset}: {error}")
            break
    return replayer.image.end_offset


def _base_offset(name: str) -> int | None:
    stem = name.removesuffix(LOG_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdigit() else None


def _long(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:020d}.checkpoint"


def _batches(directory: Directory, name: str, *, torn_end: bool = False) -> Iterator[bytes]:
    """Yields the raw batches of a file, one in memory at a time.

    With `torn_end`, a torn end ends a log that is being written; otherwise it raises
    CorruptMessageError.
    """
    file = directory.open_read_only(name)
    try:
        position, size = 0, file.size
        while position < size:
            prefix = file.pread(OVERHEAD_BYTES, position)
            length = claimed_size(prefix) if len(prefix) == OVERHEAD_BYTES else None
            if length is None or length > size - position:
                if torn_end:
                    return
                raise CorruptMessageError(f"{directory.path}/{name} is torn at byte {position}")
            if length < HEADER_BYTES:
                raise CorruptMessageError(f"{directory.path}/{name}: no batch at byte {position}")
            yield file.pread(length, position)
            position += length
    finally:
        file.close()


# --- a live cluster -----------------------------------------------------------------------------


def _of_cluster(bootstrap: str, as_of: int | None) -> MetadataView:
    """Reads from the active controller, also if that changes meanwhile."""
    from tidemark.client.sync import Admin

    with Admin(bootstrap) as admin:
        cluster_id = admin.describe_cluster().cluster_id
        for attempt in range(_ATTEMPTS_MAX):
            quorum = admin.describe_quorum()
            addresses = {node.node_id: node.endpoint.address for node in quorum.nodes}
            leader = None if quorum.leader_id is None else addresses.get(quorum.leader_id)
            if leader is None:
                raise NotControllerError("the quorum has no leader at the moment: try again")
            reader = _LeaderReader(leader, cluster_id, quorum.leader_epoch, as_of)
            # Voters in the log take precedence; a checkpoint of static voters does not contain
            # them.
            voters = {"voters": [{"id": voter.replica_id} for voter in quorum.voters]}
            try:
                view = reader.read()
                return view if as_of is not None else replace(view, quorum=voters | view.quorum)
            except ApiError as error:
                if not error.retriable or attempt + 1 == _ATTEMPTS_MAX:
                    raise
    raise NotControllerError("the leadership moves too often to read from it")


class _LeaderReader:
    """Fetches checkpoint and log from one leader in one epoch."""

    def __init__(self, address: str, cluster_id: str, epoch: int, as_of: int | None) -> None:
        self._address = address
        self._cluster_id = cluster_id
        self._epoch = epoch
        self._as_of = as_of
        self._replayer = _Replayer(as_of)

    def read(self) -> MetadataView:
        import grpc

        from tidemark.client.connections import error_of_status
        from tidemark.v1.raft_pb2_grpc import RaftStub
        from tidemark.wire.network import blocking_channel

        try:
            with blocking_channel(self._address) as channel:
                return self._read(RaftStub(channel))
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            details = error.details() or ""
            raise error_of_status(error.code(), details, self._address) from None

    def _read(self, stub: Any) -> MetadataView:
        end: int | None = None
        while True:
            answer = self._fetch(stub)
            if answer.HasField("snapshot_id"):
                snapshot_id = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
                self._load_snapshot(stub, snapshot_id)
                continue
            if answer.HasField("diverging_epoch"):
                raise NotControllerError(f"{self._address} has changed its log meanwhile")
            if end is None:
                end = self._end(answer.high_watermark)
            before = self._replayer.image.offset
            for raw in _split(answer.records):
                if self._replayer.done or read_header(raw).base_offset >= end:
                    break
                self._replayer.add(raw)
            if self._replayer.done or self._replayer.image.end_offset >= end:
                facts = {
                    "highWatermark": answer.high_watermark,
                    "logStartOffset": answer.log_start_offset,
                    "leaderId": answer.leader_id,
                    "leaderEpoch": answer.leader_epoch,
                }
                return _view(self._replayer, self._address, facts, [])
            if self._replayer.image.offset == before:
                raise StorageError(f"{self._address} gives no record after offset {before}")

    def _end(self, high_watermark: int) -> int:
        if high_watermark < 0:
            raise NotControllerError(f"{self._address} does not know its high watermark yet")
        if self._as_of is not None and self._as_of >= high_watermark:
            raise ConfigError(f"the last committed record has offset {high_watermark - 1}")
        return high_watermark

    def _fetch(self, stub: Any) -> Any:
        from tidemark.v1 import raft_pb2

        image = self._replayer.image
        request = raft_pb2.QuorumFetchRequest(
            cluster_id=self._cluster_id,
            replica_id=-1,
            current_leader_epoch=self._epoch,
            fetch_offset=image.end_offset,
            last_fetched_epoch=image.epoch if image.end_offset else 0,
            high_watermark=-1,
            max_wait_ms=0,
            max_bytes=_FETCH_BYTES_MAX,
        )
        answer = stub.Fetch(request, timeout=_CALL_TIMEOUT_S)
        raise_for(answer.error_code)
        return answer

    def _load_snapshot(self, stub: Any, snapshot_id: SnapshotId) -> None:
        from tidemark.v1 import raft_pb2

        if self._as_of is not None and self._as_of < snapshot_id.end_offset - 1:
            raise ConfigError(
                f"the active controller has nothing before offset {snapshot_id.end_offset - 1} any "
                "more; an older checkpoint in a controller's directory may"
            )
        with tempfile.TemporaryDirectory(prefix="tidemark-metadata-") as temporary:
            directory = OsDirectory(temporary)
            position, size = 0, 1
            while position < size:
                request = raft_pb2.FetchSnapshotRequest(
                    cluster_id=self._cluster_id,
                    replica_id=-1,
                    current_leader_epoch=self._epoch,
                    snapshot_id=raft_pb2.SnapshotId(
                        end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch
                    ),
                    position=position,
                    max_bytes=_FETCH_BYTES_MAX,
                )
                answer = stub.FetchSnapshot(request, timeout=_CALL_TIMEOUT_S)
                raise_for(answer.error_code)
                if not answer.unaligned_records:
                    raise StorageError(f"{snapshot_id.name} has no byte at {position}")
                write_piece(directory, snapshot_id, position, answer.unaligned_records)
                size = answer.size
                position += len(answer.unaligned_records)
            name = snapshot_id.part_name
            FileSnapshotReader(directory, snapshot_id, name=name).verify()
            self._replayer.load(snapshot_id, _batches(directory, name))


def _split(records: bytes) -> Iterator[bytes]:
    from tidemark.records import iter_batches

    for position, header in iter_batches(records):
        yield records[position : position + header.size_bytes]
