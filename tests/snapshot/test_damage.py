"""A checkpoint with any byte wrong is recognised. The one before is used, or it is fetched again
from where the transfer stopped.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import ElectionState, LeaderChange, RequestFailed, ResponseReceived, Tick
from quorum.raft.replica import Replica
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.bootstrap import write_bootstrap_checkpoint
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from snapshot import FileSnapshotReader, SnapshotId
from tidemark.errors import CorruptMessageError, ErrorCode, FatalError
from tidemark.types import Endpoint

VOTERS = VoterSet(Voter(ReplicaKey(n, UUID(int=n)), Endpoint("h", n)) for n in (2, 3))
CONFIG = MetadataLogConfig(segment_bytes=300, retention_bytes=-1, retention_ms=-1)


def log_with_two_checkpoints():
    """Returns a log with voters, two checkpoints, and all its records."""
    disk = MemoryDirectory(seed=3)
    write_bootstrap_checkpoint(disk, VOTERS)
    directory = disk.subdirectory("__cluster_metadata-0")
    log = ReplicatedLog(directory, CONFIG, 0)
    log.append_leader_change(LeaderChange(2, 1, (2, 3), (2, 3), VOTERS), 1000)
    ids = []
    for number in range(6):
        log.append_values([b"value %d" % number] * 4, 1, 1000)
        if number in (2, 5):
            log.flush()
            log.update_high_watermark(log.end_offset)
            snapshot_id = log.snapshot_id_for(log.end_offset, log.end_offset)
            writer = log.snapshot_writer(snapshot_id, 1000)
            writer.append([b"state %d" % number])
            writer.freeze()
            log.snapshot_frozen(snapshot_id)
            ids.append(snapshot_id)
    log.close()
    return directory, ids


def regions(data):
    """Returns (name, first byte, last byte + 1) of the parts of a checkpoint file."""
    found, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        part = ["header, KRaftVersion, Voters", "records", "footer"][min(len(found) // 4, 2)]
        for field, begin, end in [
            ("base offset and length", 0, 12),
            ("epoch and magic", 12, 17),
            ("CRC", 17, 21),
            ("content", 21, length),
        ]:
            found.append((f"{part}: {field}", position + begin, position + end))
        position += length
    return found


REGIONS = [
    name
    for name, _, _ in regions(
        log_with_two_checkpoints()[0].read(log_with_two_checkpoints()[1][1].name)
    )
]


@pytest.mark.parametrize("region", REGIONS)
def test_a_wrong_bit_anywhere_is_found_and_the_checkpoint_before_is_used(region):
    directory, (older, newer) = log_with_two_checkpoints()
    data = directory.read(newer.name)
    _, begin, end = next(r for r in regions(data) if r[0] == region)
    for position in range(begin, end):
        directory.flip_bit(newer.name, position, position % 8)
        with pytest.raises(CorruptMessageError):
            FileSnapshotReader(directory, newer).verify()
        with pytest.raises(CorruptMessageError):
            FileSnapshotReader(directory, newer).verify_checksums()
        directory.flip_bit(newer.name, position, position % 8)
    directory.flip_bit(newer.name, begin, 3)
    log = ReplicatedLog(directory, CONFIG, 0)
    assert log.latest_snapshot == older
    assert log.voters == VOTERS
    assert log.end_offset == newer.end_offset
    log.close()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_torn_checkpoint_is_not_used(share):
    directory, (older, newer) = log_with_two_checkpoints()
    directory.cut(newer.name, int(directory.size_of(newer.name) * share))
    log = ReplicatedLog(directory, CONFIG, 0)
    assert log.latest_snapshot == older
    log.close()


def test_without_any_whole_checkpoint_the_log_must_begin_at_0():
    directory, (older, newer) = log_with_two_checkpoints()
    for broken in (older, newer):
        directory.flip_bit(broken.name, 30)
    log = ReplicatedLog(directory, CONFIG, 0)
    assert log.latest_snapshot is None
    assert log.start_offset == 0
    log.close()


def test_a_log_whose_beginning_only_a_broken_checkpoint_covers_is_refused():
    directory, (older, newer) = log_with_two_checkpoints()
    tight = MetadataLogConfig(segment_bytes=300, retention_bytes=1, retention_ms=-1)
    log = ReplicatedLog(directory, tight, 0)
    assert log.clean(0)
    log.close()
    assert not directory.exists(older.name)
    directory.flip_bit(newer.name, 30)
    with pytest.raises(FatalError, match="fetch everything anew"):
        ReplicatedLog(directory, tight, 0)


class Download:
    """A follower that is to fetch a checkpoint of 250 bytes, in pieces of 100."""

    def __init__(self):
        log = ReplicatedLog(MemoryDirectory(seed=1), CONFIG, 0)
        endpoints = {n: Endpoint("h", n) for n in (1, 2)}
        config = ReplicaConfig(
            "c", ReplicaKey(1), VoterSet.static(endpoints), endpoints[1],
            fetch_snapshot_max_bytes=100,
        )  # fmt: skip
        self.now_ms = 0
        self.replica = Replica(config, log, ElectionState(1, 2), random.Random(1))
        self.effects = self.replica.start(0)
        self.header = m.Header(ErrorCode.NONE, 2, 1, endpoints[2])
        self.snapshot = SnapshotId(10, 1)

    def step(self, event):
        self.now_ms += 30
        self.effects = self.replica.step(event, self.now_ms)
        if not self.effects.sends:
            self.now_ms += 30
            self.effects = self.replica.step(Tick(), self.now_ms)

    @property
    def sent(self):
        return self.effects.sends[0]

    def answer(self, response):
        self.step(ResponseReceived(self.sent.correlation_id, response))

    def piece(self, position, data):
        self.answer(m.FetchSnapshotResponse(self.header, self.snapshot, 250, position, data))


def test_a_transfer_goes_on_where_it_stopped_when_an_answer_is_lost():
    download = Download()
    download.answer(m.FetchResponse(download.header, 10, 10, snapshot_id=download.snapshot))
    assert download.sent.request.position == 0
    download.piece(0, bytes(100))
    assert download.sent.request.position == 100
    download.step(RequestFailed(download.sent.correlation_id))
    asked = [s.request for s in download.effects.sends]
    assert [type(r).__name__ for r in asked] in (["FetchSnapshotRequest"], ["FetchRequest"])
    while not isinstance(download.sent.request, m.FetchSnapshotRequest):
        download.step(RequestFailed(download.sent.correlation_id))
    assert download.sent.request.position == 100
