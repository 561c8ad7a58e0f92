"""Hostile requests to every method of proto/, at the listeners of real processes.

A stranger gets nothing but UNAUTHENTICATED. A user who may do everything gets answers or statuses,
and so does a node that has gone mad. No handler fails unforeseen, no process ends, and memory stays
bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from socket import create_connection
from typing import Any

import grpc
import grpc.aio
import pytest

from quorum.access import rules
from tests.e2e.test_security import SECONDS, Secured, until
from tests.fuzzing import hostile
from tidemark.client import Producer
from tidemark.client.login import Login
from tidemark.client.models import NewTopic
from tidemark.config.security import client_security
from tidemark.wire.network import Channels
from tidemark.wire.rpcs import Rpc, every_rpc

REQUESTS = 40
AT_ONCE = 16
GROWTH_MIB_MAX = 400
LOGIN = "/tidemark.v1.Authentication/SaslAuthenticate"
BROKEN_WRITE = "Internal error from Core"
TOPICS = ("flights", "told-to-nobody")
GONE_CLIENT = "ERROR grpc._cython.cygrpc: ExecuteBatchError raised in core"
STRANGER = {"security.protocol": "SSL"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Secured]:
    secured = Secured(tmp_path)
    try:
        secured.start(1)
        secured.start(2)
        with secured.admin(secured.by_certificate("admin"), "CERTS") as admin:
            until(lambda: len(admin.describe_cluster().brokers) == 2)
            until(lambda: bool(admin.create_topics([NewTopic(t, 2, 2) for t in TOPICS])))
            admin.security.set_scram_password("admin", "of all")
        yield secured
    finally:
        secured.stop()


def peak_mib(secured: Secured) -> int:
    found = 0
    for process in secured.processes:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found += int(status.partition("VmHWM:")[2].split()[0]) >> 10
    return found


def is_of_nodes(rpc: Rpc) -> bool:
    row = rules.row_of(rpc.path)
    return row is not None and row.is_for_nodes


async def statuses(
    address: str, security: dict[str, str], rpcs: Sequence[Rpc], random: Random
) -> Counter[tuple[str, str, str]]:
    """The outcome of hostile requests: how often a method ended with a status and its details."""
    found: Counter[tuple[str, str, str]] = Counter()
    settings = client_security(security)
    room = asyncio.Semaphore(AT_ONCE)
    async with Channels(settings).open(address) as channel:
        login = Login(settings, channel) if settings.uses_sasl else None

        async def send(rpc: Rpc, payloads: list[bytes]) -> None:
            async with room:
                metadata = () if login is None else await login.metadata()
                status = await outcome(channel, rpc, payloads, metadata)
                found[(rpc.path, *status)] += 1

        calls = [
            send(rpc, list(hostile(rpc.request, random, random.choice((1, 1, 3)))))
            for rpc in rpcs
            for _ in range(REQUESTS)
        ]
        random.shuffle(calls)
        await asyncio.gather(*calls)
    return found


async def outcome(channel: Any, rpc: Rpc, payloads: list[bytes], metadata: Any) -> tuple[str, str]:
    """Ends at the latest after a second: a long poll is cancelled."""
    call = channel.stream_stream(rpc.path, None, None)(
        _each(payloads if rpc.is_stream else payloads[:1]), metadata=metadata, timeout=1
    )
    try:
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass
    return (await call.code()).name, await call.details()


async def _each(payloads: list[bytes]) -> AsyncIterator[bytes]:
    for payload in payloads:
        yield payload


def unforeseen(found: Counter[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Handlers that raised what gRPC had to make a status of."""
    return sorted(one for one in found if one[1] == "UNKNOWN")


def send_garbage(address: str, random: Random) -> None:
    """Connections that speak no HTTP/2, or no TLS, or nothing at all."""
    host, _, port = address.partition(":")
    with ExitStack() as sockets:
        for size in (0, 1, 24, 1_000, 1 << 20) * 20:
            one = sockets.enter_context(create_connection((host, int(port)), SECONDS))
            one.settimeout(SECONDS)
            with suppress(OSError):  # the node closes it
                one.sendall(random.randbytes(size))


def test_hostile_requests_end_no_process_and_reach_no_handler_unforeseen(cluster: Secured) -> None:
    every = list(every_rpc())
    random = Random(20_261_125)
    users = cluster.at("USERS").partition(",")[0]
    stranger = STRANGER | {"ssl.truststore.location": str(cluster.ca)}
    before = peak_mib(cluster)
    for address in (users, cluster.controller):
        send_garbage(address, random)
    guarded = [rpc for rpc in every if rpc.path != LOGIN]
    found = asyncio.run(statuses(users, stranger, guarded, random))
    # Services of nodes are not there; a client whose write breaks may lose the status.
    refusals = {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert {code for _, code, text in found if text != BROKEN_WRITE} == refusals

    of_users = [rpc for rpc in every if not is_of_nodes(rpc)]
    found = asyncio.run(statuses(users, cluster.by_password("admin", "of all"), of_users, random))
    assert unforeseen(found) == []
    answered = {path for path, code, _ in found if code == "OK"}
    assert {rpc.path for rpc in of_users} - answered == set()
    with Producer(cluster.at("USERS"), security=cluster.by_password("admin", "of all")) as producer:
        assert producer.send(TOPICS[1], b"x", partition=0).result(SECONDS).offset >= 0
    assert peak_mib(cluster) - before < GROWTH_MIB_MAX

    node = cluster.by_certificate("node-2")
    of_nodes = [rpc for rpc in every if is_of_nodes(rpc)]
    for address in (cluster.controller, cluster.at("INTERNAL").partition(",")[0]):
        found = asyncio.run(statuses(address, node, of_nodes, random))
    assert unforeseen(found) == []
    assert [process.poll() for process in cluster.processes] == [None, None]
    assert peak_mib(cluster) - before < GROWTH_MIB_MAX
    logs = cluster.logs()
    assert logs.count("Traceback") == logs.count(GONE_CLIENT)
