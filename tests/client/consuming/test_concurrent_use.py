"""An AsyncConsumer that several tasks use at once: polls, seeks, closes and waits that overlap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.consuming.harness import A, B
from tests.client.consuming.nodes import NODE_1, NODE_2, Nodes, fill, run, slow_decoding
from tidemark.client import AsyncConsumer
from tidemark.client.errors import ClientClosedError
from tidemark.errors import NetworkError


def test_close_ends_a_wait_for_a_position_and_holds_up_no_other_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        nodes.hung |= {NODE_1, NODE_2}
        consumer.seek_to_end(A)
        waiting = asyncio.ensure_future(consumer.position(A))
        await asyncio.sleep(1)
        closed_at = asyncio.get_running_loop().time()
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await consumer.position(A)
        assert asyncio.get_running_loop().time() == closed_at

    run(scenario, monkeypatch)


def test_a_partition_given_up_ends_the_wait_for_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        nodes.hung |= {NODE_1, NODE_2}
        consumer.seek_to_end(A)
        waiting = asyncio.ensure_future(consumer.position(A))
        await asyncio.sleep(1)
        consumer.assign([B])
        with pytest.raises(ValueError, match="not assigned"):
            async with asyncio.timeout(5):
                await waiting

    run(scenario, monkeypatch)


@pytest.mark.parametrize("name", ["poll", "poll_arrow", "fetch_batches"])
def test_polls_that_do_not_wait_let_the_fetches_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes)
        poll = getattr(consumer, name)
        assert any([await poll(timeout_ms=0) for _ in range(1000)])

    run(scenario, monkeypatch)


def test_polls_that_overlap_share_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        slow_decoding(monkeypatch)
        consumer.assign([A])
        fill(nodes, batches=4, each=5)
        found: list[int] = []

        async def by_record() -> None:
            found.extend(record.offset for record in await consumer.poll(3_000, max_records=2))

        async def by_batch() -> None:
            for raw in await consumer.fetch_batches(3_000):
                found.extend(range(raw.first_offset, raw.next_offset))

        for after_s in (0.0, 0.3, 0.6, 0.9, 0.0, 0.5):
            polls = [asyncio.ensure_future(by_record())]
            await asyncio.sleep(after_s)
            polls += [asyncio.ensure_future(each()) for each in (by_record, by_batch, by_record)]
            await asyncio.gather(*polls)
        assert sorted(found) == list(range(20))

    run(scenario, monkeypatch)


def test_a_resumed_partition_wakes_the_poll_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        consumer.assign([A])
        fill(nodes, batches=1)
        await asyncio.sleep(1)
        consumer.pause(A)
        polled = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(1)
        consumer.resume(A)
        async with asyncio.timeout(1):
            assert len(await polled) == 3

    run(scenario, monkeypatch)


@pytest.mark.parametrize(
    ("offset", "epoch"), [(1 << 63, None), (0, 1 << 31)], ids=["offset", "epoch"]
)
def test_a_position_that_no_log_can_have_is_refused(
    offset: int, epoch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request could not be encoded, and every partition of its leader would fail."""

    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes)
        with pytest.raises(ValueError, match=r"64 bits|32 bits"):
            consumer.seek(A, offset, epoch)
        assert len(await consumer.poll(5_000)) > 0

    run(scenario, monkeypatch)


@pytest.mark.parametrize("bad", [(b"t", 0), ("t", "0"), ("t", -1), ("", 0), ("\ud800", 0)])
def test_what_is_no_partition_is_refused_and_changes_nothing(
    bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of all topics could not be asked for any more."""

    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes)
        with pytest.raises(ValueError, match="no partition"):
            consumer.assign([B, bad])
        assert consumer.assignment() == [A, B]
        assert len(await consumer.poll(5_000)) > 0

    run(scenario, monkeypatch)


def test_one_partition_that_trips_the_pump_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        metadata = consumer._metadata
        known = metadata.leader_epoch
        trips = 3

        def trip(partition: Any) -> int:
            nonlocal trips
            if partition == B and trips:
                trips -= 1
                raise RuntimeError("nobody foresaw this")
            return known(partition)

        monkeypatch.setattr(metadata, "leader_epoch", trip)
        fill(nodes)
        found: dict[int, list[int]] = {0: [], 1: []}
        began = asyncio.get_running_loop().time()
        while sum(map(len, found.values())) < 60:
            assert asyncio.get_running_loop().time() < began + 60
            try:
                for record in await consumer.poll(5_000):
                    found[record.partition].append(record.offset)
            except Exception as error:
                assert "nobody foresaw this" in str(error)
        assert found == {0: list(range(30)), 1: list(range(30))}
        assert not trips

    run(scenario, monkeypatch)


def test_nothing_is_under_way_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        nodes.hung |= {NODE_1, NODE_2}
        before = asyncio.all_tasks()
        asking = asyncio.ensure_future(consumer.end_offsets([A]))
        await asyncio.sleep(3)
        await consumer.close()
        with pytest.raises((ClientClosedError, NetworkError, asyncio.CancelledError)):
            await asking
        assert asyncio.all_tasks() == before

    run(scenario, monkeypatch)
