"""ListOffsets of a consumer: nodes that hang, and partitions that are refused, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.consuming.harness import A, B
from tests.client.consuming.nodes import NODE_1, Nodes, fill, run
from tidemark.client import AsyncConsumer
from tidemark.errors import ErrorCode, UnknownServerError


def test_a_hung_leader_is_left_by_those_who_ask_for_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes, batches=2, each=3)
        assert await consumer.end_offsets([A, B]) == {A: 6, B: 6}
        nodes.hung.add(NODE_1)
        nodes.leaders = {A: 2, B: 2}
        began = asyncio.get_running_loop().time()
        assert await consumer.end_offsets([A, B]) == {A: 6, B: 6}
        assert asyncio.get_running_loop().time() - began < 12, "not request.timeout.ms"

    run(scenario, monkeypatch)


def test_an_offset_that_is_refused_for_a_while_is_asked_for_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes, batches=1, each=3)
        asked: list[list[int]] = []
        whole = nodes._offsets

        def refuse(request: Any) -> Any:
            answer = whole(request)
            asked.append([item.partition_index for item in request.partitions])
            for item in answer.partitions:
                if item.partition_index == 0 and len(asked) < 4:
                    item.error_code = ErrorCode.OFFSET_NOT_AVAILABLE
            return answer

        monkeypatch.setattr(nodes, "_offsets", refuse)
        found = await consumer.offsets_for_times({A: 0, B: 0})
        assert {partition: answer.offset for partition, answer in found.items() if answer} == {
            A: 0,
            B: 0,
        }
        assert asked == [[0, 1], [0], [0], [0]]

    run(scenario, monkeypatch)


def test_a_code_that_nobody_knows_is_an_error_that_names_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        whole = nodes._offsets

        def refuse(request: Any) -> Any:
            answer = whole(request)
            answer.partitions[0].error_code = 12345
            return answer

        monkeypatch.setattr(nodes, "_offsets", refuse)
        with pytest.raises(UnknownServerError, match="t-0"):
            await consumer.end_offsets([A, B])

    run(scenario, monkeypatch)
