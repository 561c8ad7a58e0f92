"""Random histories of controller and leaders: no clean election loses a committed record.

A controller and the cores of three brokers, which learn of its image late. Brokers stop cleanly
and crash, may lose what they had not synced, and are fenced while they lead. Meanwhile
min.insync.replicas and ELR change. Two properties hold:

- the leader that the controller names has every committed record, unless it is RECOVERING;
- when all brokers are back, each partition has a leader, and commits.

pytest prints a failing seed as the parameter of its test.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from node.partition.core import AlterResult, BrokerView, IsrProposal, Partition, Role
from node.replication.hosting import registration_of
from quorum.controller.core import ControllerCore
from quorum.image import LeaderRecoveryState, MetadataImage
from quorum.image.image import ELR_VERSION
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario, controller_config
from tidemark.errors import ApiError, ErrorCode, NotEnoughReplicasError
from tidemark.types import TopicIdPartition
from tidemark.v1 import admin_pb2

BROKERS = (1, 2, 3)
TOPICS = {"a": (1, 2, 3), "b": (2, 3, 1), "c": (3, 1, 2), "d": (3, 2), "e": (1, 3, 2)}
MIN_ISR = "min.insync.replicas"
LAG_MS = 4_000

Log = list[tuple[int, int]]
"""Leader epoch and number of each record."""


@dataclass(slots=True)
class Broker:
    """A process and its replicas. `logs` outlive it; `applied` counts the images it applied."""

    broker_id: int
    min_isr: int
    runs: bool = True
    clean: bool = False
    incarnation: int = 1
    applied: int = 0
    image: MetadataImage | None = None
    cores: dict[str, Partition] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)

    def views(self) -> dict[int, BrokerView]:
        assert self.image is not None
        return {b.broker_id: BrokerView(b.epoch, b.is_active) for b in self.image.brokers.values()}

    def least_isr(self, topic: str) -> int:
        """The setting as this broker knows it."""
        assert self.image is not None
        own = self.image.topic_configs(topic).get(MIN_ISR)
        default = self.image.broker_configs(None).get(MIN_ISR, self.min_isr)
        return int(default if own is None else own)


class History:
    """One event after another, each chosen by the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.s = Scenario(seed, controller_config(min_insync_replicas=self.rng.choice("12")))
        if self.rng.random() < 0.7:
            assert self.s.set_feature(ELR_VERSION, 1) == 0
        self.s.start_brokers(*BROKERS)
        for name, replicas in TOPICS.items():
            self.s.create(name, replicas, **self.rng.choice(({"min_insync_replicas": "2"}, {})))
        self.images = [self.s.image]
        self.brokers = {n: Broker(n, self.rng.choice((1, 2))) for n in BROKERS}
        self.committed: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.epochs = dict.fromkeys(TOPICS, 0)
        self.lossy = dict.fromkeys(TOPICS, 0)  # epoch of the last election that may lose records
        self.records = 0
        self.cut_off: Broker | None = None
        self.counts: Counter[str] = Counter()
        for broker in self.brokers.values():
            broker.logs = {name: [] for name, ids in TOPICS.items() if broker.broker_id in ids}
            self.learn(broker, len(self.images))

    # --- events ------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        events = [self.produce] * 8 + [self.fetch] * 16 + [self.shrink] * 5 + [self.catch_up] * 10
        events += [self.beat] * 16 + [self.wait] * 8 + [self.stop] * 2 + [self.start] * 6
        events += [self.set_minimum] * 4 + [self.cut] * 2
        events += [self.switch_elr, self.change_controller]
        for _ in range(steps):
            try:
                self.rng.choice(events)()
            except ApiError:
                self.counts["refused"] += 1
            self.check()

    def produce(self) -> None:
        for broker, name, core in self.leaders():
            try:
                core.check_enough_replicas()
            except NotEnoughReplicasError:
                if self.rng.random() < 0.7:
                    continue  # else one with acks=1
            self.append(broker, name)

    def append(self, broker: Broker, name: str) -> None:
        core, log = broker.cores[name], broker.logs[name]
        self.records += 1
        log.append((core.leader_epoch, self.records))
        core.on_append(len(log), self.s.now_ms)

    def fetch(self) -> None:
        for name, replicas in TOPICS.items():
            for replica in self.rng.sample(replicas, len(replicas)):
                if self.rng.random() < 0.7:
                    self.fetch_once(self.brokers[replica], name)

    def fetch_once(self, follower: Broker, name: str) -> None:
        own = follower.cores.get(name)
        leader = None if own is None or own.leader is None else self.brokers[own.leader]
        if own is None or leader is None or leader is follower:
            return
        core = leader.cores.get(name)
        if not (leader.runs and follower.runs) or core is None or core.role is not Role.LEADER:
            return
        if core.leader_epoch != own.leader_epoch:
            return
        log, theirs = follower.logs[name], leader.logs[name]
        same = 0
        while log[same : same + 1] == theirs[same : same + 1] != []:
            same += 1
        if same < len(log):
            del log[same:]
            own.on_truncate(same, own.high_watermark)
        epoch = self.s.epochs[follower.broker_id]
        core.check_follower(follower.broker_id, epoch)
        core.on_follower_fetch(follower.broker_id, epoch, len(log), 0, self.s.now_ms)
        self.propose(leader, name, core.maybe_expand_isr(follower.broker_id))
        if self.rng.random() < 0.9:
            log += theirs[len(log) : len(log) + self.rng.choice((1, 3, 100))]
            own.on_append(len(log), self.s.now_ms)
            own.on_leader_high_watermark(core.high_watermark)

    def shrink(self) -> None:
        for leader, name, core in self.leaders():
            self.propose(leader, name, core.maybe_shrink_isr(self.s.now_ms))

    def propose(self, leader: Broker, name: str, proposal: IsrProposal | None) -> None:
        """Sends a proposal to the controller; its answer may be lost."""
        if proposal is None:
            return
        core = leader.cores[name]
        answer = self.s.alter(
            name,
            tuple(member.broker_id for member in proposal.new_isr),
            broker_id=leader.broker_id,
            member_epochs={m.broker_id: m.broker_epoch for m in proposal.new_isr},
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            leader_recovery_state=int(proposal.recovering),
        )
        self.note()
        self.counts["proposals"] += 1
        if answer.error_code:
            core.on_alter_error(proposal, ErrorCode(answer.error_code))
        elif self.rng.random() < 0.8:
            result = AlterResult(
                answer.leader_id,
                answer.leader_epoch,
                tuple(answer.isr),
                answer.partition_epoch,
                bool(answer.leader_recovery_state),
                tuple(answer.eligible_leader_replicas),
            )
            core.on_alter_result(result, self.s.now_ms)

    def catch_up(self) -> None:
        for broker in self.brokers.values():
            if broker.runs and self.rng.random() < 0.6:
                self.learn(broker, self.rng.randint(broker.applied, len(self.images)))

    def beat(self) -> None:
        for broker in self.brokers.values():
            if broker is not self.cut_off and broker.runs:
                self.heartbeat(broker)

    def heartbeat(self, broker: Broker) -> None:
        assert broker.image is not None
        self.s.heartbeat(broker.broker_id, offset=broker.image.offset)
        self.note()

    def wait(self) -> None:
        self.s.advance(self.rng.choice((500, 3_000, 6_000)))
        self.note()

    def stop(self) -> None:
        broker = self.brokers[self.rng.choice(BROKERS)]
        if broker.runs:
            broker.clean = self.rng.random() < 0.5
            if broker.clean and self.rng.random() < 0.5:
                self.s.heartbeat(broker.broker_id, want_shut_down=True)
                self.note()
            broker.runs = False
            broker.cores = {}

    def start(self) -> None:
        broker = self.brokers[self.rng.choice(BROKERS)]
        if not broker.runs:
            self.restart(broker)

    def restart(self, broker: Broker) -> None:
        """Registers a new process; one that crashed may have lost the end of its logs.

        Without ELR that would be an accepted loss, so it loses nothing then.
        """
        previous = self.s.epochs[broker.broker_id] if broker.clean else -1
        self.s.register(
            broker.broker_id, incarnation=broker.incarnation + 1, previous_epoch=previous
        )
        broker.incarnation += 1
        broker.runs = True
        if not broker.clean and self.s.image.elr_enabled:
            for log in broker.logs.values():
                del log[self.rng.randint(0, len(log)) :]
        self.note()
        self.learn(broker, len(self.images))

    def set_minimum(self) -> None:
        resource_type, name = self.rng.choice([*((2, t) for t in TOPICS), (4, ""), (4, "1")])
        request = admin_pb2.IncrementalAlterConfigsRequest()
        asked = request.resources.add()
        asked.resource.resource_type = resource_type  # type: ignore[assignment]
        asked.resource.resource_name = name
        if self.rng.random() < 0.3:
            asked.ops.add(name=MIN_ISR, type=admin_pb2.IncrementalAlterConfigsRequest.DELETE)
        else:
            asked.ops.add(name=MIN_ISR, value=self.rng.choice("1123"))
        self.s.ask(request)
        self.note()

    def switch_elr(self) -> None:
        level = int(not self.s.image.elr_enabled)
        kind = admin_pb2.UpdateFeaturesRequest.SAFE_DOWNGRADE
        assert self.s.set_feature(ELR_VERSION, level, 0 if level else kind) == 0
        self.note()

    def change_controller(self) -> None:
        """Another one takes over, whose server.properties may differ."""
        config = controller_config(min_insync_replicas=self.rng.choice("12"))
        image = self.s.image
        self.s.core = ControllerCore(config, CLUSTER_ID, random.Random(self.rng.random()))
        self.s.apply(self.s.core.activate(image, image.epoch + 1, self.s.now_ms))
        self.note()

    def cut(self) -> None:
        """Another broker, or none, is the one that the controller does not hear from."""
        self.cut_off = self.rng.choice([None, *self.brokers.values()])

    def leaders(self) -> list[tuple[Broker, str, Partition]]:
        """The brokers that lead a topic, to their own knowledge."""
        return [
            (broker, name, core)
            for broker in self.brokers.values()
            for name, core in broker.cores.items()
            if core.role is Role.LEADER
        ]

    # --- metadata ----------------------------------------------------------------------------

    def note(self) -> None:
        """Keeps the controller's image for the brokers, and judges the elections in it."""
        if self.s.image is self.images[-1]:
            return
        self.images.append(self.s.image)
        for name in TOPICS:
            p = self.s.partition(name)
            if p.leader is None or p.leader_epoch == self.epochs[name]:
                continue
            self.epochs[name] = p.leader_epoch
            if p.leader_recovery_state is LeaderRecoveryState.RECOVERING:
                self.counts["unclean"] += 1
                self.committed[name] &= self.held(name, p.leader)
                self.lossy[name] = p.leader_epoch
            else:
                before = self.images[-2].topics.get(name)
                assert before is not None
                eligible = p.leader in before.partitions[0].elr
                self.counts["of the ELR" if eligible else "of the ISR"] += 1
        self.check()

    def held(self, name: str, broker_id: int) -> set[int]:
        return {number for _, number in self.brokers[broker_id].logs[name]}

    def learn(self, broker: Broker, applied: int) -> None:
        """Applies the image of that time, as `PartitionHosting` does: registrations, settings."""
        if applied == broker.applied and broker.cores:
            return
        broker.applied = applied
        before, image = broker.image, self.images[applied - 1]
        broker.image = image
        for name, log in broker.logs.items():
            topic = image.topics.get(name)
            assert topic is not None
            core = broker.cores.get(name)
            if core is None:
                identity = TopicIdPartition(topic.topic_id, name, 0)
                core = Partition(identity, broker.broker_id, broker.views, lag_max_ms=LAG_MS)
                core.min_insync_replicas = broker.least_isr(name)
                core.on_truncate(len(log), 0)
                broker.cores[name] = core
                before = None
            found = topic.partitions[0]
            old = None if before is None else before.topics.get(name)
            if old is None or old.partitions[0] != found:
                core.apply(registration_of(found), len(log), self.s.now_ms)
                self.propose(broker, name, core.maybe_recover())
                core.maybe_advance_high_watermark(self.s.now_ms)
            core.min_insync_replicas = broker.least_isr(name)
            core.maybe_advance_high_watermark(self.s.now_ms)

    # --- properties --------------------------------------------------------------------------

    def check(self) -> None:
        for broker, name, core in self.leaders():
            if core.leader_epoch >= self.lossy[name]:
                log = broker.logs[name][: core.high_watermark]
                self.committed[name].update(number for _, number in log)
        for name, committed in self.committed.items():
            leader = self.s.partition(name).leader
            if leader is not None:
                lost = committed - self.held(name, leader)
                assert not lost, f"{name}: leader {leader} lacks {sorted(lost)}"

    def heal(self) -> None:
        """All brokers run and reach each other, until nothing changes any more."""
        self.s.advance(12_000)
        self.note()
        for broker in self.brokers.values():
            if not broker.runs:
                self.restart(broker)
        for _ in range(12):
            for broker in self.brokers.values():
                self.learn(broker, len(self.images))
                self.heartbeat(broker)
                self.learn(broker, len(self.images))
            for name, replicas in TOPICS.items():
                for replica in replicas:
                    try:
                        self.fetch_once(self.brokers[replica], name)
                    except ApiError:
                        self.counts["refused"] += 1
            self.check()
            self.s.advance(500)
            self.note()
        for name, replicas in TOPICS.items():
            p = self.s.partition(name)
            assert p.leader is not None, f"{name}: nobody can lead: {p}"
            assert set(p.isr) == set(replicas), p
            leader = self.brokers[p.leader]
            self.append(leader, name)
            for _ in range(8):  # an answer may be lost
                for replica in replicas:
                    self.fetch_once(self.brokers[replica], name)
            core = leader.cores[name]
            assert core.high_watermark == len(leader.logs[name]), f"{name} does not commit: {p}"


@pytest.mark.parametrize("seed", range(100))
def test_no_clean_election_loses_a_committed_record_and_somebody_can_always_lead(
    seed: int,
) -> None:
    history = History(seed)
    history.run(400)
    history.heal()


def test_the_histories_have_the_elections_they_are_about() -> None:
    counts: Counter[str] = Counter()
    for seed in range(20):
        history = History(seed)
        history.run(400)
        counts += history.counts
    assert all(counts[kind] > 5 for kind in ("of the ELR", "of the ISR", "unclean"))
