"""One simulated node: replica, log on a memory disk, state machine. It carries out effects as
RaftServer does, in virtual time.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    Effects,
    Event,
    LogAppended,
    LogFlushed,
    RecordsRefused,
    Resign,
    ResponseDamaged,
    ResponseReceived,
    Shutdown,
    SnapshotInstalled,
    SnapshotRejected,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Role
from quorum.raft.state import RaftInvariantError, RaftState
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.bootstrap import write_bootstrap_checkpoint
from quorum.replica.listeners import Listeners
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.sealing import is_intact
from snapshot.transfer import write_piece
from tests.sim.canaries import Canary
from tests.sim.checkpoints import Checkpoints
from tests.sim.disk_faults import copy_disk
from tests.sim.image import Image
from tests.sim.rot import Wounds
from tests.sim.serving import Serving
from tidemark.errors import (
    CorruptMessageError,
    FatalError,
    SnapshotNotFoundError,
    StorageError,
)
from tidemark.types import Endpoint

if TYPE_CHECKING:
    from tests.sim.world import World

CLUSTER_ID = "simulated-cluster"
LOG_CONFIG = MetadataLogConfig(
    segment_bytes=1024, segment_ms=1 << 40, retention_bytes=2000, retention_ms=-1
)

BOUNDS_SAVED_EVERY = 3
"""The bounds of a log are written after a flush whose end is a multiple of this."""


class Crash(Exception):
    """Loss of power at this point."""


Work = Callable[[], None]


def note_transitions(state: RaftState, seen: Counter[str]) -> None:
    """Counts every role transition of the replica, also several within one step."""
    become = state._become

    def counted(role: Role, now_ms: int) -> None:
        seen[f"{type(state.role).__name__} -> {type(role).__name__}"] += 1
        become(role, now_ms)

    state._become = counted  # type: ignore[method-assign]


def endpoint_of(node_id: int) -> Endpoint:
    return Endpoint("sim", node_id)


class SimNode:
    """A node of the world; `step` passes an event to its replica."""

    def __init__(
        self,
        world: World,
        node_id: int,
        *,
        voters: list[int],
        canary: Canary,
        dynamic: bool = False,
        auto_join: bool = False,
    ) -> None:
        """`voters` are the initial ones, in the log if `dynamic` (kraft.version 1) and static
        otherwise. Nodes with ids above 10 are brokers, which never vote."""
        self.world = world
        self.node_id = node_id
        self.canary = canary
        self.disk = MemoryDirectory(seed=world.seed * 1000 + node_id)
        self.old_disk: MemoryDirectory | None = None
        self.old_voters: VoterSet | None = None
        self.alive = False
        self.incarnation = 0
        self.disks = 0
        self.keys: set[ReplicaKey] = set()  # of disks that it lost
        self.durable_when_down = 0
        self.wounds = Wounds(self)
        self.log_start = 0
        self.clock_rate, self.clock_skew_ms, self.wall_skew_ms = 1.0, 0, 0
        self.flush_max_ms = 15
        self.state_write_max_ms = 0
        self.snapshot_write_max_ms = 5
        self.broken: set[str] = set()  # checkpoints with a flipped bit
        self.needed: str | None = None  # a checkpoint at which the log does not begin yet
        self.syncs_fail: str | None = None
        self.writes_fail = False
        self.paused_until_ms = 0
        self.asleep_since_ms: int | None = None
        self.slept_ms = 0
        self.first_voters = voters
        self.dynamic = dynamic
        self.is_mere_broker = node_id > 10
        is_voter = node_id in voters
        keys = {n: ReplicaKey(n, UUID(int=n + 1)) for n in voters}
        endpoints = {n: endpoint_of(n) for n in voters}
        if dynamic and is_voter:
            voter_set = VoterSet(Voter(keys[n], endpoints[n]) for n in voters)
            write_bootstrap_checkpoint(self.disk, voter_set)
        self.config = ReplicaConfig(
            cluster_id=CLUSTER_ID,
            key=ReplicaKey(node_id, UUID(int=node_id + 1)),
            voters=VoterSet(()) if dynamic else VoterSet.static(endpoints),
            endpoint=None if self.is_mere_broker else endpoint_of(node_id),
            bootstrap=() if is_voter and not dynamic else tuple(endpoints.values()),
            auto_join=auto_join,
            election_timeout_ms=300,
            fetch_timeout_ms=600,
            request_timeout_ms=400,
            election_backoff_max_ms=300,
            fetch_max_bytes=1500,
            fetch_snapshot_max_bytes=300,
        )

    @property
    def key(self) -> ReplicaKey:
        return self.config.key

    # --- time -----------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        """The node's steady clock: slightly wrong, and stopped while the machine is suspended."""
        return int(self._awake_ms() * self.clock_rate) + self.clock_skew_ms

    def _awake_ms(self) -> int:
        now_ms = self.world.now_ms if self.asleep_since_ms is None else self.asleep_since_ms
        return now_ms - self.slept_ms

    def wall_ms(self) -> int:
        """The node's wall clock, only for timestamps; it may be days off."""
        return self.world.now_ms + self.wall_skew_ms

    def world_time_ms(self, clock_ms: int) -> int:
        """World time at which the node's clock shows `clock_ms`."""
        moment_ms = int((clock_ms - self.clock_skew_ms) / self.clock_rate)
        while int(moment_ms * self.clock_rate) + self.clock_skew_ms < clock_ms:
            moment_ms += 1
        return moment_ms + self.slept_ms

    @property
    def is_paused(self) -> bool:
        return self.world.now_ms < self.paused_until_ms

    @property
    def is_suspended(self) -> bool:
        return self.asleep_since_ms is not None

    def suspend(self) -> None:
        """Suspends the machine, as when a virtual one is moved or saved. Unlike a stopped process
        it does not see time pass, and messages sent to it meanwhile are lost."""
        self.wake()
        self.asleep_since_ms = self.world.now_ms

    def wake(self) -> None:
        """Resumes the machine; its clock continues where it stopped."""
        if self.asleep_since_ms is not None:
            self.slept_ms += self.world.now_ms - self.asleep_since_ms
            self.asleep_since_ms = None

    # --- lifecycle ------------------------------------------------------------------------------

    def lose_disk(self) -> None:
        """Replaces the disk with an empty one; a possible voter gets a new directory id."""
        self.wounds.forget()
        self.disks += 1
        self.keys.add(self.key)
        self.broken.clear()
        self.needed = None
        self.disk = MemoryDirectory(seed=self.world.seed * 1000 + 100 * self.disks + self.node_id)
        if not self.is_mere_broker:
            directory_id = UUID(int=1000 * self.disks + self.node_id)
            key = ReplicaKey(self.node_id, directory_id)
            self.config = replace(self.config, key=key)
        self.durable_when_down = 0
        self.world.checks.on_disk_lost(self)

    def take_old_disk(self) -> None:
        """Replaces the disk with an earlier copy of it."""
        if self.old_disk is not None:
            self.wounds.forget()
            self.durable_when_down = 0
            self.broken.clear()
            self.needed = None
            self.disk = copy_disk(self.old_disk, self.world.seed * 1000 + self.node_id)
            self.world.checks.on_disk_lost(self)

    def restore_disk(self, disk: MemoryDirectory) -> None:
        """Replaces a damaged disk with a copy from before the damage."""
        self.disk = disk
        self.durable_when_down = max(self.durable_when_down, self.wounds.owed)
        self.wounds.forget()

    def move(self) -> None:
        """Changes the address from the next start on."""
        endpoint = self.config.endpoint
        if endpoint is not None:
            self.config = replace(
                self.config, endpoint=Endpoint(f"{endpoint.host}'", endpoint.port)
            )

    def make_room(self) -> None:
        """Gives the disk more room, as an operator would."""
        self.writes_fail = False
        self.disk.set_capacity(1 << 40)

    def fill_disk(self, left_bytes: int) -> None:
        """Fills the disk until only `left_bytes` of room are left."""
        self.writes_fail = True
        self.disk.set_capacity(self.disk.disk.used_bytes + left_bytes)

    def mend_disk(self) -> None:
        """Makes the disk fast, roomy and reliable; an earlier failure still takes effect."""
        self.make_room()
        self.disk.disk.failing_fsyncs.clear()
        self.flush_max_ms, self.state_write_max_ms, self.snapshot_write_max_ms = 15, 0, 5

    def start(self) -> None:
        """(Re)starts from the content of the disk."""
        self.incarnation += 1
        self.wake()
        self.paused_until_ms = 0
        now_ms = self.clock_ms()
        directory = self.disk.subdirectory("__cluster_metadata-0")
        self.disk.fsync()
        self.log: ReplicatedLog = self.canary.log(directory, LOG_CONFIG, self.wall_ms())
        rng = random.Random(self.world.rng.randrange(1 << 30))
        state = self.log.quorum_state.read()
        self.alive, self.needed = True, None
        bounds = self.log.bounds.now
        self.replica = Replica(self.config, self.log, state, rng, self.canary.parts, bounds)
        self.listeners = Listeners(self.replica, self.log)
        self.serving = Serving(self)
        self.checkpoints = Checkpoints(self)
        self.image = Image(self)
        self.listeners.add(self.image)
        self.tokens: dict[int, tuple[int, int, int]] = {}
        self.flush_scheduled = False
        self.writes_state = False
        self.inbox: deque[Event] = deque()
        note_transitions(self.replica.state, self.world.seen)
        self.world.checks.on_start(self)
        self.run(lambda: self.carry_out(self.replica.start(now_ms)))

    def crash(self) -> None:
        """Loses power: unsynced data may be lost, and the last write may be torn."""
        if not self.alive:
            return
        self.durable_when_down = self.durable_offset
        self.log_start = self.log.start_offset
        self.alive = False
        self.wounds.down()
        self.syncs_fail = None
        self.lose_power()
        self.world.trace(self, "crash")

    def lose_power(self) -> None:
        """Applies a power loss to the disk, also in the middle of a start."""
        self.world.seen["crash"] += 1
        before = self.disk.disk.lost_changes, self.disk.disk.torn_appends
        self.disk.crash()
        self.world.seen["un-synced writes lost"] += self.disk.disk.lost_changes - before[0]
        self.world.seen["write torn"] += self.disk.disk.torn_appends - before[1]

    def disk_failed(self, error: Exception) -> None:
        """Handles a failure to persist: the process stops (RULES.md rule 4) and restarts later."""
        planned = self.world.is_planned(self, error)
        if isinstance(error, RaftInvariantError) or not planned:
            raise error
        self.crash()
        self.world.restart_later(self)

    @property
    def durable_offset(self) -> int:
        """Everything below this offset survives a crash."""
        if not self.alive:
            return self.durable_when_down
        latest = self.log.latest_snapshot
        return max(self.log.durable_offset, latest.end_offset if latest is not None else 0)

    @property
    def acknowledged_offset(self) -> int:
        """The durable end, or what was durable before damage that is not healed yet."""
        return max(self.durable_offset, self.wounds.owed)

    @property
    def wrong_until(self) -> int:
        return self.wounds.wrong_until

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        if self.alive and self.is_paused:  # delivered when the process resumes
            delay_ms = self.paused_until_ms - self.world.now_ms
            self.world.after(delay_ms, self, lambda: self.step(event))
        elif self.alive and self.writes_state:
            self.inbox.append(event)
        elif self.alive:
            self.world.trace(self, type(event).__name__)
            self.run(lambda: self._step(event))

    def answered(self, correlation_id: int, response: m.Response) -> None:
        """Takes the response of another node, as RaftServer does."""
        if is_intact(response) or self.canary.trusts_answers:
            self.step(ResponseReceived(correlation_id, response))
        else:
            self.world.seen["damaged answer refused"] += 1
            self.step(ResponseDamaged(correlation_id))

    def _step(self, event: Event) -> None:
        self.carry_out(self.replica.step(event, self.clock_ms()))

    def run(self, work) -> None:
        """Runs `work`, then the steps after every event: delivery, checks, the next timer."""
        try:
            work()
            while self.listeners.deliver():
                continue
        except Crash:
            self.crash()
            return
        except (StorageError, FatalError, CorruptMessageError) as error:
            self.disk_failed(error)
            return
        self.replica.validate()
        self.wounds.look()
        self.world.checks.after_event(self)
        self.world.schedule_tick(self)

    def tick(self, incarnation: int) -> None:
        if self.alive and incarnation == self.incarnation:
            deadline_ms = self.replica.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self.clock_ms():
                self.step(Tick())

    def propose(self, values: list[bytes]) -> bool:
        """Appends as the client of this node. Returns False if the node does not lead."""
        if self.is_paused or not self.alive or not self.replica.can_append(self.replica.epoch):
            return False
        first = self.log.end_offset
        try:
            self.log.append_values(values, self.replica.epoch, self.wall_ms())
        except StorageError as error:
            self.disk_failed(error)
            return False
        self.world.checks.on_written(self, first)
        self.step(LogAppended())
        return True

    def resign(self) -> None:
        if self.alive and not self.is_paused:
            self.step(Resign(self.replica.epoch))

    def shut_down(self) -> None:
        if not self.is_paused:
            self.step(Shutdown())

    def make_snapshot(self) -> None:
        if self.alive:
            self.checkpoints.make()

    # --- effects --------------------------------------------------------------------------------

    def carry_out(self, effects: Effects) -> None:
        """Persist -> send -> apply. All other events wait while quorum-state is being written."""
        state = effects.election_state
        delay_ms = 0
        if state is not None and self.state_write_max_ms:
            delay_ms = self.world.rng.randrange(self.state_write_max_ms)
        if delay_ms == 0:
            self._persist_and_go_on(effects)
            return
        self.writes_state = True
        self.world.seen["slow write of quorum-state"] += 1

        def written() -> None:
            self.writes_state = False
            self.run(lambda: self._persist_and_go_on(effects))
            while self.alive and self.inbox and not self.writes_state:
                self.step(self.inbox.popleft())

        self.world.after(delay_ms, self, written)

    def _persist_and_go_on(self, effects: Effects) -> None:
        if effects.election_state is not None:
            self.world.checks.before_persist(self, effects.election_state)
            self.canary.write_state(self.log.quorum_state, effects.election_state)
            self.world.checks.on_persist(self, effects.election_state)
        log_changed = self._change_log(effects)
        if effects.flush and not self.flush_scheduled:
            self._begin_flush()
        if effects.install_snapshot is not None:
            self.world.after(self.world.rng.randrange(1, 20), self, self._installed(effects))
        if (effects.election_state or effects.changes_log) and self.world.chance(0.002):
            raise Crash
        for reply in effects.replies:
            self.serving.answer(reply)
        for send in effects.sends:
            self.world.send_request(self, send)
        if effects.high_watermark is not None:
            self.log.update_high_watermark(effects.high_watermark)
        if effects.tail_found:
            self.log.bounds.found_again(self.log.durable_offset)
        if effects.save_bounds:
            self._save_bounds()
        if log_changed is not None:
            self._step(log_changed)

    def _save_bounds(self) -> None:
        """Writes the bounds of the log, as RaftServer does once in a while."""
        self.log.bounds.save()
        self.world.checks.on_bounds_saved(self)

    def _change_log(self, effects: Effects) -> LogAppended | RecordsRefused | None:
        if effects.truncate_to is not None:
            self.world.checks.on_truncate(self, effects.truncate_to)
            self.log.truncate_to(effects.truncate_to, self.wall_ms())
        first = self.log.end_offset
        if effects.append_leader_change is not None:
            self.log.append_leader_change(effects.append_leader_change, self.wall_ms())
            self.world.checks.on_written(self, first)
        if effects.append_voters is not None:
            self.world.checks.on_voters(self, effects.append_voters)
            self.log.append_voters(effects.append_voters, self.replica.epoch, self.wall_ms())
            self.world.checks.on_written(self, first)
        if effects.append_records:
            try:
                epoch = self.replica.epoch
                self.log.append_fetched(effects.append_records, epoch, self.wall_ms())
            except CorruptMessageError as error:
                return RecordsRefused(str(error))
        if effects.snapshot_piece is not None:
            piece = effects.snapshot_piece
            write_piece(self.log.directory, piece.snapshot_id, piece.position, piece.data)
        return LogAppended() if effects.changes_log else None

    def _begin_flush(self) -> None:
        """Starts an fsync; other events proceed until it completes."""
        if self.canary.skips_fsync:
            self.flush_scheduled = True
            self.world.after(1, self, lambda: self._flushed(self.log.end_offset))
            return
        self.flush_scheduled = True
        end_offset, pending = self.log.prepare_flush()

        def done() -> None:
            if pending is not None:
                try:
                    pending.run()
                except (StorageError, FatalError) as error:
                    if isinstance(error, StorageError) or not self.canary.retries_fsync:
                        self.disk_failed(error)
                        return
                self.log.complete_flush(pending)
            self._flushed(end_offset)

        delay_ms = self.world.rng.randrange(1, self.flush_max_ms)
        self.world.seen["slow fsync of the log"] += delay_ms > 15
        self.world.after(delay_ms, self, done)

    def _flushed(self, end_offset: int) -> None:
        self.flush_scheduled = False
        if end_offset % BOUNDS_SAVED_EVERY == 0:
            try:
                self._save_bounds()
            except (StorageError, FatalError) as error:
                self.disk_failed(error)
                return
        if not self.canary.skips_fsync and end_offset < self.log.end_offset:
            self._begin_flush()
        self.step(LogFlushed(end_offset))

    def _installed(self, effects: Effects):
        snapshot_id = effects.install_snapshot
        assert snapshot_id is not None

        def done() -> None:
            self.world.checks.on_install(self, snapshot_id)
            try:
                self.log.freeze_fetched_snapshot(snapshot_id)
            except (CorruptMessageError, SnapshotNotFoundError):
                self.step(SnapshotRejected(snapshot_id))
                return
            except (StorageError, FatalError) as error:
                self.disk_failed(error)
                return
            if self.world.chance(0.1):  # the log does not begin at the checkpoint yet
                self.world.seen["crash while a checkpoint is installed"] += 1
                diverges = self.log._is_behind(snapshot_id)
                self.crash()
                self.needed = snapshot_id.name
                if diverges:  # the next start replaces other records by the checkpoint
                    self.durable_when_down = snapshot_id.end_offset
                self.world.restart_later(self)
                return
            self.log.start_at_fetched_snapshot(snapshot_id, self.wall_ms())
            self.world.trace(self, f"installed {snapshot_id.name}")
            self.step(SnapshotInstalled(snapshot_id))

        return done
