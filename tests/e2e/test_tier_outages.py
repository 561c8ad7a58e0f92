"""A real MinIO is killed, stopped and made slow under load. Produces, hot reads and new topics go
on, the lag of the copy is told, and afterwards the tier has all of it.

Each outage lasts until some segments wait; in the soak it lasts a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tier_outages import TOPIC, TieredCluster, TierLoad, read_all
from tests.minio_fixture import minio_binary
from tidemark.cli.session import Session
from tidemark.cli.tier_metadata import read_history
from tidemark.client import Admin
from tidemark.config import load_server_config
from tiering.store.inventory import leftovers
from tiering.store.listing import open_store

SEGMENT_BYTES = 128 << 10
WAITING = 8
"""Segments that wait for the store before it returns."""
RETRY_SOON = {
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "rsm.config.retry.backoff.max.ms": "1000",
}
_DAY_MS = 86_400_000


async def outages(path: Path, seconds: float, settings: dict[str, str]) -> None:
    async with TieredCluster(path, SEGMENT_BYTES, settings) as tier:
        async with TierLoad(tier.servers) as load:
            await load.progress(500, 2)
            await tier.caught_up()
            for outage in (tier.killed, tier.frozen, tier.slow):
                async with outage():
                    began_s = time.monotonic()
                    await tier.lags(WAITING)
                    await load.progress(300, 2)
                    cold = asyncio.create_task(check_readable(tier.servers, load))
                    await asyncio.sleep(seconds - (time.monotonic() - began_s))
                    await load.progress(100, 1)
                await cold  # a reader that began during the outage gets it all after it
                await tier.caught_up()
        await tier.caught_up()
        await check_readable(tier.servers, load)
        config = tier.cluster.node(tier.cluster.broker_ids[0]).properties_file
        found = await verify(tier.servers, config)
        assert found["findings"] == 0
        assert found["segments"] >= 3 * WAITING
        left = await asyncio.to_thread(not_in_metadata, tier.servers, config)
        assert not left


async def check_readable(servers: str, load: TierLoad) -> None:
    """Asserts that all records acknowledged by now are read from the beginning, at their offsets.

    A producer's repetition of a request is stored once.
    """
    delivered = dict(load.delivered)
    found = await read_all(servers)
    assert delivered.items() <= found.items()
    assert len(set(found.values())) == len(found)


async def verify(servers: str, config: Path) -> Any:
    """Runs `tidemark tier verify`; returns its JSON."""
    command = [sys.executable, "-P", "-m", "tidemark.cli.main", "tier", "verify"]
    command += ["-c", str(config), "--bootstrap-server", servers, "--topic", TOPIC, "--json"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return json.loads(out)


def not_in_metadata(servers: str, config: Path) -> list[Any]:
    """Returns the objects and unfinished uploads of the bucket that no metadata names."""
    storage, listing = open_store(load_server_config(config))
    try:
        objects = list(listing.objects())
        with Admin(servers) as admin:
            history = read_history(Session(servers, as_json=True), admin)
    finally:
        storage.close()
    return leftovers(objects, history, older_than_ms=int(time.time() * 1000) + _DAY_MS)


@pytest.mark.skipif(minio_binary() is None and "CI" not in os.environ, reason="no minio binary")
@pytest.mark.timeout(200)
def test_acknowledged_records_reach_the_tier_after_its_store_was_away(tmp_path: Path) -> None:
    asyncio.run(outages(tmp_path, 0, RETRY_SOON))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
def test_the_same_for_outages_of_a_minute(tmp_path: Path) -> None:
    asyncio.run(outages(tmp_path, 60, {}))
