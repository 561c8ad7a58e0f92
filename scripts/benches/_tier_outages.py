"""Produces, hot reads and topic creations while MinIO is killed, frozen or slow.

Each row is the p99 during the outage over the p99 before the first one.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 1 << 20
PHASE_S = 20.0


def run(scale: float) -> list[dict[str, Any]]:
    """Rows: the ceiling is the p99 before the outages, and the goal at most 1.5 of it."""
    with tempfile.TemporaryDirectory(prefix="bench-tier-") as path:
        return asyncio.run(_outages(Path(path), max(5.0, PHASE_S * scale)))


def p99_ms(times: list[float]) -> float:
    """The 99th percentile of times in s, in ms."""
    ordered = sorted(times)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def _outages(path: Path, phase_s: float) -> list[dict[str, Any]]:
    from tests.e2e.tier_outages import TieredCluster, TierLoad

    loop, rows = asyncio.get_running_loop(), []
    async with (
        TieredCluster(path, SEGMENT_BYTES, {}) as tier,
        TierLoad(tier.servers, pause_s=0.01, topic_pause_s=0.1) as load,
    ):
        await load.progress(500, 5)
        await asyncio.sleep(5)  # caches and connections are warm
        works = {"produce": load.produce, "hot consume": load.consume, "create": load.create}
        begin_s = loop.time()
        await asyncio.sleep(phase_s)
        before = {name: p99_ms(t.between(begin_s, loop.time())) for name, t in works.items()}
        for outage in (tier.killed, tier.frozen, tier.slow):
            async with outage():
                begin_s = loop.time()
                await asyncio.sleep(phase_s)
                end_s, lag = loop.time(), await tier.copy_lag()
            over_s = loop.time()
            await tier.caught_up()
            caught_s = loop.time() - over_s
            for name, times in works.items():
                p99 = p99_ms(times.between(begin_s, end_s))
                text = f"tier: {name} p99, MinIO {outage.__name__} (ceiling: before)"
                rows.append(_row(text, p99, "ms", before[name]))
            text = f"tier: {lag} segments behind, MinIO was {outage.__name__}: caught up after"
            rows.append(_row(text, caught_s, "s", None))
            await asyncio.sleep(1)
    return rows


def _row(name: str, value: float, unit: str, ceiling: float | None) -> dict[str, Any]:
    ratio = None if not ceiling else round(value / ceiling, 3)
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
