"""Counts of requests by API, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2, group_pb2, log_pb2
from tidemark.wire.metering import BOUNDS_S, RequestMeters, error_codes, metered


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, spent_s: float) -> None:
        self.now_s += spent_s


class Context:
    """A call of the client "etl 1"."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("tidemark-client-id", "etl%201"), ("authorization", "Bearer of-nobody"))

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_answer_at_once_is_in_the_bucket_of_its_time(clock: Clock) -> None:
    meter = RequestMeters(clock_s=clock).produce
    for spent_s in (0.0005, 0.5, 0.50001, 11.0):
        timing = meter.begin(Context())
        clock.passes(spent_s)
        meter.end(timing)
    found = dict(zip((*BOUNDS_S, None), meter.counts, strict=True))
    assert {bound for bound, n in found.items() if n} == {0.001, 0.5, 1.0, None}
    assert meter.spent_s == pytest.approx(12.00051)
    assert meter.remote_s == meter.queue_s == 0


def test_the_wait_for_replicas_is_remote_and_that_for_memory_is_not(clock: Clock) -> None:
    meter = RequestMeters(clock_s=clock).produce
    timing = meter.begin(Context())
    clock.passes(0.75)  # in the queue for memory
    timing.queued_until(clock())
    clock.passes(0.25)  # the append
    timing.waits_since_s = clock()
    clock.passes(2.0)
    meter.end(timing)
    assert (meter.spent_s, meter.queue_s, meter.remote_s) == (3.0, 0.75, 2.0)
    assert sum(meter.counts) == 1


def test_a_slow_request_is_told_with_its_parts_and_no_secret(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    meter = RequestMeters(slow_ms=1_000, clock_s=clock).produce
    for spent_s in (1.0, 1.5):
        timing = meter.begin(Context())
        timing.queue_s = 0.25
        clock.passes(spent_s)
        meter.end(timing)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "slow request: Produce of client 'etl 1' at ipv4:10.0.0.7:4711 took 1500 ms"
        " (queue 250, local 1250, remote 0)"
    )


def test_a_fetch_is_not_slow_because_there_was_nothing_new(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    meter = RequestMeters(slow_ms=1_000, clock_s=clock).consumer_fetch
    with meter.fetching(Context()) as timing:
        clock.passes(30)
        timing.remote_s += 30
    assert not caplog.records
    with pytest.raises(ValueError), meter.fetching(Context()) as timing:
        clock.passes(31)
        timing.remote_s += 29
        raise ValueError
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert sum(meter.counts) == 2


def test_by_default_no_request_is_slow(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    meter = RequestMeters(clock_s=clock).produce
    timing = meter.begin(Context())
    clock.passes(3_600)
    meter.end(timing)
    assert not caplog.records


def test_errors_of_an_answer_and_of_its_parts_are_found() -> None:
    refused = admin_pb2.CreateTopicsResponse(error_code=41)
    assert list(error_codes(refused)) == [41]
    fetched = group_pb2.OffsetFetchResponse()
    found = log_pb2.ListOffsetsResponse()
    found.partitions.add(error_code=3)
    found.partitions.add()
    found.partitions.add(error_code=3)
    assert list(error_codes(found)) == [3, 3]
    assert list(error_codes(fetched)) == []
    assert list(error_codes(b"bytes")) == []


def test_errors_of_partitions_are_counted_by_code() -> None:
    meter = RequestMeters().produce
    answers = [
        log_pb2.ListOffsetsResponse.PartitionResponse(error_code=code) for code in (0, 3, 3, 6)
    ]
    meter.fail_each(answers)
    assert meter.errors == {3: 2, 6: 1}


class Server:
    """A gRPC server that keeps handlers."""

    def __init__(self) -> None:
        self.generic: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.generic += handlers

    def call(self, path: str, request: Any) -> Any:
        class Details:
            method = path
            invocation_metadata = ()

        handler = self.generic[0].service(Details())
        return asyncio.run(handler.unary_unary(request, Context()))


def serving(clock: Clock, meters: RequestMeters, service: str, method: Any) -> Server:
    server = Server()
    handler = grpc.unary_unary_rpc_method_handler(method)
    generic = grpc.method_handlers_generic_handler(service, {"Fetch": handler})
    metered(server, meters).add_generic_rpc_handlers((generic,))  # type: ignore[arg-type]
    return server


def test_each_unary_call_is_counted_with_its_time_and_its_error(clock: Clock) -> None:
    meters = RequestMeters(clock_s=clock)

    async def method(request: Any, context: Any) -> Any:
        clock.passes(1.5)
        if request == b"fails":
            raise ValueError
        return admin_pb2.CreateTopicsResponse(error_code=ErrorCode.NOT_CONTROLLER.value)

    server = serving(clock, meters, "tidemark.v1.Raft", method)
    for _ in range(2):
        server.call("/tidemark.v1.Raft/Fetch", b"")
    with pytest.raises(ValueError):
        server.call("/tidemark.v1.Raft/Fetch", b"fails")
    meter = meters.by_api["RaftFetch"]
    assert (sum(meter.counts), meter.spent_s) == (3, 4.5)
    assert meter.errors == {ErrorCode.NOT_CONTROLLER: 2, ErrorCode.UNKNOWN_SERVER_ERROR: 1}


@pytest.mark.parametrize("service", ["grpc.health.v1.Health", "tidemark.v1.Log"])
def test_probes_and_methods_with_meters_of_their_own_are_not_counted_again(
    clock: Clock, service: str
) -> None:
    meters = RequestMeters(clock_s=clock)

    async def method(request: Any, context: Any) -> Any:
        clock.passes(1.5)
        return b""

    serving(clock, meters, service, method).call(f"/{service}/Fetch", b"")
    assert all(not any(meter.counts) for meter in meters.by_api.values())
