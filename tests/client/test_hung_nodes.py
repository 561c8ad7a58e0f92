"""A node that takes requests and answers nothing does not hold an administrator up, in virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.virtual_time import run
from tidemark.client.admin import AsyncAdmin
from tidemark.client.connections import Connections
from tidemark.errors import NetworkError, RequestTimedOutError, UnsupportedVersionError
from tidemark.v1 import admin_pb2

HUNG, GOOD = "127.0.0.1:1", "127.0.0.1:2"


class FakeConnections(Connections):
    """Nodes that hang, and nodes that take their time for an answer."""

    def __init__(self, hung: set[str], takes_s: float = 0.0) -> None:
        super().__init__(request_timeout_ms=30_000)
        self.hung = hung
        self.takes_s = takes_s
        self.asked: list[tuple[str, str]] = []

    async def call(
        self,
        address: str,
        path: str,
        request: Any,
        decode: Callable[[bytes], Any],
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        self.asked.append((address, path.rpartition("/")[2]))
        limit_s = (self.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        if address in self.hung:
            await asyncio.sleep(limit_s)
            raise RequestTimedOutError(f"{address}: DEADLINE_EXCEEDED")
        if path.endswith("Check"):
            raise UnsupportedVersionError("an older node without this service answers, too")
        await asyncio.sleep(self.takes_s)
        return admin_pb2.DescribeClusterResponse(cluster_id="c")


def admin(connections: FakeConnections, bootstrap: str, **settings: Any) -> AsyncAdmin:
    made = AsyncAdmin(bootstrap, random_seed=1, **settings)
    made._connections = connections
    return made


@pytest.mark.parametrize("bootstrap", [f"{HUNG},{GOOD}", f"{GOOD},{HUNG}"])
def test_the_next_bootstrap_server_is_asked_when_one_hangs(bootstrap: str) -> None:
    async def main() -> None:
        connections = FakeConnections({HUNG})
        client = admin(connections, bootstrap)
        for _ in range(4):
            assert (await client.describe_cluster()).cluster_id == "c"
        took_s = asyncio.get_running_loop().time()
        hung = connections.asked.count((HUNG, "DescribeCluster"))
        assert hung >= 1
        assert connections.asked.count((HUNG, "Check")) == hung
        assert took_s < hung * 6, "less than request.timeout.ms for each"

    run(main())


def test_a_node_that_answers_probes_may_take_its_time() -> None:
    async def main() -> None:
        connections = FakeConnections(set(), takes_s=25)
        assert (await admin(connections, GOOD).describe_cluster()).cluster_id == "c"
        assert connections.asked.count((GOOD, "DescribeCluster")) == 1
        assert connections.asked.count((GOOD, "Check")) == 8

    run(main())


def test_a_call_that_is_cancelled_leaves_no_request_behind() -> None:
    async def main() -> None:
        connections = FakeConnections({HUNG})
        waiting = asyncio.ensure_future(admin(connections, HUNG).describe_cluster())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_when_every_node_hangs_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr("tidemark.client.admin_calls.monotonic_ms", lambda: loop.time() * 1000)
        client = admin(FakeConnections({HUNG}), HUNG, default_api_timeout_ms=20_000)
        with pytest.raises(NetworkError, match="hangs"):
            await client.describe_cluster()
        assert 15 <= loop.time() <= 26

    run(main())
