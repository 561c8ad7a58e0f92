"""Requests of the ISR keeper: how many proposals share one, and what a failure leaves, in virtual
time.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from node.partition.core import IsrProposal
from node.replication.isr import PARTITIONS_PER_REQUEST_MAX, IsrKeeper
from tests.node.cluster import Cluster
from tests.node.replication.test_replication import scenario
from tests.virtual_time import run
from tidemark.errors import ErrorCode, RequestTimedOutError
from tidemark.types import TopicIdPartition
from tidemark.v1 import controller_pb2 as pb
from tidemark.v1 import metadata_pb2 as records_pb

TOPIC = UUID(int=7)


class Controller:
    """Records the partitions of each request; the first `failing` requests get no answer."""

    def __init__(self, failing: int = 0) -> None:
        self.failing = failing
        self.requests: list[list[int]] = []

    async def call(self, method: str, request: Any, timeout_ms: int) -> Any:
        assert method == "AlterPartition"
        self.requests.append([data.partition_index for data in request.partitions])
        await asyncio.sleep(0.01)
        if len(self.requests) <= self.failing:
            raise RequestTimedOutError("no active controller answered")
        return pb.AlterPartitionResponse()


def keeper(controller: Controller, pending: dict[int, IsrProposal]) -> IsrKeeper:
    """Returns a keeper of partitions that have these proposals under way and need no answer."""

    def find(partition: Any) -> Any:
        core = SimpleNamespace(pending=pending.get(partition.partition))
        return SimpleNamespace(core=core, topic_id=None)

    parts: Any = SimpleNamespace(id=1, epoch=5), SimpleNamespace(find=find), controller, None
    return IsrKeeper(*parts)


def proposals(count: int) -> dict[int, IsrProposal]:
    return {i: IsrProposal(TopicIdPartition(TOPIC, "t", i), 0, 0, ()) for i in range(count)}


def sent(count: int, failing: int = 0) -> list[list[int]]:
    """Returns the partitions of each request when so many are proposed at once."""

    async def main() -> list[list[int]]:
        controller, pending = Controller(failing), proposals(count)
        kept = keeper(controller, pending)
        for proposal in pending.values():
            kept.submit(proposal)
        task = asyncio.ensure_future(kept.run())
        await asyncio.sleep(60)
        task.cancel()
        return controller.requests

    return run(main())


def test_few_proposals_share_one_request() -> None:
    assert sent(5) == [[0, 1, 2, 3, 4]]


def test_a_broker_that_joins_very_many_isrs_asks_in_several_requests() -> None:
    requests = sent(2_500)
    assert list(map(len, requests)) == [1_000, 1_000, 500]
    assert [index for request in requests for index in request] == list(range(2_500))


def test_a_request_that_failed_is_repeated_after_the_others() -> None:
    requests = sent(2_500, failing=1)
    assert len(requests[0]) == PARTITIONS_PER_REQUEST_MAX
    assert sorted(index for request in requests[1:] for index in request) == list(range(2_500))
    assert requests[1][0] == PARTITIONS_PER_REQUEST_MAX


def recover(refusals: int, *, silent: bool) -> None:
    """A leader of an unclean election ends its recovery although the controller refuses it."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        asked: list[Any] = []

        async def alter(request: Any) -> Any:
            (item,) = request.partitions
            asked.append(item)
            code = ErrorCode.INELIGIBLE_REPLICA if len(asked) <= refusals else ErrorCode.NONE
            now = cluster.partition
            response = pb.AlterPartitionResponse()
            answer = response.partitions.add(
                topic_id=item.topic_id,
                error_code=int(code),
                leader_id=1,
                leader_epoch=now.leader_epoch,
                partition_epoch=now.partition_epoch + 1,
            )
            answer.isr.extend(member.broker_id for member in item.new_isr)
            return response

        cluster.controller.handlers["AlterPartition"] = alter
        if silent:
            cluster.cut.add((2, 1))
        change = records_pb.PartitionChangeRecord(
            partition_id=0, topic_id=cluster.topic_id.bytes, leader=1, leader_recovery_state=1
        )
        change.isr.ids.append(1)
        cluster.publish(records_pb.MetadataRecord(partition_change=change))
        core = cluster.nodes[1].hosted().core
        assert core.recovering
        for _ in range(3):
            await asyncio.sleep(2)
            if silent:
                cluster.nodes[1].isr.shrink()
        await asyncio.sleep(2)
        assert not core.recovering
        recoveries = [item for item in asked if [m.broker_id for m in item.new_isr] == [1]]
        assert len(recoveries) == refusals + 1
        assert silent or core.isr == {1, 2}, "then others join"

    scenario(test, nodes=(1, 2))


def test_the_end_of_a_recovery_is_proposed_again_where_it_was_refused() -> None:
    recover(1, silent=False)


def test_the_end_of_a_recovery_is_proposed_again_where_no_follower_fetches() -> None:
    recover(2, silent=True)
