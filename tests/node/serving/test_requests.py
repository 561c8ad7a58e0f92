"""Limits of requests: a wrong or large one is refused by name, and none takes the loop for long."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from node.serving import fetching
from node.serving.listeners import _limits
from node.serving.requests import REQUEST_BYTES_MAX, check_count, parse, parsed
from tests.node.cluster import TOPIC, Cluster
from tests.node.replication.test_replication import scenario
from tests.node.serving.test_consumer_session import Consumer, create
from tidemark import wire
from tidemark.config import parse_server_config
from tidemark.errors import ErrorCode, InvalidRequestError
from tidemark.v1 import log_pb2
from tidemark.wire import PartitionProduceData, ProduceRequest
from tidemark.wire.produce import PARTITIONS_MAX

ONE_TOO_MANY = PARTITIONS_MAX + 1


def fetch_of(partitions: int) -> bytes:
    request = log_pb2.FetchRequest(partitions=[log_pb2.FetchRequest.FetchPartition(topic="t")])
    one = request.SerializeToString()
    return one * partitions


def test_a_request_is_parsed_up_to_its_limits() -> None:
    assert len(parse(log_pb2.FetchRequest, fetch_of(PARTITIONS_MAX)).partitions) == PARTITIONS_MAX
    with pytest.raises(InvalidRequestError, match="100001 partitions in one request: 100000"):
        parse(log_pb2.FetchRequest, fetch_of(ONE_TOO_MANY))
    with pytest.raises(InvalidRequestError, match=f"{REQUEST_BYTES_MAX} are allowed"):
        parse(log_pb2.FetchRequest, bytes(REQUEST_BYTES_MAX + 1))
    with pytest.raises(InvalidRequestError, match="no FetchRequest"):
        parse(log_pb2.FetchRequest, b"\xff\xff\xff")
    with pytest.raises(InvalidRequestError):
        check_count(ONE_TOO_MANY)


def test_a_request_without_partitions_has_no_limit_of_them() -> None:
    topics = [f"t{number}" for number in range(10)]
    assert parse(log_pb2.MetadataRequest, _bytes(log_pb2.MetadataRequest(topics=topics)))


def _bytes(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


class Aborted(Exception):
    """The end of a call with a status."""


class Call:
    """The context of a call."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise Aborted(code, text)


def test_a_unary_call_that_can_not_be_parsed_is_an_invalid_argument() -> None:
    async def method(request: log_pb2.ListOffsetsRequest, context: Any) -> int:
        return len(request.partitions)

    call = parsed(method, log_pb2.ListOffsetsRequest)
    with pytest.raises(Aborted) as caught:
        asyncio.run(call(b"\xff\xff\xff", Call()))
    assert caught.value.args[0] is grpc.StatusCode.INVALID_ARGUMENT
    good = log_pb2.ListOffsetsRequest()
    good.partitions.add(topic="t")
    assert asyncio.run(call(good.SerializeToString(), Call())) == 1


def test_a_produce_of_too_many_partitions_is_refused_while_it_is_read() -> None:
    one = wire.encode_produce_request(ProduceRequest(1, 1, [PartitionProduceData("t", 0)]))
    head = wire.encode_produce_request(ProduceRequest(1, 1))
    body = one[len(head) :]
    taken = wire.decode_produce_request(head + body * PARTITIONS_MAX)
    assert len(taken.partition_data) == PARTITIONS_MAX
    with pytest.raises(InvalidRequestError, match="more than 100000 partitions"):
        wire.decode_produce_request(head + body * ONE_TOO_MANY)


def test_a_pass_over_very_many_partitions_is_done_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TURN_PARTITIONS", 10)

    async def test(cluster: Cluster) -> None:
        create(cluster, 45)
        consumer = Consumer(cluster)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        found = await consumer.begin(*range(45), max_wait_ms=0)
        counting.cancel()
        assert len(found) == 45
        assert {data.error_code for data in found} == {ErrorCode.NONE}
        assert {data.topic for data in found} == {TOPIC}
        assert 4 <= turns < 45

    scenario(test, nodes=(1,))


@pytest.mark.parametrize(
    ("listeners", "limits"),
    [
        ("A://:1", {"A": 7}),
        ("A://:1,B://:2", {"A": None, "B": 7}),
    ],
)
def test_connections_are_limited_except_on_a_listener_that_brokers_have_to_themselves(
    listeners: str, limits: dict[str, int | None]
) -> None:
    config = parse_server_config(
        {
            "process.roles": "broker",
            "node.id": "4",
            "log.dirs": "/data",
            "listeners": listeners,
            "inter.broker.listener.name": "A",
            "controller.quorum.voters": "1@127.0.0.1:9",
            "max.connections": "7",
        }
    )
    found = {
        name: _limits(config, name).get("grpc.max_allowed_incoming_connections") for name in limits
    }
    assert found == limits
