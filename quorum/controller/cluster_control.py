"""Brokers: registration, heartbeats, fencing, controlled shutdown (KIP-631, KIP-841).

States of a broker as the controller sees it, driven by heartbeats:

    state               | heartbeat                                  | next
    --------------------+--------------------------------------------+----------------------
    FENCED              | wants to shut down                         | SHUTDOWN_NOW
    FENCED              | has applied its registration, no want_fence| UNFENCED
    UNFENCED            | wants a fence                              | FENCED
    UNFENCED            | wants to shut down, leads partitions       | CONTROLLED_SHUTDOWN
    UNFENCED            | wants to shut down, leads nothing          | SHUTDOWN_NOW
    CONTROLLED_SHUTDOWN | leads nothing, and every active broker has | SHUTDOWN_NOW
                        | seen that                                  |
    UNFENCED, CONTROLLED_SHUTDOWN | no heartbeat for a session       | FENCED (one per pass)

FENCED and SHUTDOWN_NOW are both fenced in the image; the second allows the broker to stop.

A broker with very many partitions is taken out of service in steps (`sweeps`). It reaches the
state, and its heartbeats report it, with the last step. Other wishes of its heartbeats wait until
then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from quorum.controller import elections
from quorum.controller.elections import ElectionRules, Task
from quorum.controller.result import ControllerResult
from quorum.controller.sessions import BrokerSessions
from quorum.controller.sweeps import UNLIMITED, Key, Portion, Sweep, Sweeps
from quorum.image import (
    BrokerRegistration,
    FeatureRange,
    MetadataDelta,
    MetadataImage,
)
from quorum.image.features import check_supported
from quorum.image.records import broker_record
from quorum.image.types import is_reserved_directory
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    StaleBrokerEpochError,
)
from tidemark.types import Listener, uuid_to_text
from tidemark.v1 import controller_pb2
from tidemark.v1 import metadata_pb2 as pb


class BrokerState(Enum):
    """State of a broker; transitions are in the table of the module."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"

    @property
    def fenced(self) -> bool:
        return self in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


def _leaving(broker_id: int) -> Key:
    return ("out of service", broker_id)


def _losing_directories(broker_id: int) -> Key:
    return ("directories gone", broker_id)


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration:
    """Returns the registration that a request refers to.

    Raises StaleBrokerEpochError if there is none with this epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpochError(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} is registered with epoch {broker.epoch}, not {epoch}"
        )
    return broker


def _is_same_place(before: BrokerRegistration, broker: BrokerRegistration) -> bool:
    """Whether both have the same log directories and addresses, so that one of two alone runs.

    A copy of a disk has the same directory ids, but is reached elsewhere.
    """
    directories = set(broker.log_dirs)
    return (
        bool(directories)
        and directories <= set(before.log_dirs)
        and broker.endpoints == before.endpoints
    )


@dataclass(slots=True)
class BrokerControl:
    """Generates the records of brokers' registrations and heartbeats."""

    cluster_id: str
    sessions: BrokerSessions
    sweeps: Sweeps = field(default_factory=Sweeps)

    @property
    def leaving(self) -> frozenset[int]:
        """Brokers that are being taken out of service and are not marked as such yet."""
        return frozenset(key[1] for key in self.sweeps if key == _leaving(key[1]))

    def register(
        self,
        rules: ElectionRules,
        request: controller_pb2.RegisterBrokerRequest,
        next_offset: int,
        now_ms: int,
    ) -> ControllerResult[controller_pb2.RegisterBrokerResponse]:
        """Registers a broker, fenced; its epoch is the offset of the record.

        The same incarnation registering again keeps its epoch and state. Raises
        InconsistentClusterIdError, InvalidRegistrationError, and UnsupportedVersionError for a
        broker too old for the cluster. Raises DuplicateBrokerRegistrationError while the session of
        another incarnation lasts. But it has ended if this one holds the locks of its directories.
        """
        if request.cluster_id != self.cluster_id:
            raise InconsistentClusterIdError(
                f"broker {request.broker_id} belongs to cluster {request.cluster_id!r}, this is "
                f"{self.cluster_id!r}: check meta.properties and controller.quorum.voters"
            )
        broker = _broker_from_request(request, next_offset)
        image = rules.image
        check_supported(image.features, broker.feature_ranges, f"broker {broker.broker_id}")
        _check_directories(image, broker)
        before = image.brokers.get(broker.broker_id)
        moved: list[pb.MetadataRecord] = []
        if before is not None and before.incarnation_id == broker.incarnation_id:
            broker = replace(
                broker,
                epoch=before.epoch,
                fenced=before.fenced,
                in_controlled_shutdown=before.in_controlled_shutdown,
            )
            gone = set(before.log_dirs) - set(broker.log_dirs)
            moved = self._directories_left(rules, before, gone)
        elif before is not None:
            took_over = request.locked_log_dirs and _is_same_place(before, broker)
            if self.sessions.is_live(broker.broker_id, now_ms) and not took_over:
                raise DuplicateBrokerRegistrationError(
                    f"another broker {broker.broker_id} is alive; if it was this one, it is "
                    f"forgotten within {self.sessions.timeout_ms} ms"
                )
            unclean = request.previous_broker_epoch != before.epoch
            gone = set(before.log_dirs) - set(broker.log_dirs)
            moved = self._earlier_taken_out(
                rules, before, elections.forgotten(before, unclean=unclean, gone=gone)
            )
            broker = replace(broker, epoch=next_offset + len(moved))
        response = controller_pb2.RegisterBrokerResponse(broker_epoch=broker.epoch)
        result = ControllerResult.each([*moved, broker_record(broker)], response)
        is_new = before is None or before.epoch != broker.epoch

        def appended(_: int) -> None:
            if is_new:
                self.sessions.restart(broker.broker_id, now_ms)

        result.after_append = appended
        return result

    def heartbeat(
        self,
        rules: ElectionRules,
        request: controller_pb2.BrokerHeartbeatRequest,
        now_ms: int,
    ) -> ControllerResult[controller_pb2.BrokerHeartbeatResponse]:
        """Keeps the session alive and moves the broker through the table of the module.

        Raises StaleBrokerEpochError for a broker that is not registered, or not with this epoch.
        """
        image = rules.image
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
        self.sessions.touch(broker.broker_id, now_ms, request.current_metadata_offset)
        state, portion = self._reaction(rules, broker, request)
        if state is BrokerState.SHUTDOWN_NOW:
            # Its next process need not wait until the session is over. Should the records not be
            # appended, the broker asks again.
            self.sessions.end(broker.broker_id)
        response = controller_pb2.BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.epoch,
            is_fenced=state.fenced,
            should_shut_down=state is BrokerState.SHUTDOWN_NOW,
        )
        return ControllerResult(response) if portion is None else portion.result(response)

    def _reaction(
        self,
        rules: ElectionRules,
        broker: BrokerRegistration,
        request: controller_pb2.BrokerHeartbeatRequest,
    ) -> tuple[BrokerState, Portion | None]:
        """Returns the state to report to the broker, and the records to write before."""
        now = _state_of(broker)
        if _leaving(broker.broker_id) in self.sweeps:
            return now, None
        state = self._next_state(rules.image, broker, request)
        failed = {d for d in broker.log_dirs if d.bytes in request.offline_log_dirs}
        if failed and len(failed) == len(broker.log_dirs):
            state = BrokerState.FENCED  # no directory is left to write to
        elif failed:
            # Only one change at a time: both concern the same partitions. The broker repeats its
            # other wishes in its next heartbeat.
            return now, self._directories_failed(rules, broker, failed)
        portion = self._transition(rules, broker, state)
        reached = portion is None or portion.finished or state is BrokerState.UNFENCED
        return state if reached else now, portion

    def fence_stalest(self, rules: ElectionRules, now_ms: int) -> Portion | None:
        """Fences the broker in service that has been silent longest beyond its session.

        Fences one broker at a time, after the previous one is finished. A controller that was
        itself suspended must not fence the whole cluster before it receives heartbeats.
        """
        broker_id = self.sessions.stalest(rules.image, now_ms)
        if broker_id is None or self.leaving:
            return None
        return self._transition(rules, rules.image.brokers[broker_id], BrokerState.FENCED)

    def _transition(
        self, rules: ElectionRules, broker: BrokerRegistration, state: BrokerState
    ) -> Portion | None:
        """Takes the broker from its state in the image to `state`; None if it is there already.

        A new controller may take over after only some of the records. It must find the rest still
        to be done, so a departing broker is marked last and a returning one first.
        """
        broker_id = broker.broker_id
        if state is BrokerState.UNFENCED:
            return self._unfence(rules, broker) if broker.fenced else None
        if broker.fenced or (broker.in_controlled_shutdown and not state.fenced):
            return None
        sweep = Sweep(
            _leaving(broker_id),
            elections.out_of_service(broker_id),
            lambda image: _marks(image, broker, fenced=state.fenced),
        )
        if state is BrokerState.CONTROLLED_SHUTDOWN:
            sweep.appended = lambda offset: self.sessions.begin_shutdown(broker_id, offset)
        return self.sweeps.begin(sweep, rules)

    def _unfence(self, rules: ElectionRules, broker: BrokerRegistration) -> Portion:
        change = pb.BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=False
        )
        if broker.in_controlled_shutdown:
            # It was fenced during its shutdown and then stayed: it may lead again.
            change.in_controlled_shutdown = False
        mark = pb.MetadataRecord(broker_registration_change=change)
        # The records after the mark are generated from the image that contains it.
        delta = MetadataDelta(rules.image)
        delta.replay(mark)
        marked = ElectionRules(delta.apply(rules.image.offset, rules.image.epoch), rules.config)
        key = ("in service", broker.broker_id)
        portion = self.sweeps.begin(Sweep(key, elections.in_service(broker.broker_id)), marked)
        return portion._replace(records=[mark, *portion.records])

    def _directories_failed(
        self, rules: ElectionRules, broker: BrokerRegistration, failed: set[UUID]
    ) -> Portion | None:
        """Takes the broker out of the partitions in failed directories.

        The registration keeps the directories that still work.
        """
        key = _losing_directories(broker.broker_id)
        if key in self.sweeps:
            return None
        sweep = Sweep(
            key,
            elections.directories_gone(broker.broker_id, failed),
            lambda image: _without_directories(image, broker, failed),
        )
        return self.sweeps.begin(sweep, rules)

    def _earlier_taken_out(
        self, rules: ElectionRules, before: BrokerRegistration, task: Task
    ) -> list[pb.MetadataRecord]:
        """Returns the records that precede the registration of a new incarnation.

        The old incarnation may still be in ISRs, and the new one must catch up to join them. After
        an unclean stop it may have lost records, so it is not eligible as leader either (KIP-966).
        A log directory that the new one does not have is gone with the replicas in it.

        Raises DuplicateBrokerRegistrationError if that takes more than one step; the broker retries
        until it is done.
        """
        records = self.taken_out(rules, before, task)
        if records is None:
            raise DuplicateBrokerRegistrationError(
                f"broker {before.broker_id} is still being taken out of the partitions of its "
                "earlier process"
            )
        return records

    def _directories_left(
        self, rules: ElectionRules, before: BrokerRegistration, gone: set[UUID]
    ) -> list[pb.MetadataRecord]:
        """Returns the records that precede a registration without some of its directories.

        Raises DuplicateBrokerRegistrationError if that takes more than one step, as above.
        """
        sweep = Sweep(
            _losing_directories(before.broker_id),
            elections.directories_gone(before.broker_id, gone),
            lambda image: _without_directories(image, before, gone),
        )
        records = self._in_one_step(rules, sweep) if gone else []
        if records is None:
            raise DuplicateBrokerRegistrationError(
                f"broker {before.broker_id} is still being taken out of the partitions in the "
                "directories it has no more"
            )
        return records

    def taken_out(
        self, rules: ElectionRules, broker: BrokerRegistration, task: Task
    ) -> list[pb.MetadataRecord] | None:
        """Returns the records that take a broker out of its partitions before its registration
        ends. None if that takes more than one step: they follow, and the caller asks again.
        """
        sweep = Sweep(
            _leaving(broker.broker_id), task, lambda image: _marks(image, broker, fenced=True)
        )
        return self._in_one_step(rules, sweep)

    def _in_one_step(self, rules: ElectionRules, sweep: Sweep) -> list[pb.MetadataRecord] | None:
        """Returns all changes of a sweep, or None while it needs more steps than one."""
        if sweep.key in self.sweeps:
            return None
        records, left = sweep.step(rules, looked_at_max=UNLIMITED)
        if left:
            self.sweeps.add(sweep)
            return None
        return records

    def _next_state(
        self,
        image: MetadataImage,
        broker: BrokerRegistration,
        request: controller_pb2.BrokerHeartbeatRequest,
    ) -> BrokerState:
        if broker.fenced:
            if request.want_shut_down:
                return BrokerState.SHUTDOWN_NOW
            caught_up = request.current_metadata_offset >= broker.epoch
            wanted = caught_up and not request.want_fence
            return BrokerState.UNFENCED if wanted else BrokerState.FENCED
        if broker.in_controlled_shutdown:
            done = self.sessions.may_shut_down(
                broker.broker_id, image
            ) and not elections.has_leaderships(image, broker.broker_id)
            return BrokerState.SHUTDOWN_NOW if done else BrokerState.CONTROLLED_SHUTDOWN
        if request.want_shut_down:
            leads = elections.has_leaderships(image, broker.broker_id)
            moving = leads and not request.want_fence
            return BrokerState.CONTROLLED_SHUTDOWN if moving else BrokerState.SHUTDOWN_NOW
        return BrokerState.FENCED if request.want_fence else BrokerState.UNFENCED


def _state_of(broker: BrokerRegistration) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    if broker.in_controlled_shutdown:
        return BrokerState.CONTROLLED_SHUTDOWN
    return BrokerState.UNFENCED


def _is_registered(image: MetadataImage, broker: BrokerRegistration) -> bool:
    """Whether exactly that incarnation is registered; it may have been unregistered meanwhile."""
    found = image.brokers.get(broker.broker_id)
    return found is not None and found.epoch == broker.epoch


def _marks(
    image: MetadataImage, broker: BrokerRegistration, *, fenced: bool
) -> list[pb.MetadataRecord]:
    """The broker's own record, written after the changes of its partitions."""
    if not _is_registered(image, broker) or (fenced and image.brokers[broker.broker_id].fenced):
        return []
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch
    )
    if fenced:
        change.fenced = True
    else:
        change.in_controlled_shutdown = True
    return [pb.MetadataRecord(broker_registration_change=change)]


def _without_directories(
    image: MetadataImage, broker: BrokerRegistration, failed: set[UUID]
) -> list[pb.MetadataRecord]:
    if not _is_registered(image, broker):
        return []
    kept = image.brokers[broker.broker_id].log_dirs
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        log_dirs=[d.bytes for d in kept if d not in failed],
    )
    return [pb.MetadataRecord(broker_registration_change=change)]


def _check_directories(image: MetadataImage, broker: BrokerRegistration) -> None:
    """Raises InvalidRegistrationError for a directory that no broker, or only another one, has."""
    mine = frozenset(broker.log_dirs)
    reserved = next(filter(is_reserved_directory, mine), None)
    if reserved is not None:
        raise InvalidRegistrationError(
            f"broker {broker.broker_id}: the directory id {uuid_to_text(reserved)} is reserved: "
            "correct directory.id in meta.properties, or format the directory"
        )
    for other in image.brokers.values():
        if other.broker_id != broker.broker_id and not mine.isdisjoint(other.log_dirs):
            twin = min(mine.intersection(other.log_dirs))
            raise InvalidRegistrationError(
                f"broker {other.broker_id} is registered with the log directory "
                f"{uuid_to_text(twin)}, broker {broker.broker_id} names it as well: one is a copy, "
                f"or the disk of the other broker. Correct log.dirs; or, if broker "
                f"{other.broker_id} is gone for good, unregister it (tidemark brokers unregister)"
            )


def _broker_from_request(
    request: controller_pb2.RegisterBrokerRequest, epoch: int
) -> BrokerRegistration:
    broker_id = request.broker_id
    if broker_id < 0:
        raise InvalidRegistrationError(f"broker id {broker_id} is negative")
    if len(request.incarnation_id) != 16:
        raise InvalidRegistrationError(f"broker {broker_id}: the incarnation id is not 16 bytes")
    if any(len(directory) != 16 for directory in request.log_dirs):
        raise InvalidRegistrationError(f"broker {broker_id}: a directory id is not 16 bytes")
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise InvalidRegistrationError(f"broker {broker_id}: a log directory is named twice")
    if not request.listeners:
        raise InvalidRegistrationError(f"broker {broker_id} has no listeners")
    return BrokerRegistration(
        broker_id=broker_id,
        epoch=epoch,
        incarnation_id=UUID(bytes=request.incarnation_id),
        endpoints=tuple(Listener(e.name, e.host, e.port) for e in request.listeners),
        rack=request.rack or None,
        log_dirs=tuple(UUID(bytes=directory) for directory in request.log_dirs),
        features=tuple(FeatureRange(f.name, f.min_level, f.max_level) for f in request.features),
    )
