"""PlanRead on nodes: records of each plan are those of a fetch, whoever leads; leases, errors."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.node.cluster import TOPIC, Node
from tests.node.serving.test_committed_histories import history_of
from tests.tiering.scenarios.table import A, B, Row, Table, row, rows_of, scenario
from tidemark.errors import ErrorCode
from tidemark.records import decode_arrow
from tidemark.spark.direct.batches import AbortedBatches
from tidemark.spark.direct.pieces import Aborted
from tidemark.v1 import log_pb2 as pb
from tiering.errors import RetriableRemoteStorageError
from tiering.reading import plans


async def ask(node: Node, **fields: Any) -> pb.PlanReadResponse:
    request = pb.PlanReadRequest(**{"topic": TOPIC, **fields})
    return await node.service.plan_read(request, None)  # type: ignore[arg-type]


def contents(table: Table, answer: pb.PlanReadResponse) -> list[tuple[Any, bytes]]:
    """Each piece with its bytes."""
    by_id = {one.id.bytes: one for one in table.remote_segments()}
    return [
        (
            piece,
            table.store.fetch_log_segment(
                by_id[piece.segment_id], piece.start_position, piece.end_position
            ),
        )
        for piece in answer.pieces
    ]


def rows_in(table: Table, answer: pb.PlanReadResponse) -> list[Row]:
    return [
        found
        for piece, content in contents(table, answer)
        for found in rows_of(content, piece.start_offset)
        if found[0] < piece.end_offset
    ]


def test_a_plan_has_the_records_of_the_leaders_own_lineage() -> None:
    """A copied [0, 1] of epoch 0. B lost msg 1, leads, and copies [1, 2] of epoch 1 (KIP-405)."""

    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0)
        await table.settle()
        table.log(B).flush()
        await table.append(A, 1)
        table.roll(A)
        await table.append(A, 2)
        await table.settle()
        await table.copy(A)
        answer = await ask(table.nodes[A], end_offset=3)
        assert rows_in(table, answer) == [row(0, 0), row(1, 0)]
        assert (answer.tail_offset, answer.not_direct) == (2, "")
        await table.stop(A)
        await table.stop(B, clean=False)
        table.start(B, remote_log_storage_system_enable="true")
        table.lead(B)
        table.roll(B)
        await table.append(B, 3, 4)
        table.change(isr=(B,))
        table.roll(B)
        await table.copy(B)
        own = [row(0, 0), row(1, 1, message=3), row(2, 1, message=4)]
        for start in range(3):
            answer = await ask(table.nodes[B], start_offset=start, end_offset=3)
            assert rows_in(table, answer) == own[start:]
            assert answer.tail_offset == 3

    scenario(test)


@pytest.mark.parametrize("seed", range(3))
def test_the_committed_records_of_every_plan_are_those_of_the_history(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions are aborted within a segment, over several, and above the tier."""
    monkeypatch.setattr(plans, "SPLIT_BYTES_MIN", 1)

    async def test(table: Table) -> None:
        table.begin(A)
        history = history_of(table.nodes[A], seed)
        history.fill(60)
        history.roll()
        history.write(None)
        await table.copy(A)
        stable, cold = history.stable, 0
        for start in range(0, stable, 3):
            answer = await ask(
                table.nodes[A],
                start_offset=start,
                end_offset=stable,
                split_bytes=300,
                isolation_level=1,
            )
            tail = answer.tail_offset
            one_by_one = [
                Aborted(one.producer_id, one.first_offset, one.last_offset)
                for one in answer.aborted
            ]
            found = []
            for piece, content in contents(table, answer):
                kept = AbortedBatches(one_by_one).removed(memoryview(content))
                batch = decode_arrow(
                    kept, min_offset=piece.start_offset, max_offset=piece.end_offset
                )
                values = [value.decode() for value in batch.column("value").to_pylist()]
                found += list(zip(batch.column("offset").to_pylist(), values, strict=True))
            assert found == history.expected(start, tail)
            cold = max(cold, tail)
        assert cold > stable // 2

    scenario(test)


def test_only_the_leader_plans_and_says_whose_topic_it_is() -> None:
    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0, 1)
        await table.settle()
        follower, leader = table.nodes[B], table.nodes[A]
        for fields in ({"end_offset": 1}, {"lease_id": "a", "lease_ms": 5, "lease_only": True}):
            assert (await ask(follower, **fields)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        other = await ask(leader, topic_id=UUID(int=7).bytes, end_offset=1)
        assert other.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
        assert (await ask(leader, topic="none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for wrong in (
            {"start_offset": 2, "end_offset": 1},
            {"start_offset": -1},
            {"end_offset": 1, "split_bytes": -1},
            {"end_offset": 1, "segment_ids": [b"short"]},
            {"end_offset": 1, "lease_id": "a" * 200},
        ):
            assert (await ask(leader, **wrong)).error_code == ErrorCode.INVALID_REQUEST, wrong
        empty = await ask(leader, topic_id=table.topic_id.bytes, end_offset=2)
        assert (empty.error_code, len(empty.pieces), empty.tail_offset) == (0, 0, 0)

    scenario(test)


def test_a_lease_outlives_its_leader_and_renews_urls_below_the_log_start() -> None:
    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0, 1)
        table.roll(A)
        await table.append(A, 2)
        await table.settle()
        await table.copy(A)
        held = await ask(table.nodes[A], end_offset=2, lease_id="job", lease_ms=60_000)
        assert (held.lease_ms, len(held.pieces)) == (60_000, 1)
        await table.stop(A)
        table.change(isr=(B,))
        table.lead(B)
        await table.settle()
        table.log(B).increment_log_start_offset(2)
        await table.copy(B)
        assert len(table.remote_segments()) == 1
        leader = table.nodes[B]
        assert (await ask(leader, end_offset=2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        (piece,) = held.pieces
        ids = [piece.segment_id, UUID(int=9).bytes]
        again = await ask(leader, segment_ids=ids)
        assert [(one.url, one.segment_id) for one in again.pieces] == [(piece.url, ids[0])]
        ended = await ask(leader, end_offset=2, lease_id="job", lease_only=True)
        assert (ended.error_code, ended.lease_ms, len(ended.pieces)) == (0, 0, 0)
        await table.copy(B)
        assert not table.remote_segments()
        assert not (await ask(leader, segment_ids=ids)).pieces

    scenario(test)


def test_a_topic_without_a_tier_and_a_store_that_fails_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(table: Table) -> None:
        table.begin(A)
        await table.append(A, 0)
        table.roll(A)
        await table.append(A, 1)
        await table.copy(A)

        def fail(*_: object) -> str:
            raise RetriableRemoteStorageError("away")

        monkeypatch.setattr(table.store, "locate", fail)
        failed = await ask(table.nodes[A], end_offset=2)
        assert failed.error_code not in (0, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert not failed.not_direct
        monkeypatch.setattr(table.store, "read_leases", fail)
        failed = await ask(table.nodes[A], end_offset=2, lease_id="a", lease_ms=5)
        assert failed.error_code and not failed.lease_ms and not failed.pieces
        await asyncio.sleep(0)

    scenario(test)

    async def without(table: Table) -> None:
        table.start(A, remote_log_storage_system_enable="true")
        table.create_topic((A,), A)
        await table.append(A, 0)
        answer = await ask(table.nodes[A], end_offset=1, lease_id="a", lease_ms=5)
        assert answer.not_direct == f"topic {TOPIC} has no tier on its leader"
        assert (answer.error_code, answer.lease_ms) == (0, 0)

    scenario(without)
