"""The simulated cluster of brokers: virtual time, a lossy network, and the schedule of faults.

A run begins with a time of faults. Then everything is healed, and liveness is required: every
partition that can have a leader has one, and all replicas are equal and in sync.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from google.protobuf.message import Message

from quorum.controller.result import ControllerResult
from quorum.image import MetadataImage, PartitionRegistration
from quorum.image.features import ranges_to_wire
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario, controller_config
from tests.sim.checks import Violation
from tests.sim.partitions.broker import TOPIC, DataBroker
from tests.sim.partitions.canaries import PartitionCanary
from tests.sim.partitions.checks import RecordChecks
from tests.sim.partitions.faults import Faults
from tidemark.errors import ApiError, StaleBrokerEpochError

FAULT_TIME_MS = 9_000
HEAL_TIME_MS = 15_000
PARTITIONS = 2
REQUEST_TIMEOUT_MS = 600
SETTINGS = {
    "broker_session_timeout_ms": "1200",
    "leader_imbalance_check_interval_seconds": "2",
}
_START_MS = 1_000_000


@dataclass
class PartitionOutcome:
    """The result of one seed; `seen` counts every kind of event."""

    seed: int
    events: int
    elections: int
    committed: int
    seen: Counter[str]


class SimController(Scenario):
    """The controller core; each change is published to the brokers."""

    def __init__(self, world: PartitionWorld, seed: int) -> None:
        self.world: PartitionWorld | None = None
        minimum = {"min_insync_replicas": world.rng.choice("1223")}
        super().__init__(seed, controller_config(**SETTINGS, **minimum))
        self.world = world
        self.cluster_id = CLUSTER_ID

    def apply(self, result: ControllerResult[Any]) -> Any:
        before = self.image if self.offset else None
        response = super().apply(result)
        if self.written and self.world is not None and before is not None:
            self.world.changed(before, self.image)
        return response

    def change_over(self) -> None:
        """Has another controller take over, with the same metadata."""
        image = self.image
        self.core.deactivate()
        self.apply(self.core.activate(image, self.core.epoch + 1, self.now_ms))


class PartitionWorld:
    """Brokers, controller and clients of one seed."""

    def __init__(
        self, seed: int, canary: PartitionCanary | None = None, *, verbose: bool = False
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.verbose = verbose
        self.now_ms = 0
        self.events = 0
        self.faulty = True
        self.seen: Counter[str] = Counter()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._records = 0
        self.features = ranges_to_wire()
        self.canary = canary or PartitionCanary()
        self.checks = RecordChecks(self.seen)
        self.delay_max_ms = rng.choice([5, 30, 200])
        self.loss = rng.choice([0.0, 0.02, 0.1])
        self.slow_metadata_ms = rng.choice([5, 50, 600])
        self.controller = SimController(self, seed)
        directories = rng.choice([1, 2])
        self.brokers = {
            n: self.canary.broker(self, n, directories) for n in range(1, rng.choice([3, 4, 4]) + 1)
        }
        self.topic_id = UUID(int=0)
        self.faults = Faults(self)

    # --- time and chance --------------------------------------------------------------------------

    def at(self, moment_ms: int, work: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (moment_ms, self._sequence, work))

    def after(self, delay_ms: int, broker: DataBroker, work: Callable[[], None]) -> None:
        """Runs `work` after a delay, in the same life of the broker; a paused one runs it when it
        resumes."""
        life = broker.life

        def run() -> None:
            if broker.alive and broker.life == life:
                if broker.paused_until_ms > self.now_ms:
                    self.at(broker.paused_until_ms, run)
                else:
                    work()

        self.at(self.now_ms + delay_ms, run)

    def every(self, broker: DataBroker, mean_ms: int, work: Callable[[], None]) -> None:
        """Runs `work` again and again as long as the process lives."""

        def run() -> None:
            work()
            self.after(1 + self.rng.randrange(2 * mean_ms), broker, run)

        self.after(1 + self.rng.randrange(2 * mean_ms), broker, run)

    def _delay_ms(self) -> int:
        return 1 + self.rng.randrange(self.delay_max_ms if self.faulty else 4)

    def fetch_delay_ms(self) -> int:
        return 10 + self.rng.randrange(60)

    def _lost(self) -> bool:
        lost = self.faulty and self.rng.random() < self.loss
        self.seen["message lost"] += lost
        return lost

    def new_directory(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def next_record(self) -> int:
        self._records += 1
        return self._records

    def trace(self, text: str) -> None:
        if self.verbose:
            print(f"{self.now_ms:6} {text}")

    # --- messages ---------------------------------------------------------------------------------

    def call(
        self,
        broker: DataBroker,
        request: Message,
        answered: Callable[[Any], None],
        retry: Callable[[], None] | None = None,
        stale: Callable[[], None] | None = None,
    ) -> None:
        """Carries a broker's request to the controller, and its answer back. An error or a loss
        runs `retry` later, a broker epoch that is not the registered one `stale`."""

        def again() -> None:
            if retry is not None:
                self.after(200 + self._delay_ms(), broker, retry)

        def arrive() -> None:
            try:
                response = self.ask(request)
            except ApiError as error:
                self.seen[f"refused: {type(error).__name__}"] += 1
                if stale is not None and isinstance(error, StaleBrokerEpochError):
                    self.after(self._delay_ms(), broker, stale)
                again()
                return
            if self._lost():
                again()
            else:
                self.after(self._delay_ms(), broker, lambda: answered(response))

        if self._lost():
            again()
        else:
            self.at(self.now_ms + self._delay_ms(), arrive)

    def ask(self, request: Message) -> Any:
        self.controller.now_ms = _START_MS + self.now_ms
        return self.controller.ask(request)

    def ask_broker(
        self,
        source: DataBroker,
        target_id: int,
        served: Callable[[DataBroker], object],
        answered: Callable[[object], None],
        lost: Callable[[], None],
    ) -> None:
        """Carries a request between brokers; `lost` runs where no answer comes in time."""
        target, life = self.brokers[target_id], source.life
        waiting = True

        def end(work: Callable[[], None]) -> None:
            nonlocal waiting
            if waiting and source.life == life:
                waiting = False
                work()

        def serve() -> None:
            answer = served(target)
            self.after(self._delay_ms(), source, lambda: end(lambda: answered(answer)))

        if not self._lost():
            self.at(self.now_ms + self._delay_ms(), lambda: self.after(0, target, serve))
        self.after(REQUEST_TIMEOUT_MS, source, lambda: end(lost))

    # --- metadata ---------------------------------------------------------------------------------

    def changed(self, before: MetadataImage, image: MetadataImage) -> None:
        """Checks what the controller changed, and publishes it to every broker."""
        old, new = before.topics.get(TOPIC), image.topics.get(TOPIC)
        if old is not None and new is not None:
            for index, partition in new.partitions.items():
                was = old.partitions[index]
                if was != partition:
                    self._note_change(index, was, partition)
                    self.checks.on_change(index, was, partition)
        for broker in self.brokers.values():
            self.publish_to(broker)

    def _note_change(
        self, index: int, was: PartitionRegistration, now: PartitionRegistration
    ) -> None:
        seen = self.seen
        seen["partition offline"] += now.leader is None and was.leader is not None
        seen["leader from the ELR"] += now.leader is not None and now.leader in was.elr
        seen["eligible replicas"] += bool(now.elr) and not was.elr
        seen["last known leader kept"] += bool(now.last_known_elr) and not was.last_known_elr
        seen["reassignment begun"] += now.is_reassigning and not was.is_reassigning
        seen["reassignment completed"] += was.is_reassigning and not now.is_reassigning
        self.trace(f"partition {index}: {now}")

    def publish_to(self, broker: DataBroker) -> None:
        """Delivers the newest image to a broker after a while; a later one may overtake it."""
        if broker.alive:
            image = self.controller.image
            delay_ms = 1 + self.rng.randrange(self.slow_metadata_ms if self.faulty else 5)
            self.after(delay_ms, broker, lambda: broker.apply(image))

    # --- the run ----------------------------------------------------------------------------------

    def stopped(self, broker: DataBroker) -> None:
        """The controller let a broker go: it stops in order."""
        broker.stop(clean=True)
        self.faults.restart_later(broker)

    def run(self) -> PartitionOutcome:
        with self.canary.planted():
            return self._run()

    def _run(self) -> PartitionOutcome:
        for broker in self.brokers.values():
            broker.start()
        self.at(0, self._tick)
        while not all(self.controller.image.is_active(b) for b in self.brokers):
            self._step()
        self.faults.create_topic()
        self.faults.plan(self.now_ms + FAULT_TIME_MS)
        end_ms = self.now_ms + FAULT_TIME_MS
        while self.now_ms < end_ms:
            self._step()
        self.faulty = False
        self.faults.heal()
        end_ms += HEAL_TIME_MS
        while not self._is_well():
            self._step()
            if self.now_ms > end_ms:
                self._require_liveness()
        committed = sum(map(len, self.checks.committed.values()))
        elections = self.seen["leader began"]
        return PartitionOutcome(self.seed, self.events, elections, committed, self.seen)

    def _step(self) -> None:
        self.now_ms, _, work = heapq.heappop(self._queue)
        self.events += 1
        work()

    def _tick(self) -> None:
        controller = self.controller
        controller.now_ms = _START_MS + self.now_ms
        for _ in range(100):
            due_ms = controller.core.next_deadline_ms()
            if due_ms is None or due_ms > controller.now_ms:
                break
            controller.apply(controller.core.tick(controller.now_ms))
        self.at(self.now_ms + 50, self._tick)

    # --- the end ----------------------------------------------------------------------------------

    def partitions(self) -> dict[int, PartitionRegistration]:
        topic = self.controller.image.topics.get(TOPIC)
        assert topic is not None
        return dict(topic.partitions)

    def _is_well(self) -> bool:
        """Whether every partition that may have a leader is whole again."""
        image = self.controller.image
        if self.events % 20 or not all(image.is_active(b) for b in self.brokers):
            return False
        return all(self._is_whole(i, p) for i, p in self.partitions().items())

    def _is_whole(self, index: int, partition: PartitionRegistration) -> bool:
        if partition.leader is None:
            return not self._may_lead(index, partition)
        if set(partition.isr) != set(partition.replicas) or partition.is_reassigning:
            return False
        logs = [self.brokers[r].logs.get(index) for r in partition.replicas]
        first = self.brokers[partition.leader].logs.get(index)
        if first is None or any(log is None or log.records != first.records for log in logs):
            return False
        return len(self.checks.committed.get(index, ())) == first.end

    def _may_lead(self, index: int, partition: PartitionRegistration) -> bool:
        """Whether a replica that counts has its log. If none has, it stays offline: nobody knows
        what was in the logs that are gone."""
        for broker in self.brokers.values():
            log = broker.logs.get(index)
            home = partition.directory_of(broker.broker_id)
            counts = partition.counts_on(broker.broker_id)
            if log is not None and counts and home in (None, log.directory):
                return True
        return False

    def _require_liveness(self) -> None:
        states = {
            index: (
                partition,
                {
                    b.broker_id: (b.logs[index].end, b.logs[index].last_epoch)
                    for b in self.brokers.values()
                    if index in b.logs
                },
                len(self.checks.committed.get(index, ())),
            )
            for index, partition in self.partitions().items()
        }
        raise Violation(f"liveness: {HEAL_TIME_MS} ms after healing still {states}")


def run_partitions(
    seed: int, canary: PartitionCanary | None = None, *, verbose: bool = False
) -> PartitionOutcome:
    """Runs one seed to its end; any exception is its finding."""
    return PartitionWorld(seed, canary, verbose=verbose).run()
