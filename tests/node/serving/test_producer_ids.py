"""Producer ids come from the controller's blocks, and only once the broker is registered."""

from __future__ import annotations

import asyncio

import pytest

from node.membership.identity import BrokerIdentity
from node.serving.producer_ids import ProducerIdManager
from tidemark.errors import BrokerNotAvailableError
from tidemark.v1 import controller_pb2 as pb


class Blocks:
    """A controller that allocates blocks of three ids."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, method: str, request: object, timeout_ms: int) -> object:
        assert method == "AllocateProducerIds"
        self.asked += 1
        return pb.AllocateProducerIdsResponse(
            producer_id_start=3 * (self.asked - 1), producer_id_len=3
        )


def test_before_registration_the_answer_is_retriable_and_nobody_is_asked() -> None:
    blocks = Blocks()
    manager = ProducerIdManager(BrokerIdentity(4), blocks)
    with pytest.raises(BrokerNotAvailableError) as refused:
        asyncio.run(manager.generate())
    assert refused.value.retriable
    assert blocks.asked == 0


def test_a_block_is_used_up_before_the_next_is_asked_for() -> None:
    async def seven() -> list[int]:
        return [await manager.generate() for _ in range(7)]

    blocks = Blocks()
    manager = ProducerIdManager(BrokerIdentity(4, epoch=1), blocks)
    assert asyncio.run(seven()) == list(range(7))
    assert blocks.asked == 3
