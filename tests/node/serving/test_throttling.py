"""Clients above their quota are answered with the time to wait, and delayed if they do not."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from node.quotas.clients import ClientQuotas
from node.serving import throttling
from node.serving.throttling import Throttling
from quorum.image.records import client_quota_record
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tests.node.fakes import FakeContext
from tests.node.replication.test_replication import scenario
from tidemark import wire
from tidemark.quotas.entities import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from tidemark.v1 import log_pb2 as pb
from tidemark.wire.channel import CLIENT_ID_KEY
from tidemark.wire.exchange import answer_in_order

RECORDS = batch("x" * 1_000)


class Aborted(Exception):
    """The call was ended by the node."""


class Call(FakeContext):
    """A gRPC call of a client, by one connection."""

    def __init__(self, client_id: str = "etl", peer: str = "ipv4:1:1") -> None:
        super().__init__()
        self._metadata = ((CLIENT_ID_KEY, client_id),)
        self._peer = peer
        self.requests: deque[bytes] = deque()
        self.answers: list[bytes] = []

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: Any, details: str) -> None:
        raise Aborted(details)

    async def read(self) -> Any:
        return self.requests.popleft() if self.requests else await asyncio.Event().wait()

    async def write(self, answer: bytes) -> None:
        self.answers.append(answer)


def now() -> float:
    return round(asyncio.get_running_loop().time() * 1000) / 1000


def throttled(node: Node, **timer: Any) -> Any:
    """Gives the node quotas, as a broker has them."""
    quotas = ClientQuotas()
    publish = node.on_metadata_update

    def on_metadata_update(delta: Any, image: Any) -> None:
        publish(delta, image)
        quotas.on_metadata_update(delta, image)

    node.on_metadata_update = on_metadata_update  # type: ignore[method-assign]
    node.service._throttling = Throttling(quotas, **timer)
    return node.service


def limit(cluster: Cluster, key: str, value: float | None) -> None:
    cluster.publish(client_quota_record(QuotaEntity(None, "etl"), key, value))


def producing(acks: int = 1) -> bytes:
    data = [wire.PartitionProduceData(TOPIC, 0, RECORDS)]
    return wire.encode_produce_request(wire.ProduceRequest(acks, 30_000, data))


async def produce(service: Any, call: Call, acks: int = 1) -> pb.ProduceResponse:
    answer = pb.ProduceResponse.FromString(await service.produce(producing(acks), call))
    assert [r.error_code for r in answer.responses] == [0], "throttled is not dropped"
    return answer


async def fetch(service: Any, call: Call, offset: int = 0, **fields: Any) -> wire.FetchResponse:
    request = pb.FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, **fields})
    request.partitions.add(
        topic=TOPIC,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    return wire.decode_fetch_response(await service.fetch(request, call))


def alone(play: Any) -> None:
    async def main(cluster: Cluster) -> None:
        cluster.create_topic((1,))
        await play(cluster, throttled(cluster.nodes[1]))

    scenario(main)


def test_a_produce_above_the_quota_is_appended_and_names_the_time_to_wait() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        size = len(producing())
        limit(cluster, PRODUCER_BYTE_RATE, size)
        times = [(await produce(service, Call(peer=str(i)))).throttle_time_ms for i in range(12)]
        assert times == [0] * 10 + [1_000, 2_000]
        assert cluster.nodes[1].hosted().log.log_end_offset == 12

    alone(main)


def test_an_answer_that_waits_for_replicas_has_the_throttle_time_as_well() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.create_topic()
        service = throttled(cluster.nodes[1])
        limit(cluster, PRODUCER_BYTE_RATE, len(producing(-1)) / 10)
        assert (await produce(service, Call(), acks=-1)).throttle_time_ms == 0
        await asyncio.sleep(0.1)
        answer = await produce(service, Call(), acks=-1)
        assert 9_000 < answer.throttle_time_ms < 10_000
        assert answer.responses[0].base_offset == 1

    scenario(main)


def test_a_client_that_does_not_wait_is_delayed_and_no_faster() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        call, size = Call(), len(producing())
        limit(cluster, PRODUCER_BYTE_RATE, size)
        begun, done = now(), []
        for _ in range(20):
            await produce(service, call)
            done.append(now() - begun)
        assert done[:11] == [0] * 11, "the burst, and the request that is owed for"
        assert done[11:] == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8, 9], abs=0.02)
        before = now()
        await produce(service, Call("other", "another connection"))
        assert now() == before, "a client without a quota is not delayed"

    alone(main)


def test_requests_of_an_open_call_are_not_read_while_the_client_is_muted() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        call, size = Call(), len(producing())
        limit(cluster, PRODUCER_BYTE_RATE, size)
        call.requests.extend(producing() for _ in range(40))
        serving = asyncio.ensure_future(service.produce_stream(None, call))
        await asyncio.sleep(0.5)
        assert len(call.answers) == 11
        await asyncio.sleep(5)
        assert len(call.answers) == 16
        assert len(call.requests) == 40 - 17, "one is held"
        serving.cancel()

    alone(main)


def test_a_fetch_above_the_quota_is_answered_at_once_without_partitions() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        for _ in range(3):
            await cluster.nodes[1].produce("x" * 1_000, acks=1)
        limit(cluster, CONSUMER_BYTE_RATE, 100)
        whole = await fetch(service, Call(), max_bytes=1 << 20)
        assert len(whole.responses[0].payload) == len(RECORDS), "one batch comes whole"
        assert whole.throttle_time_ms == pytest.approx((len(RECORDS) - 1_000) * 10, abs=1)
        before = now()
        empty = await fetch(service, Call(peer="another connection"), 1)
        assert (empty.responses, empty.throttle_time_ms) == ([], whole.throttle_time_ms)
        assert now() == before
        await asyncio.sleep(whole.throttle_time_ms / 1000 + 0.01)
        assert (await fetch(service, Call(), 1)).responses[0].next_offset == 2

    alone(main)


def test_a_fetch_asks_for_no_more_than_the_quota_allows_and_does_not_wait_for_more() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        for _ in range(10):
            await cluster.nodes[1].produce("x" * 1_000, acks=1)
        limit(cluster, CONSUMER_BYTE_RATE, len(RECORDS) / 5)  # two batches in ten windows
        before = now()
        answer = await fetch(service, Call(), min_bytes=5 * len(RECORDS), max_wait_ms=30_000)
        assert answer.responses[0].next_offset == 2
        assert answer.throttle_time_ms == 0
        assert now() == before

    alone(main)


def test_a_removed_quota_ends_the_wait_of_later_requests() -> None:
    async def main(cluster: Cluster, service: Any) -> None:
        call = Call()
        limit(cluster, PRODUCER_BYTE_RATE, 1)
        assert (await produce(service, call)).throttle_time_ms > 1_000_000
        limit(cluster, PRODUCER_BYTE_RATE, None)
        before = now()
        assert (await produce(service, call)).throttle_time_ms == 0
        assert now() == before

    alone(main)


def test_request_time_is_charged_without_waits_and_for_small_calls_too() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.create_topic((1,))
        ticks = iter(range(10_000))
        service = throttled(cluster.nodes[1], timer_s=lambda: float(next(ticks)))  # 1 s each turn
        limit(cluster, REQUEST_PERCENTAGE, 20)
        assert (await fetch(service, Call(), max_wait_ms=60_000)).throttle_time_ms == 0
        assert now() >= 60, "a long poll is two turns"
        call = service._charged(service.metadata)
        before = now()
        await call(pb.MetadataRequest(), Call())
        assert now() == before
        await call(pb.MetadataRequest(), Call())
        assert now() == pytest.approx(before + 1, abs=0.01), "a window at most"

    scenario(main)


def test_a_client_with_too_many_requests_that_wait_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttling, "_WAITING_MAX", 2)

    async def main(cluster: Cluster, service: Any) -> None:
        limit(cluster, PRODUCER_BYTE_RATE, 1)
        await produce(service, Call())
        waiting = [asyncio.ensure_future(produce(service, Call())) for _ in range(3)]
        await asyncio.sleep(1)
        assert [task.done() for task in waiting] == [False, False, True]
        assert isinstance(waiting[2].exception(), Aborted)
        for task in waiting[:2]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not service._throttling._waiting

    alone(main)


def test_a_call_that_ends_gives_up_a_charged_request_that_waits_for_replicas() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.create_topic()
        cluster.cut |= {(2, 1), (3, 1)}
        service = throttled(cluster.nodes[1])
        limit(cluster, PRODUCER_BYTE_RATE, 1 << 30)
        waiting = asyncio.ensure_future(service.produce(producing(-1), Call()))
        await asyncio.sleep(0.1)
        assert service._memory.used_bytes > 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0)
        assert service._memory.used_bytes == 0

    scenario(main)


def test_an_open_call_without_a_pause_takes_requests_as_before() -> None:
    async def main(cluster: Cluster) -> None:
        call = Call()
        call.requests.extend([b"a", b"b"])
        serving = asyncio.ensure_future(answer_in_order(call, lambda request: request))
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert call.answers == [b"a", b"b"]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    scenario(main)
