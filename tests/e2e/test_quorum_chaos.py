"""Five real controllers, killed and stopped at random under a metadata load.

One order of the changes explains every answer, and no acknowledged change is lost.
`TIDEMARK_CHAOS_S` is the duration in seconds (default 15; 60 in the soak), and
`TIDEMARK_CHAOS_SEED` chooses the faults.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.e2e.quorum_load import Load
from tests.quorum.linearizability import Operation, explain, set_if
from tidemark.cli.local_cluster import LocalCluster

CLIENTS = 4
SETTINGS = {
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.request.timeout.ms": "800",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
    "broker.session.timeout.ms": "60000",
}


class Faults:
    """SIGKILL and SIGSTOP; at most two of five controllers are away at once."""

    def __init__(self, cluster: LocalCluster, load: Load, seed: int) -> None:
        self.cluster, self.load, self.rng = cluster, load, random.Random(seed)
        self.away: set[int] = set()
        self.kills = self.pauses = self.leaders_hit = 0

    async def one(self) -> None:
        here = [n for n in self.cluster.controller_ids if n not in self.away]
        leader = self.load.leader
        victim = leader if leader in here and self.rng.random() < 0.7 else self.rng.choice(here)
        assert victim is not None
        self.leaders_hit += victim == leader
        self.away.add(victim)
        if self.rng.random() < 0.5:
            self.kills += 1
            await asyncio.to_thread(self.cluster.kill, victim)
            await asyncio.sleep(self.rng.random())
            await asyncio.to_thread(self.cluster.restart, victim)
            await asyncio.sleep(2)  # the process needs time to start, or no controller is left soon
        else:
            self.pauses += 1
            self.cluster.pause(victim)
            await asyncio.sleep(0.3 + 3 * self.rng.random())
            self.cluster.resume(victim)
        self.away.discard(victim)

    async def run(self, duration_s: float) -> None:
        end = time.monotonic() + duration_s
        running: set[asyncio.Task[None]] = set()
        while time.monotonic() < end:
            if len(self.away) < 2:
                running.add(asyncio.create_task(self.one()))
            await asyncio.sleep(0.5 + self.rng.random() * 1.5)
        await asyncio.gather(*running)


async def storm(cluster: LocalCluster, duration_s: float, seed: int) -> tuple[Load, Faults]:
    addresses = {n: cluster.node(n).address for n in cluster.controller_ids}
    load = Load(addresses, seed)
    faults = Faults(cluster, load, seed)
    clients = [asyncio.create_task(load.client()) for _ in range(CLIENTS)]
    await faults.run(duration_s)
    calm = len(load.history)
    deadline = time.monotonic() + 60
    while len(load.history) < calm + 2:  # the load continues after the last fault
        assert time.monotonic() < deadline, f"nothing is answered any more: {load.answers}"
        await asyncio.sleep(0.1)
    load.stopped = True
    await asyncio.gather(*clients)
    await asyncio.sleep(2.5)  # requests without an answer have taken effect by now, or never will
    topics = await load.final_topics()
    now = time.monotonic()
    for key, history in load.history.items():
        there = "read present" if key in topics else "read absent"
        history.append(Operation("read", there, now, now + 1))
    await load.close()
    return load, faults


def chaos(tmp_path: Path, duration_s: float) -> None:
    seed = int(os.environ.get("TIDEMARK_CHAOS_SEED", random.randrange(1 << 30)))
    repeat = f"TIDEMARK_CHAOS_SEED={seed} repeats the faults (not the timing)"
    with LocalCluster(tmp_path, controllers=5, brokers=1, overrides=SETTINGS) as cluster:
        cluster.wait_ready(90)
        load, faults = asyncio.run(storm(cluster, duration_s, seed))
    assert faults.leaders_hit > 0, repeat
    assert load.answers.get("done", 0) > duration_s, (load.answers, repeat)
    for key, history in load.history.items():
        order = explain(history, "absent", set_if)
        assert order is not None, f"{key}: {sorted(history, key=lambda o: o.called)}; {repeat}"


def test_no_acknowledged_change_is_lost_and_the_history_is_linearizable(tmp_path: Path) -> None:
    chaos(tmp_path, float(os.environ.get("TIDEMARK_CHAOS_S", "15")))


@pytest.mark.soak
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
def test_the_same_for_a_minute(tmp_path: Path) -> None:
    chaos(tmp_path, 60)
