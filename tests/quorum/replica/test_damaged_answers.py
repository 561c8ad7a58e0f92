"""Every single flipped bit of a fetch answer: nothing is lost, no process ends, and the follower
has the records soon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum.raft import messages as m
from quorum.replica import codec
from quorum.replica.sealing import is_intact, sealed
from tests.transcripts.cluster import RaftCluster
from tidemark.v1 import raft_pb2

VICTIM = 2


class Damaging(RaftCluster):
    """A cluster whose next answer with records to one follower has a flipped bit."""

    def __init__(self, *, with_checksum=True, only_records=False):
        self.bit = None
        self.with_checksum, self.only_records = with_checksum, only_records
        self.damaged = 0
        super().__init__(seed=3)

    def send_response(self, source, target_id, correlation_id, incarnation, response):
        if target_id == VICTIM and isinstance(response, m.FetchResponse) and response.records:
            response = self._damage(response)
        super().send_response(source, target_id, correlation_id, incarnation, response)

    def _damage(self, response):
        if not self.with_checksum:
            response = replace(response, checksum=None)
        bit, self.bit = self.bit, None
        if bit is None:
            return response
        if self.only_records:
            self.damaged += 1
            return replace(response, records=flipped(response.records, bit))
        message = codec.fetch_response_to_proto(response).SerializeToString()
        try:
            found = codec.fetch_response_from_proto(
                raft_pb2.QuorumFetchResponse.FromString(flipped(message, bit))
            )
        except Exception:  # no message of this kind: a failed call, and no answer
            return response
        self.damaged += 1
        return found

    def follow_up(self, leader, number):
        """Appends a record whose answer is damaged, and runs until all have committed it."""
        self.append(leader, b"key=%d" % number)
        self.run_until_equal()
        self.lines.clear()


def flipped(data, bit):
    bit %= 8 * len(data)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def size_bits(cluster, leader):
    """The size of an answer with one record, in bits."""
    records = cluster.nodes[leader].log.read(cluster.nodes[leader].log.end_offset - 1, 1)
    header = cluster.nodes[leader].replica.state.header()
    answer = sealed(m.FetchResponse(header, 1 << 20), records)
    return 8 * codec.fetch_response_to_proto(answer).ByteSize(), 8 * len(records)


def run_all(cluster):
    """Damages each bit in turn; returns how many answers were refused by the victim."""
    leader = cluster.run_until_leader()
    assert leader != VICTIM
    cluster.follow_up(leader, 0)
    bits = size_bits(cluster, leader)[cluster.only_records]
    epoch = cluster.nodes[leader].replica.epoch
    for bit in range(bits):
        cluster.bit = bit
        cluster.follow_up(leader, bit)
        assert cluster.bit is None
    assert cluster.nodes[leader].replica.epoch == epoch, "nobody had to be elected"
    assert {n.incarnation for n in cluster.nodes.values()} == {1}
    return bits, cluster.nodes[VICTIM].replica.remote_faults


def test_every_flipped_bit_of_an_answer_is_refused_or_harmless():
    cluster = Damaging()
    bits, faults = run_all(cluster)
    assert cluster.damaged > bits * 0.8
    assert cluster.damaged * 0.85 < faults <= cluster.damaged


def test_records_of_an_older_leader_are_checked_without_a_checksum():
    cluster = Damaging(with_checksum=False, only_records=True)
    bits, faults = run_all(cluster)
    assert cluster.damaged == bits == faults


@pytest.mark.parametrize("bit", range(8 * 16))
def test_the_first_record_of_an_epoch_is_damaged(bit):
    """Its epoch differs from the one before in any case: offset, length and epoch, bit by bit."""
    cluster = Damaging(only_records=True)
    cluster.bit = bit
    cluster.run_until_leader()
    cluster.run_until_equal()
    assert cluster.damaged == 1
    assert cluster.nodes[VICTIM].replica.remote_faults == 1


def test_a_checksum_covers_every_field():
    header = m.Header(0, 1, 5, None)
    answer = sealed(m.FetchResponse(header, 7, 3), b"records")
    assert is_intact(answer)
    for change in (
        {"header": replace(header, epoch=6)},
        {"header": replace(header, leader_id=2)},
        {"high_watermark": 8},
        {"high_watermark": None},
        {"log_start_offset": 4},
        {"diverging_epoch": (1, 2)},
        {"records": b"record"},
        {"records": b""},
    ):
        assert not is_intact(replace(answer, **change)), change
    assert is_intact(m.FetchResponse(header, 7)), "an older leader sends none"
