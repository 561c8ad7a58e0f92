"""Random histories of a cluster: invariants that hold after every record.

An ISR is never empty and is within the replicas. A leader is in service and was in the ISR before,
so no clean election loses a record. Epochs never decrease. pytest prints a failing seed as the
parameter of its test.
"""

from __future__ import annotations

import random

import pytest

from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, PartitionRegistration
from quorum.image.image import ELR_VERSION
from quorum.image.records import encode_record
from tests.hash_seeds import outputs
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ApiError
from tidemark.v1 import admin_pb2

BROKERS = (1, 2, 3, 4)


class Walk:
    """One step after another, each chosen by the seed."""

    def __init__(self, seed: int, *, elr: bool = False) -> None:
        self.rng = random.Random(seed)
        self.s = Scenario(seed)
        if elr:
            assert self.s.set_feature(ELR_VERSION, 1) == 0
        self.incarnations = dict.fromkeys(BROKERS, 1)
        self.topics = 0
        self.seen: dict[tuple[str, int], PartitionRegistration] = {}

    def run(self, steps: int) -> None:
        verbs = [
            self.register,
            self.beat,
            self.beat,
            self.beat,
            self.shut_down,
            self.wait,
            self.create,
            self.delete,
            self.alter,
            self.alter,
            self.move,
            self.change_controller,
            self.step,
            self.step,
        ]
        for _ in range(steps):
            before = self.s.image
            try:
                self.rng.choice(verbs)()
            except ApiError:
                assert self.s.image is before, "what is refused changes nothing"
            self.check()

    def register(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        if self.rng.random() < 0.5:
            self.incarnations[broker_id] += 1
        clean = self.rng.random() < 0.5
        previous = self.s.epochs.get(broker_id, -1) if clean else -1
        self.s.register(
            broker_id, incarnation=self.incarnations[broker_id], previous_epoch=previous
        )

    def beat(self) -> None:
        for broker_id in BROKERS:
            if broker_id in self.s.epochs and self.rng.random() < 0.8:
                behind = self.rng.choice((0, 0, 3))
                self.s.heartbeat(broker_id, offset=self.s.offset - 1 - behind)

    def shut_down(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        if broker_id in self.s.epochs:
            self.s.heartbeat(broker_id, want_shut_down=True)

    def wait(self) -> None:
        self.s.advance(self.rng.choice((500, 4_000, 10_000, 400_000)))

    def step(self) -> None:
        """Runs one piece of timed work, if one is due."""
        due_ms = self.s.core.next_deadline_ms()
        if due_ms is not None and due_ms <= self.s.now_ms:
            self.s.apply(self.s.core.tick(self.s.now_ms))

    def create(self) -> None:
        self.topics += 1
        self.s.try_create(
            f"t{self.topics}",
            partitions=2,
            factor=self.rng.randint(1, 4),
            min_insync_replicas=self.rng.choice("123"),
        )

    def delete(self) -> None:
        names = self.s.image.topics.names()
        if len(names) > 3:
            request = admin_pb2.DeleteTopicsRequest(topic_names=[self.rng.choice(names)])
            self.s.ask(request)

    def alter(self) -> None:
        names = self.s.image.topics.names()
        if names:
            name = self.rng.choice(names)
            partition = self.s.partition(name)
            if partition.leader is not None:
                count = self.rng.randint(1, len(partition.replicas))
                self.s.alter(name, tuple(self.rng.sample(partition.replicas, count)))

    def move(self) -> None:
        names = self.s.image.topics.names()
        if names:
            request = admin_pb2.AlterPartitionReassignmentsRequest()
            asked = request.partitions.add(topic=self.rng.choice(names))
            if self.rng.random() < 0.7:
                asked.replicas.broker_ids.extend(self.rng.sample(BROKERS, self.rng.randint(1, 3)))
            self.s.ask(request)

    def change_controller(self) -> None:
        if self.rng.random() < 0.2:
            image = self.s.image
            self.s.core.deactivate()
            self.s.apply(self.s.core.activate(image, self.s.core.epoch + 1, self.s.now_ms))

    def check(self) -> None:
        self.s.core.validate()
        now = {
            (topic.name, index): partition
            for topic in self.s.image.topics
            for index, partition in topic.partitions.items()
        }
        for key, after in now.items():
            before = self.seen.get(key)
            if before is None:
                continue
            assert after.partition_epoch >= before.partition_epoch
            assert after.leader_epoch >= before.leader_epoch
            if after.leader != before.leader:
                assert after.leader_epoch > before.leader_epoch
            if after != before:
                assert after.partition_epoch > before.partition_epoch
        self.seen = now
        for broker_id, broker in self.s.image.brokers.items():
            if broker.fenced:
                held = [key for key, p in now.items() if broker_id in p.isr and len(p.isr) > 1]
                assert not held, f"broker {broker_id} is fenced and in the ISR of {held}"

    def replayed(self) -> MetadataImage:
        delta = MetadataDelta(EMPTY_IMAGE)
        for record in self.s.log:
            before = _led(delta, record)
            delta.replay_value(encode_record(record))
            if before is not None:
                _check_election(delta, record, before)
        return delta.apply(self.s.offset - 1, self.s.core.epoch)


def _led(delta: MetadataDelta, record: object) -> PartitionRegistration | None:
    change = record.partition_change  # type: ignore[attr-defined]
    if not record.HasField("partition_change"):  # type: ignore[attr-defined]
        return None
    topic = next(t for t in delta.topics_changed.values() if t.topic_id.bytes == change.topic_id)
    return topic.partition(change.partition_id)


def _check_election(delta: MetadataDelta, record: object, before: PartitionRegistration) -> None:
    after = _led(delta, record)
    assert after is not None
    if after.leader is not None and after.leader != before.leader:
        # The change that elects it may have removed the last of the ELR: an unclean shutdown.
        last_known = not before.isr and (after.leader,) == before.last_known_elr
        if last_known and after.leader not in before.elr:
            assert after.leader_recovery_state == 1, "what it lost is not known"
        else:
            kept = (*before.isr, *before.elr)
            if before.is_reassigning and not after.is_reassigning:
                # The leader's own ISR completed a reassignment that removes it.
                kept += after.isr
            assert after.leader in kept, "a clean election keeps every acknowledged record"


@pytest.mark.parametrize("elr", [False, True], ids=["isr only", "elr"])
@pytest.mark.parametrize("seed", range(40))
def test_no_history_breaks_the_rules_of_partitions(seed: int, elr: bool) -> None:
    _walk(seed, elr)


@pytest.mark.parametrize("elr", [False, True], ids=["isr only", "elr"])
@pytest.mark.parametrize("seed", range(40))
def test_nor_when_what_concerns_many_partitions_is_done_one_at_a_time(
    seed: int, elr: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.controller.sweeps.CHANGES_PER_STEP", 1)
    monkeypatch.setattr("quorum.controller.sweeps.LOOKED_AT_PER_STEP", 1 + seed % 3)
    _walk(seed, elr)


def _walk(seed: int, elr: bool) -> None:
    walk = Walk(seed, elr=elr)
    walk.run(150)
    replayed = walk.replayed()
    assert list(replayed.values()) == list(walk.s.image.values())


_TRACE = """
import hashlib
from quorum.image.records import encode_record
from tests.quorum.controller.test_random_walks import Walk
walk = Walk(7)
walk.run(120)
print(hashlib.sha256(b"".join(encode_record(r) for r in walk.s.log)).hexdigest())
"""


def test_the_same_seed_writes_the_same_log_whatever_the_order_of_sets() -> None:
    assert len(outputs(_TRACE, "0", "1", "4242")) == 1
