"""Recovery of a quorum that lost its majority for good: new voters, written into the log of one
controller that is left. For `quorum recover`; the node of the directory does not run meanwhile.

A majority decides what is committed, so one log alone cannot tell. What the lost voters committed
beyond its end is lost, and what it holds beyond the last commit comes true. Of several logs the one
with the greatest (epoch, end offset) is the safest, as in an election (Raft §5.4.1).

The new voters are appended in an epoch of their own, `RECOVERY_EPOCHS` beyond every known one. So
nodes that saw later elections follow, and a lost voter that returns with its old disk is fenced: it
cannot overrule the recovered log. Kafka has no such tool (KIP-1347 discusses one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from commitlog.disk.files import Directory
from commitlog.segment.names import log_name
from quorum.raft.config import RECOVERY_EPOCHS
from quorum.raft.effects import ElectionState, LeaderChange
from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import CONTROLLER_LISTENER, ReplicaKey, VoterSet
from quorum.replica.damaged_start import find_batch, segment_bases
from quorum.replica.log_checks import check_continuation
from quorum.replica.metadata_log import METADATA_PARTITION, MetadataLogConfig, ReplicatedLog
from quorum.replica.quorum_state import QUORUM_STATE_FILE, QuorumStateStore
from quorum.replica.voters_record import note
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader, list_snapshots
from tidemark.errors import ConfigError, CorruptMessageError, StorageError
from tidemark.records import decode_control_records
from tidemark.records.header import (
    HEADER_BYTES,
    BatchHeader,
    claimed_size,
    read_header,
    verify_crc,
)


@dataclass(slots=True, frozen=True)
class LogState:
    """The metadata log of one directory, as far as it is whole."""

    path: str
    last_epoch: int
    end_offset: int
    election: ElectionState
    kraft_version: int
    voters: VoterSet | None
    """The newest voters; None for static ones."""
    damage: str = ""
    """The reason why the log ends where it does; empty if nothing follows."""

    @property
    def position(self) -> tuple[int, int]:
        """The greater, the more recent, as votes compare logs."""
        return self.last_epoch, self.end_offset


def read_state(
    directory: Directory, listener_names: Sequence[str] = (CONTROLLER_LISTENER,)
) -> LogState:
    """Reads the log in `directory`/__cluster_metadata-0 and writes nothing. Raises StorageError if
    there is none.
    """
    name = str(METADATA_PARTITION)
    if not directory.exists(name):
        raise StorageError(f"{directory.path} has no {name}: no metadata log was ever here")
    return _LogReader(directory.subdirectory(name), tuple(listener_names)).read()


class _LogReader:
    """Reads the newest whole checkpoint, and the batches after it."""

    def __init__(self, directory: Directory, listener_names: tuple[str, ...]) -> None:
        self._directory = directory
        self._names = listener_names
        self._history = VoterHistory()
        self._last_epoch = self._end_offset = 0

    def read(self) -> LogState:
        self._load_checkpoint()
        damage = ""
        try:
            for header, raw in self._batches():
                self._add(header, raw)
        except CorruptMessageError as error:
            damage = str(error)
        return LogState(
            self._directory.path,
            self._last_epoch,
            self._end_offset,
            QuorumStateStore(self._directory).read(),
            self._history.kraft_version,
            self._history.voters,
            damage,
        )

    def _load_checkpoint(self) -> None:
        for snapshot_id in reversed(list_snapshots(self._directory)):
            try:
                reader = FileSnapshotReader(self._directory, snapshot_id)
                reader.verify()
            except CorruptMessageError:
                continue
            self._begin_at(snapshot_id, reader)
            return

    def _begin_at(self, snapshot_id: SnapshotId, reader: FileSnapshotReader) -> None:
        self._last_epoch, self._end_offset = snapshot_id.epoch, snapshot_id.end_offset
        for message in reader.quorum:
            note(self._history, snapshot_id.end_offset - 1, message, self._names)

    def _batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        order = segment_bases(self._directory)
        for base, following in zip(order, [*order[1:], None], strict=True):
            if following is None or following > self._end_offset:
                yield from self._batches_of(log_name(base), self._first_position(base))

    def _first_position(self, base: int) -> int:
        """Position in a segment from which on it is read: the checkpoint holds what is before."""
        begin = SnapshotId(self._end_offset, self._last_epoch)
        if base >= begin.end_offset:
            return 0
        return find_batch(self._directory.read(log_name(base)), begin) or 0

    def _batches_of(self, name: str, position: int) -> Iterator[tuple[BatchHeader, bytes]]:
        file = self._directory.open_read_only(name)
        try:
            size = file.size
            while position < size:
                head = file.pread(HEADER_BYTES, position)
                length = claimed_size(head) if len(head) == HEADER_BYTES else size
                if not HEADER_BYTES <= length <= size - position:
                    raise CorruptMessageError(f"{name} is torn at byte {position}")
                raw = file.pread(length, position)
                header = read_header(raw)
                verify_crc(raw, 0, header)
                yield header, raw
                position += length
        finally:
            file.close()

    def _add(self, header: BatchHeader, raw: bytes) -> None:
        if header.next_offset <= self._end_offset:
            return
        check_continuation(raw, self._end_offset, self._last_epoch, header.partition_leader_epoch)
        if header.is_control:
            for record in decode_control_records(raw):
                note(self._history, record.offset, record.message, self._names)
        self._last_epoch, self._end_offset = header.partition_leader_epoch, header.next_offset


def check_most_recent(chosen: LogState, others: Iterable[LogState]) -> None:
    """Raises ConfigError if one of the others has a more recent log, and names the best."""
    best = max([chosen, *others], key=lambda state: state.position)
    if best.position > chosen.position:
        raise ConfigError(
            f"{best.path} has a more recent log (epoch {best.last_epoch}, end offset "
            f"{best.end_offset}) than {chosen.path} (epoch {chosen.last_epoch}, end offset "
            f"{chosen.end_offset}): recover that one. If it is a broker's, put a copy of "
            "its __cluster_metadata-0 in the place of this controller's first, but keep this "
            "controller's quorum-state"
        )


def epoch_after(states: Iterable[LogState]) -> int:
    """The epoch of a recovery that knows these logs."""
    return RECOVERY_EPOCHS + max(max(s.last_epoch, s.election.epoch) for s in states)


def recover(
    directory: Directory,
    config: MetadataLogConfig,
    state: LogState,
    key: ReplicaKey,
    voters: VoterSet,
    epoch: int,
    now_ms: int,
) -> None:
    """Makes `voters` the voters of the log of replica `key`, which was read as `state`.

    A crash in between leaves the old voters in force; the recovery is then repeated. Raises
    ConfigError for voters without this replica, StorageError and FatalError.
    """
    if not voters.is_voter(key):
        raise ConfigError(f"{key} is none of the new voters {voters}: its log would have no leader")
    inner = directory.subdirectory(str(METADATA_PARTITION))
    if inner.exists(QUORUM_STATE_FILE) and state.election.epoch < state.last_epoch:
        # the log came from another node: the replica must not take its later epochs for damage
        QuorumStateStore(inner).write(ElectionState(state.last_epoch))
    log = ReplicatedLog(inner, config, now_ms)
    try:
        if (log.last_epoch, log.end_offset) != state.position:
            raise StorageError(
                f"{state.path} was read up to {state.position} (epoch, end offset), but opens with "
                f"{(log.last_epoch, log.end_offset)}: look at it with `tidemark dump-log`"
            )
        node_id = key.replica_id
        log.quorum_state.write(ElectionState(epoch, node_id, key))
        log.append_leader_change(LeaderChange(node_id, epoch, voters.ids, (node_id,)), now_ms)
        log.append_voters(voters, epoch, now_ms)
        log.bounds.found_again(log.end_offset)  # the operator gives up the rest
    finally:
        log.close()  # syncs it
