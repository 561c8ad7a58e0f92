"""Work for the crash test of snapshots: append, checkpoint, clean, and a fetched checkpoint."""

from __future__ import annotations

from commitlog.disk.files import Directory
from quorum.raft.effects import LeaderChange
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from snapshot import SnapshotId, SnapshotWriter
from snapshot.transfer import write_piece
from tests.crash.harness import Ack

CONFIG = MetadataLogConfig(segment_bytes=400, retention_bytes=600)
NOW_MS = 1_700_000_000_000
ROUNDS = 3
BATCHES_PER_ROUND = 3
FETCHED = SnapshotId(1000, 7)


def value(number: int) -> bytes:
    return b"value %d of the metadata" % number


def batch(number: int) -> list[bytes]:
    """Returns batch `number`: two values."""
    return [value(2 * number), value(2 * number + 1)]


def open_log(directory: Directory) -> ReplicatedLog:
    return ReplicatedLog(directory, CONFIG, NOW_MS)


def checkpoint_and_clean(directory: Directory, ack: Ack) -> None:
    """Three times: appends, syncs, writes a checkpoint of everything, and cleans."""
    log = open_log(directory)
    log.append_leader_change(LeaderChange(1, 1, (1,), (1,)), NOW_MS)
    number = 0
    for _ in range(ROUNDS):
        for _ in range(BATCHES_PER_ROUND):
            log.append_values(batch(number), 1, NOW_MS)
            number += 1
        log.flush()
        ack(f"append {number}")
        end_offset = log.end_offset
        log.update_high_watermark(end_offset)
        snapshot_id = log.snapshot_id_for(end_offset, end_offset)
        assert snapshot_id is not None
        writer = log.snapshot_writer(snapshot_id, NOW_MS)
        writer.append(value(n) for n in range(2 * number))
        writer.freeze()
        log.snapshot_frozen(snapshot_id)
        ack(f"snapshot {snapshot_id.end_offset}")
        log.clean(NOW_MS)


def install_fetched(directory: Directory, ack: Ack) -> None:
    """Installs a checkpoint of the leader in a log with records of its own, and appends after
    it.
    """
    log = open_log(directory)
    log.append_leader_change(LeaderChange(1, 1, (1,), (1,)), NOW_MS)
    for number in range(6):
        log.append_values(batch(number), 1, NOW_MS)
    log.flush()
    ack("append 6")
    source = directory.subdirectory("leader")
    writer = SnapshotWriter(source, FETCHED, NOW_MS)
    writer.append([b"all of it"])
    writer.freeze()
    data = source.read(FETCHED.name)
    write_piece(log.directory, FETCHED, 0, data[:100])
    write_piece(log.directory, FETCHED, 100, data[100:])
    log.freeze_fetched_snapshot(FETCHED)
    ack("frozen")
    log.start_at_fetched_snapshot(FETCHED, NOW_MS)
    log.append_values([b"behind it"], 7, NOW_MS)
    log.flush()
    ack("behind")
