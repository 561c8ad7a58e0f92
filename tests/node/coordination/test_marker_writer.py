"""A marker is written once, and answered when it is committed, whatever else a log is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.segment.producer_state import ProducerEntry
from node.coordination import marker_writer
from node.coordination.marker_writer import MarkerWriter
from node.partition.core import AckState
from node.partition.hosted import HostedPartition
from tests import virtual_time
from tidemark.errors import ErrorCode, InvalidRequestError
from tidemark.records.header import read_header
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

A = TopicPartition("a", 0)


class Leader:
    """The leader of a-0, whose high watermark is moved by the test. Producer 7 is in epoch 3."""

    def __init__(self) -> None:
        self.end_offset = self.high_watermark = 0
        self.lost = False
        self.appends = 0
        self.producers = {7: ProducerEntry(7, 3, 0, current_txn_first_offset=0)}
        core = SimpleNamespace(leader_epoch=1, check_leader=lambda: None, ack_state=self._ack_state)
        log = SimpleNamespace(producers=SimpleNamespace(producers=self.producers))
        self.hosted = HostedPartition(cast(Any, core), cast(Any, log), cast(Any, None))
        self._log = log
        self.grow(0)
        partitions = SimpleNamespace(get=lambda *_: self.hosted)
        clock = SimpleNamespace(wall_ms=lambda: 0)
        self.writer = MarkerWriter(
            cast(Any, partitions), cast(Any, self), cast(Any, None), cast(Any, clock)
        )

    def _ack_state(self, required: int, epoch: int) -> AckState:
        if self.lost:
            return AckState(True, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return AckState(required <= self.high_watermark, ErrorCode.NONE)

    def append(self, hosted: Any, batch: bytes, origin: Any) -> None:
        header = read_header(batch)
        self.producers[header.producer_id] = ProducerEntry(
            header.producer_id, header.producer_epoch, 0
        )
        self.appends += 1
        self.grow(1)

    def grow(self, records: int) -> None:
        self.end_offset += records
        self._log.log_end_offset = self.end_offset

    def commit(self, offset: int) -> None:
        self.high_watermark = offset
        self.hosted.answer_acks()

    async def write(self, producer_id: int = 7, epoch: int = 4) -> int:
        """The code for a commit."""
        request = pb.WriteTxnMarkersRequest()
        request.markers.add(
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=True,
            topics=[pb.TxnTopic(name="a", partitions=[0])],
        )
        answer = await self.writer.write(request)
        code: int = answer.markers[0].topics[0].partitions[0].error_code
        return code


def told(scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Leader())

    virtual_time.run(main())


def test_a_marker_is_answered_in_a_log_that_grows_faster_than_it_is_replicated() -> None:
    """The end of a busy log is never committed within the patience; that of the marker is."""

    async def scenario(leader: Leader) -> None:
        assert await leader.write() == ErrorCode.REQUEST_TIMED_OUT
        leader.grow(100)
        again = asyncio.ensure_future(leader.write())
        await asyncio.sleep(0.1)
        leader.commit(1)
        assert await again == ErrorCode.NONE
        assert leader.appends == 1

    told(scenario)


def test_a_marker_that_is_committed_between_two_requests_is_answered() -> None:
    async def scenario(leader: Leader) -> None:
        assert await leader.write() == ErrorCode.REQUEST_TIMED_OUT
        leader.grow(100)
        leader.commit(1)
        assert await leader.write() == ErrorCode.NONE
        assert leader.appends == 1

    told(scenario)


def test_a_marker_that_comes_again_and_again_waits_in_one_place() -> None:
    async def scenario(leader: Leader) -> None:
        for _ in range(20):
            assert await leader.write() == ErrorCode.REQUEST_TIMED_OUT
        assert len(leader.hosted.acks) == 1
        leader.lost = True
        leader.hosted.answer_acks()
        assert await leader.write() == ErrorCode.NOT_LEADER_OR_FOLLOWER

    told(scenario)


def test_markers_that_nobody_asks_for_again_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(leader: Leader) -> None:
        monkeypatch.setattr(marker_writer, "_REMEMBERED_MAX", 2)
        for producer_id in (7, 8, 9, 10):
            await leader.write(producer_id)
        assert len(leader.writer._commits) == 2
        leader.commit(leader.end_offset)
        for producer_id in (7, 8, 9, 10):
            assert await leader.write(producer_id) == ErrorCode.NONE
        assert not leader.writer._commits

    told(scenario)


def test_a_marker_of_an_earlier_coordinator_is_refused_also_where_it_is_not_needed() -> None:
    async def scenario(leader: Leader) -> None:
        leader.producers[7] = ProducerEntry(7, 4, coordinator_epoch=1)
        assert await leader.write() == ErrorCode.TRANSACTION_COORDINATOR_FENCED

    told(scenario)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (7, -1), (7, 2**15)])
def test_a_marker_of_nobody_is_refused(producer_id: int, epoch: int) -> None:
    async def scenario(leader: Leader) -> None:
        assert await leader.write(producer_id, epoch) == ErrorCode.INVALID_REQUEST
        assert leader.appends == 0

    told(scenario)


def test_a_request_has_a_bounded_number_of_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(leader: Leader) -> None:
        monkeypatch.setattr(marker_writer, "_MARKERS_MAX", 2)
        for count in (2, 3):
            topics = [pb.TxnTopic(name="a", partitions=range(count))]
            request = pb.WriteTxnMarkersRequest()
            request.markers.add(producer_id=-1, topics=topics)
            if count == 2:
                await leader.writer.write(request)
                continue
            with pytest.raises(InvalidRequestError, match="2 are allowed"):
                await leader.writer.write(request)

    told(scenario)
