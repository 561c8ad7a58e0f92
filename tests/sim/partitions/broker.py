"""A broker of the simulated cluster: the production partition core over modelled logs.

It keeps the node's order. An image's registrations are applied before its settings. Leaders answer
fetches, propose ISRs and repeat proposals without an answer. Followers truncate by epochs, append,
and acknowledge with the next fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.manager.placement import check_home, home_of_new
from node.partition.core import (
    AlterResult,
    BrokerView,
    IsrProposal,
    Partition,
    Role,
)
from node.replication.hosting import registration_of
from quorum.controller.configs import TopicSettings
from quorum.image import MetadataImage, PartitionRegistration
from quorum.image.types import LOST_DIRECTORY
from tests.sim.partitions.log import ModelLog, Record
from tidemark.errors import ApiError, ErrorCode, NotEnoughReplicasError, StorageError
from tidemark.types import TopicIdPartition, TopicPartition
from tidemark.v1 import controller_pb2

if TYPE_CHECKING:
    from tests.sim.partitions.world import PartitionWorld

TOPIC = "t"
LAG_MAX_MS = 900
RETRY_MS = 250
HEARTBEAT_MS = 250
FETCHED_MAX = 8


@dataclass(frozen=True)
class _Place:
    """One entry of log.dirs, for the production's choice of a home."""

    directory_id: UUID
    failure: str
    path: str = "disk"


class DataBroker:
    """One broker; `start` and `stop` any number of times. Its logs outlive its processes."""

    def __init__(self, world: PartitionWorld, broker_id: int, directories: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.directories = [world.new_directory() for _ in range(directories)]
        self.failed: set[UUID] = set()  # found by the running process
        self.logs: dict[int, ModelLog] = {}
        self.given_up: dict[int, ModelLog] = {}  # damaged, and not made anew yet
        self.alive = False
        self.life = 0
        self.clean_epoch = -1  # in the file of a clean shutdown
        self.stopping = False
        self.reset()

    def reset(self) -> None:
        """Drops everything that is in the memory of the process."""
        self.logs = self.given_up | self.logs
        self.given_up = {}
        self.epoch: int | None = None
        self.image: MetadataImage | None = None
        self.views: dict[int, BrokerView] = {}
        self.cores: dict[int, Partition] = {}
        self.offline: dict[int, bool] = {}  # whether the log itself is missing
        self.saw_image = False
        self.told: dict[int, int] = {}  # high watermark that the checks know
        self.paused_until_ms = 0

    # --- the process ------------------------------------------------------------------------------

    def start(self) -> None:
        self.reset()
        self.life += 1
        self.alive, self.stopping = True, False
        self.failed.clear()
        self.incarnation = UUID(int=self.broker_id * 100_000 + self.life)
        self.previous_epoch, self.clean_epoch = self.clean_epoch, -1
        self._register()

    def stop(self, *, clean: bool = False) -> None:
        """Ends the process; `clean` after the controller let it go."""
        if not self.alive:
            return
        self.clean_epoch = -1 if not clean or self.epoch is None else self.epoch
        for index, log in self.logs.items():
            core = self.cores.get(index)
            if core is not None and (clean or self.world.rng.random() < 0.5):
                log.checkpoint = max(0, min(core.high_watermark, log.end))
            if clean:
                log.flush()
        self.alive = False
        self.life += 1
        self.reset()

    def lose_power(self) -> None:
        self.stop()
        for log in self.logs.values():
            self.world.seen["un-flushed records lost"] += log.lose_power() > 0

    def replace_directory(self, directory: UUID) -> None:
        """Has an empty directory with another id in the place of one of a stopped broker."""
        assert not self.alive
        self.clean_epoch = -1
        self.directories[self.directories.index(directory)] = self.world.new_directory()
        for index in [i for i, log in self.logs.items() if log.directory == directory]:
            del self.logs[index]

    def fail_directory(self) -> None:
        """Fails one of several directories while the process runs: its partitions go offline."""
        directory = self.world.rng.choice(self.directories)
        self.failed.add(directory)
        for index, log in self.logs.items():
            if log.directory == directory:
                self.cores.pop(index, None)

    def find_damage(self, index: int) -> None:
        """Finds damage in a replica: it is given up as `Hosting` does, if others are in sync."""
        core = self.cores.get(index)
        found = None if self.image is None else dict(self._partitions(self.image)).get(index)
        if core is None or found is None or self.logs[index].directory in self.failed:
            return
        others = core.isr.intersection(found.isr)
        if core.pending is not None:
            others &= {member.broker_id for member in core.pending.new_isr}
        if others - {self.broker_id} and found.directory_of(self.broker_id) != LOST_DIRECTORY:
            self.world.seen["replica given up"] += 1
            del self.cores[index]
            self.given_up[index] = self.logs.pop(index)
            self.offline[index] = True
            self._tell_directories()

    # --- calls to the controller ------------------------------------------------------------------

    def _register(self) -> None:
        request = controller_pb2.RegisterBrokerRequest(
            broker_id=self.broker_id,
            cluster_id=self.world.controller.cluster_id,
            incarnation_id=self.incarnation.bytes,
            previous_broker_epoch=self.previous_epoch,
            log_dirs=[d.bytes for d in self.directories],
            features=self.world.features,
        )
        request.listeners.add(name="PLAINTEXT", host="sim", port=9_000 + self.broker_id)

        def answered(response: controller_pb2.RegisterBrokerResponse) -> None:
            was_registered, self.epoch = self.epoch is not None, response.broker_epoch
            self.world.publish_to(self)
            if not was_registered:
                self._heartbeat()
                self.world.every(self, 400, self._shrink)
                self.world.every(self, 300, self._flush)
                self.world.every(self, 200, self._tell_directories)

        self.world.call(self, request, answered, retry=self._register)

    def _heartbeat(self) -> None:
        assert self.epoch is not None
        request = controller_pb2.BrokerHeartbeatRequest(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=-1 if self.image is None else self.image.offset,
            want_fence=self.image is None or self.image.offset < self.epoch,
            want_shut_down=self.stopping,
            offline_log_dirs=[d.bytes for d in sorted(self.failed)],
        )

        def answered(response: controller_pb2.BrokerHeartbeatResponse) -> None:
            if self.stopping and response.should_shut_down:
                self.world.seen["broker stopped in order"] += 1
                self.world.stopped(self)

        self.world.call(self, request, answered, stale=self._register_again)
        self.world.after(HEARTBEAT_MS, self, self._heartbeat)

    def _register_again(self) -> None:
        """Registers anew after a late request of an earlier process took this one's place."""
        self.world.seen["registered again"] += 1
        self.previous_epoch = -1
        self._register()

    def _tell_directories(self) -> None:
        """Reports where replicas are, as far as the image has them elsewhere or nowhere."""
        if self.image is None or self.epoch is None:
            return
        request = controller_pb2.AssignReplicasToDirsRequest(
            broker_id=self.broker_id, broker_epoch=self.epoch
        )
        homes: dict[UUID, list[int]] = {}
        for index, found in self._partitions(self.image):
            log, known = self.logs.get(index), found.directory_of(self.broker_id)
            if self.broker_id not in found.replicas:
                continue
            if index in self.offline:
                if self.offline[index] and known != LOST_DIRECTORY:
                    homes.setdefault(LOST_DIRECTORY, []).append(index)
                continue
            if log is None:
                continue
            if log.directory in self.failed:
                if known != log.directory:
                    homes.setdefault(LOST_DIRECTORY, []).append(index)
            elif known != log.directory and (known is not None or len(self.directories) > 1):
                homes.setdefault(log.directory, []).append(index)
        for directory, indexes in homes.items():
            row = request.directories.add(id=directory.bytes)
            for index in indexes:
                row.partitions.add(topic_id=self.world.topic_id.bytes, partition_index=index)
        if homes:
            self.world.seen["directories told"] += 1
            self.world.call(self, request, lambda _: None)

    def _submit(self, proposal: IsrProposal | None) -> None:
        if proposal is None or self.epoch is None:
            return
        index = proposal.partition.partition
        request = controller_pb2.AlterPartitionRequest(
            broker_id=self.broker_id, broker_epoch=self.epoch
        )
        data = request.partitions.add(
            topic_id=self.world.topic_id.bytes,
            partition_index=index,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            leader_recovery_state=int(proposal.recovering),  # type: ignore[arg-type]
        )
        for member in proposal.new_isr:
            data.new_isr.add(broker_id=member.broker_id, broker_epoch=member.broker_epoch)

        def again() -> None:
            core = self.cores.get(index)
            if core is not None and core.pending is proposal:
                self._submit(proposal)

        def answered(response: controller_pb2.AlterPartitionResponse) -> None:
            core, answer = self.cores.get(index), response.partitions[0]
            if core is None:
                return
            if answer.error_code != ErrorCode.NONE:
                retried = core.on_alter_error(proposal, ErrorCode(answer.error_code))
                if retried is not None:
                    self.world.after(RETRY_MS, self, again)
                return
            self.world.seen["ISR changed"] += 1
            result = AlterResult(
                None if answer.leader_id < 0 else answer.leader_id,
                answer.leader_epoch,
                tuple(answer.isr),
                answer.partition_epoch,
                answer.leader_recovery_state == 1,
                tuple(answer.eligible_leader_replicas),
            )
            core.on_alter_result(result, self.world.now_ms)
            self._note(index)

        self.world.call(self, request, answered, retry=again)

    # --- metadata ---------------------------------------------------------------------------------

    def _partitions(self, image: MetadataImage) -> list[tuple[int, PartitionRegistration]]:
        topic = image.topics.get(TOPIC)
        return [] if topic is None else sorted(topic.partitions.items())

    def apply(self, image: MetadataImage) -> None:
        """Applies a newer image. A process begins with one that has its own registration."""
        if self.epoch is None or image.offset < self.epoch:
            return
        if self.image is not None and image.offset <= self.image.offset:
            return
        before, self.image = self.image, image
        self.views = {b.broker_id: BrokerView(b.epoch, b.is_active) for b in image.brokers.values()}
        known = {} if before is None else dict(self._partitions(before))
        for index, found in self._partitions(image):
            if known.get(index) != found:
                self._reconcile(index, found)
        min_isr = self._min_isr()
        self.saw_image = True
        for index, core in self.cores.items():
            core.min_insync_replicas = min_isr
            core.maybe_advance_high_watermark(self.world.now_ms)
            self._note(index)

    def _min_isr(self) -> int:
        assert self.image is not None
        return TopicSettings(self.image, self.world.controller.config).min_isr(TOPIC)

    def _brokers(self) -> Mapping[int, BrokerView]:
        return self.views

    def _reconcile(self, index: int, found: PartitionRegistration) -> None:
        if self.broker_id not in found.replicas:
            self.cores.pop(index, None)
            self.logs.pop(index, None)
            self.given_up.pop(index, None)
            self.offline.pop(index, None)
            return
        core = self.cores.get(index) or self._host(index, found)
        if core is None:
            return
        log = self.logs[index]
        was_led_in = core.leader_epoch if core.role is Role.LEADER else -1
        new_epoch = core.apply(registration_of(found), log.end, self.world.now_ms)
        if core.role is Role.LEADER:
            if new_epoch or was_led_in != core.leader_epoch:
                log.begin_epoch(core.leader_epoch)
                self.told.pop(index, None)
                self.world.seen["leader began"] += 1
                self.world.checks.on_led(
                    self, index, core.leader_epoch, log, recovering=core.recovering
                )
            self._submit(core.maybe_recover())
            core.maybe_advance_high_watermark(self.world.now_ms)
            self._note(index)
        elif new_epoch and core.leader is not None:
            self._fetch_later(index, core.leader_epoch)

    def _host(self, index: int, found: PartitionRegistration) -> Partition | None:
        """Makes the core, and the log where there is none; None while its directory is offline."""
        try:
            log = self._open(index, found)
        except StorageError as error:
            self.world.seen["log not made anew"] += 1
            self.offline[index] = not isinstance(error, LogDirectoryOfflineError)
            return None
        self.offline.pop(index, None)
        identity = TopicIdPartition(self.world.topic_id, TOPIC, index)
        core = Partition(
            identity, self.broker_id, self._brokers, self._min_isr(), lag_max_ms=LAG_MAX_MS
        )
        core.on_truncate(log.end, log.checkpoint)
        self.cores[index] = core
        return core

    def _open(self, index: int, found: PartitionRegistration) -> ModelLog:
        """Returns the log of a replica, by the rules of the log manager; raises StorageError."""
        places = [_Place(d, "failed" if d in self.failed else "") for d in self.directories]
        known = found.directory_of(self.broker_id)
        assigned = None if known == LOST_DIRECTORY else known
        is_old = known is not None or not self.saw_image or index in self.offline
        may_hold_data = is_old and found.counts_on(self.broker_id)
        name = TopicPartition(TOPIC, index)
        if index in self.given_up and (may_hold_data or known != LOST_DIRECTORY):
            raise StorageError("damaged")
        log = self.logs.get(index)
        if log is not None:
            if log.directory in self.failed:
                raise LogDirectoryOfflineError("failed")
            if may_hold_data:
                check_home(name, places, assigned)
            return log
        home = home_of_new(
            name,
            places,
            preferred=None,
            assigned=assigned,
            may_hold_data=may_hold_data,
            logs_in=lambda _: 0,
        )
        log = self.logs[index] = ModelLog(home.directory_id)
        self.world.seen["replica copied anew"] += self.given_up.pop(index, None) is not None
        return log

    # --- leading ----------------------------------------------------------------------------------

    def produce(self, index: int, record_count: int, *, all_replicas: bool) -> None:
        core = self.cores.get(index)
        if core is None or core.role is not Role.LEADER:
            return
        if all_replicas:
            try:
                core.check_enough_replicas()
            except NotEnoughReplicasError:
                self.world.seen["produce refused: too few in sync"] += 1
                return
        log = self.logs[index]
        log.append([(core.leader_epoch, self.world.next_record()) for _ in range(record_count)])
        core.on_append(log.end, self.world.now_ms)
        self._note(index)

    def on_fetch(
        self, index: int, replica: int, replica_epoch: int, epoch: int, offset: int, last: int
    ) -> tuple[int, tuple[int, int] | None, list[Record], int] | None:
        """Answers a follower's fetch: (leader epoch, diverging epoch, records, high watermark);
        None for an error."""
        core = self.cores.get(index)
        if core is None:
            return None
        try:
            core.check_leader_epoch(epoch)
            core.check_leader()
            core.check_follower(replica, replica_epoch)
        except ApiError:
            return None
        log = self.logs[index]
        own = log.end_of_epoch(last) if last >= 0 else None
        if last >= 0 and (own is None or own[0] < last or own[1] < offset):
            return epoch, own or (-1, 0), [], core.high_watermark
        if offset > log.end:
            return None
        core.on_follower_fetch(replica, replica_epoch, offset, 0, self.world.now_ms)
        if replica not in core.isr:
            self._submit(core.maybe_expand_isr(replica))
        self._note(index)
        return epoch, None, log.records[offset : offset + FETCHED_MAX], core.high_watermark

    def _shrink(self) -> None:
        for index, core in list(self.cores.items()):
            if core.role is Role.LEADER:
                self._submit(core.maybe_shrink_isr(self.world.now_ms))
                core.maybe_advance_high_watermark(self.world.now_ms)
                self._note(index)

    def _note(self, index: int) -> None:
        """Reports a leader's high watermark to the checks, if it moved."""
        core = self.cores.get(index)
        if core is None or core.role is not Role.LEADER:
            return
        if core.high_watermark > self.told.get(index, -1):
            self.told[index] = core.high_watermark
            self.world.checks.on_high_watermark(self, index, core.leader_epoch, core.high_watermark)

    def _flush(self) -> None:
        for index in list(self.logs):
            if self.world.rng.random() < 0.4:
                self.logs[index].flush()

    # --- following --------------------------------------------------------------------------------

    def _fetch_later(self, index: int, epoch: int) -> None:
        """Schedules the next fetch of an epoch; a new epoch has its own chain of fetches."""
        self.world.after(self.world.fetch_delay_ms(), self, lambda: self._fetch(index, epoch))

    def _fetch(self, index: int, epoch: int) -> None:
        core = self.cores.get(index)
        if core is None or core.leader_epoch != epoch or core.role is Role.LEADER:
            return
        log = self.logs[index]
        leader, offset, last = core.leader, log.end, log.last_epoch
        assert leader is not None and self.epoch is not None
        own_epoch = self.epoch

        def served(target: DataBroker) -> object:
            return target.on_fetch(
                index, self.broker_id, own_epoch, epoch, offset, -1 if last is None else last
            )

        def answered(answer: object) -> None:
            if self.cores.get(index) is core and core.leader_epoch == epoch:
                if core.role is Role.FOLLOWER and answer is not None and log.end == offset:
                    self._take(index, core, log, answer)
                self._fetch_later(index, epoch)

        self.world.ask_broker(
            self, leader, served, answered, lost=lambda: self._fetch_later(index, epoch)
        )

    def _take(self, index: int, core: Partition, log: ModelLog, answer: object) -> None:
        _, diverging, records, high_watermark = answer  # type: ignore[misc]
        if diverging is not None:
            epoch, end = diverging
            own = log.end_of_epoch(epoch) if epoch >= 0 else None
            target = min(end, log.end) if epoch < 0 or own is None else own[1]
            if own is not None and own[0] == epoch:
                target = min(target, end)
            self.world.seen["log truncated"] += target < log.end
            log.truncate(target)
            core.on_truncate(log.end, core.high_watermark)
            return
        log.append(list(records))
        core.log_end_offset = log.end
        core.on_leader_high_watermark(high_watermark)
