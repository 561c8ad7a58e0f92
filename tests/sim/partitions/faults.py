"""The faults of the simulated brokers, and the administrator's changes while partitions are
degraded.

Power is lost only where eligible leader replicas are kept all the time. Without them the last
in-sync replica leads again whatever it lost, as in Kafka (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum.image.image import ELR_VERSION
from tests.sim.partitions.broker import TOPIC
from tidemark.errors import ApiError
from tidemark.v1 import admin_pb2

if TYPE_CHECKING:
    from tests.sim.partitions.broker import DataBroker
    from tests.sim.partitions.world import PartitionWorld

MIN_ISR = "min.insync.replicas"
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


class Faults:
    """Plans the faults of one world and carries them out."""

    def __init__(self, world: PartitionWorld) -> None:
        self.world = world
        rng = world.rng
        self.elr = rng.random() < 0.7
        self.switches = rng.random() < 0.4
        self.loses_power = self.elr and not self.switches and rng.random() < 0.7
        self.replaces = rng.random() < 0.4
        self.damages = world.seed % 4 == 3
        if self.elr:
            self._feature(1)

    def create_topic(self) -> None:
        world = self.world
        ids = sorted(world.brokers)
        assignment = [tuple(world.rng.sample(ids, 3)) for _ in range(2)]
        world.topic_id = world.controller.create(TOPIC, *assignment)

    def plan(self, end_ms: int) -> None:
        rng = self.world.rng
        verbs: list[tuple[int, Callable[[], None]]] = [
            (30, self._produce),
            (rng.choice([600, 1500, 4000]), self._stop_one),
            (rng.choice([1500, 6000]), self._pause_one),
            (rng.choice([800, 3000]), self._change_min_isr),
            (rng.choice([2000, 8000]), self._move),
            (rng.choice([2000, 8000]), self.world.controller.change_over),
            (rng.choice([2000, 8000]), self._fail_directory),
        ]
        if self.switches:
            verbs.append((rng.choice([800, 3000]), self._switch_elr))
        if self.damages:
            verbs.append((300, self._damage_one))
        for mean_ms, verb in verbs:
            moment_ms = self.world.now_ms
            while (moment_ms := moment_ms + 1 + rng.randrange(2 * mean_ms)) < end_ms:
                self.world.at(moment_ms, verb)

    def heal(self) -> None:
        """Ends all faults: every process runs, and every directory is there."""
        for broker in self.world.brokers.values():
            broker.paused_until_ms = 0
            if broker.alive and (broker.failed or broker.stopping):
                broker.stop()
            if not broker.alive:
                broker.start()

    # --- processes and disks ----------------------------------------------------------------------

    def _any(self) -> DataBroker:
        return self.world.rng.choice(list(self.world.brokers.values()))

    def _stop_one(self) -> None:
        world, rng = self.world, self.world.rng
        everybody = rng.random() < 0.15
        victims = list(world.brokers.values()) if everybody else [self._any()]
        world.seen["all brokers stop"] += everybody
        kind = rng.random()
        for broker in victims:
            if not broker.alive:
                continue
            world.trace(f"broker {broker.broker_id} stops")
            if kind < 0.35:
                broker.stopping = True
                world.after(2_000, broker, lambda b=broker: self._give_up(b))  # type: ignore[misc]
                continue
            if kind < 0.7 and self.loses_power:
                world.seen["power lost"] += 1
                broker.lose_power()
            else:
                world.seen["broker killed"] += 1
                broker.stop()
            self.restart_later(broker)

    def _give_up(self, broker: DataBroker) -> None:
        """Ends a controlled shutdown that takes too long."""
        self.world.seen["shutdown given up"] += 1
        broker.stop()
        self.restart_later(broker)

    def restart_later(self, broker: DataBroker) -> None:
        delay_ms = self.world.rng.choice([100, 1500, 5000])
        self.world.at(
            self.world.now_ms + 1 + self.world.rng.randrange(delay_ms),
            lambda: self._restart(broker),
        )

    def _restart(self, broker: DataBroker) -> None:
        if broker.alive:
            return
        if self.world.faulty and self.replaces and self.world.rng.random() < 0.25:
            self.world.seen["directory replaced"] += 1
            broker.replace_directory(self.world.rng.choice(broker.directories))
        self.world.trace(f"broker {broker.broker_id} starts")
        broker.start()

    def _pause_one(self) -> None:
        broker = self._any()
        if broker.alive:
            self.world.seen["broker paused"] += 1
            broker.paused_until_ms = self.world.now_ms + 1 + self.world.rng.randrange(2500)

    def _fail_directory(self) -> None:
        broker = self._any()
        if broker.alive and len(broker.directories) > 1 and not broker.failed:
            self.world.seen["directory failed"] += 1
            broker.fail_directory()
            self.world.trace(f"broker {broker.broker_id} loses a directory")

    def _damage_one(self) -> None:
        broker, index = self._any(), self.world.rng.randrange(2)
        if broker.alive:
            broker.find_damage(index)

    # --- the administrator ------------------------------------------------------------------------

    def _produce(self) -> None:
        world, rng = self.world, self.world.rng
        index = rng.randrange(len(world.partitions()))
        for broker in world.brokers.values():  # an old leader may not know of its successor
            if broker.alive and broker.paused_until_ms <= world.now_ms:
                broker.produce(index, 1 + rng.randrange(3), all_replicas=rng.random() < 0.8)

    def _change_min_isr(self) -> None:
        world, rng = self.world, self.world.rng
        degraded = any(len(p.isr) < len(p.replicas) for p in world.partitions().values())
        request = admin_pb2.IncrementalAlterConfigsRequest()
        asked = request.resources.add()
        if rng.random() < 0.6:
            asked.resource.resource_type, asked.resource.resource_name = _TOPIC_RESOURCE, TOPIC
        else:
            asked.resource.resource_type = _BROKER_RESOURCE
        if rng.random() < 0.25:
            asked.ops.add(name=MIN_ISR, type=admin_pb2.IncrementalAlterConfigsRequest.DELETE)
        else:
            asked.ops.add(name=MIN_ISR, value=rng.choice("1223"))
        if self._ask(request):
            world.seen["min.insync.replicas changed"] += 1
            world.trace(f"min.insync.replicas: {asked.resource.resource_name} {asked.ops}")
            world.seen["min.insync.replicas changed while degraded"] += degraded

    def _switch_elr(self) -> None:
        world = self.world
        level = world.controller.image.features.get(ELR_VERSION, 0)
        offline = any(p.leader is None for p in world.partitions().values())
        world.seen["ELR switched"] += 1
        world.seen["ELR switched while a partition is offline"] += offline
        world.trace(f"ELR switched to {1 - level}")
        self._feature(1 - level)

    def _feature(self, level: int) -> None:
        request = admin_pb2.UpdateFeaturesRequest()
        request.updates.add(
            feature=ELR_VERSION,
            level=level,
            type=admin_pb2.UpdateFeaturesRequest.UPGRADE
            if level
            else admin_pb2.UpdateFeaturesRequest.SAFE_DOWNGRADE,
        )
        self._ask(request)

    def _move(self) -> None:
        world, rng = self.world, self.world.rng
        request = admin_pb2.AlterPartitionReassignmentsRequest()
        asked = request.partitions.add(topic=TOPIC, partition_index=rng.randrange(2))
        if rng.random() < 0.8:
            ids = rng.sample(sorted(world.brokers), rng.choice([2, 3]))
            asked.replicas.broker_ids.extend(ids)
        self._ask(request)

    def _ask(self, request: object) -> bool:
        try:
            self.world.ask(request)  # type: ignore[arg-type]
        except ApiError:
            return False
        return True
