"""Brokers: registration, heartbeats, fencing, controlled shutdown (KIP-631, KIP-841).

A broker's life as the controller sees it, by its heartbeats:

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

FENCED and SHUTDOWN_NOW are both fenced in the image; the second tells the broker to go.

A broker with very many partitions is taken out of service in steps (`sweeps`). It has reached the
state, and hears so, with the last of them; what it asks for meanwhile waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from quorum.controller import elections
from quorum.controller.elections import ElectionRules
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
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    StaleBrokerEpochError,
)
from tidemark.types import Listener
from tidemark.v1 import controller_pb2
from tidemark.v1 import metadata_pb2 as pb


class BrokerState(Enum):
    """See the table above."""

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
    """The registration the request speaks of; raises StaleBrokerEpochError when there is none."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpochError(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} is registered with epoch {broker.epoch}, not {epoch}"
        )
    return broker


@dataclass(slots=True)
class BrokerControl:
    """Generates the records of brokers' registrations and heartbeats."""

    cluster_id: str
    sessions: BrokerSessions
    sweeps: Sweeps = field(default_factory=Sweeps)

    @property
    def leaving(self) -> frozenset[int]:
        """The brokers that are being taken out of service, and are not marked yet."""
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
        InconsistentClusterIdError, InvalidRegistrationError, UnsupportedVersionError for a broker
        too old for the cluster, and DuplicateBrokerRegistrationError while another incarnation's
        session lasts.
        """
        if request.cluster_id != self.cluster_id:
            raise InconsistentClusterIdError(
                f"broker {request.broker_id} belongs to cluster {request.cluster_id!r}, this is "
                f"{self.cluster_id!r}: check meta.properties and controller.quorum.voters"
            )
        broker = _broker_from_request(request, next_offset)
        image = rules.image
        check_supported(image.features, broker.feature_ranges, f"broker {broker.broker_id}")
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
            moved = list(elections.directories_gone(broker.broker_id, gone).changes(rules))
        elif before is not None:
            if self.sessions.is_live(broker.broker_id, now_ms):
                raise DuplicateBrokerRegistrationError(
                    f"another broker {broker.broker_id} is alive; if it was this one, it is "
                    f"forgotten within {self.sessions.timeout_ms} ms"
                )
            unclean = request.previous_broker_epoch != before.epoch
            moved = self._earlier_taken_out(rules, before, unclean)
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
        """Keeps the session alive and moves the broker through the table above.

        Raises StaleBrokerEpochError for a broker that is not registered (any more).
        """
        image = rules.image
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
        self.sessions.touch(broker.broker_id, now_ms, request.current_metadata_offset)
        state, portion = self._reaction(rules, broker, request)
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
        """The state that the broker hears of, and what is to be written first."""
        now = _state_of(broker)
        if _leaving(broker.broker_id) in self.sweeps:
            return now, None
        state = self._next_state(rules.image, broker, request)
        failed = {d for d in broker.log_dirs if d.bytes in request.offline_log_dirs}
        if failed and len(failed) == len(broker.log_dirs):
            state = BrokerState.FENCED  # it has nowhere left to write
        elif failed:
            # One thing at a time: both change the same partitions. What else the broker wants, it
            # wants in its next heartbeat as well.
            return now, self._directories_failed(rules, broker, failed)
        portion = self._transition(rules, broker, state)
        reached = portion is None or portion.finished or state is BrokerState.UNFENCED
        return state if reached else now, portion

    def fence_stalest(self, rules: ElectionRules, now_ms: int) -> Portion | None:
        """Fences the broker in service that has been silent longest beyond its session, only one,
        and only when the one before is done with.

        One at a time, so that a controller that was itself stopped for a while does not fence the
        whole cluster before it hears of it.
        """
        broker_id = self.sessions.stalest(rules.image, now_ms)
        if broker_id is None or self.leaving:
            return None
        return self._transition(rules, rules.image.brokers[broker_id], BrokerState.FENCED)

    def _transition(
        self, rules: ElectionRules, broker: BrokerRegistration, state: BrokerState
    ) -> Portion | None:
        """What takes the broker from what the image says into `state`; None: it is there.

        Should only the first of very many records be written, the next controller has to find the
        rest still to do: so a broker that goes is marked last, and one that comes first.
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
            # It was fenced on its way down and thought better of it: it may lead again.
            change.in_controlled_shutdown = False
        mark = pb.MetadataRecord(broker_registration_change=change)
        # What follows is generated from the image that has the mark.
        delta = MetadataDelta(rules.image)
        delta.replay(mark)
        marked = ElectionRules(delta.apply(rules.image.offset, rules.image.epoch), rules.config)
        key = ("in service", broker.broker_id)
        portion = self.sweeps.begin(Sweep(key, elections.in_service(broker.broker_id)), marked)
        return portion._replace(records=[mark, *portion.records])

    def _directories_failed(
        self, rules: ElectionRules, broker: BrokerRegistration, failed: set[UUID]
    ) -> Portion | None:
        """The partitions there go on without the broker; the registration keeps what still
        works."""
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
        self, rules: ElectionRules, before: BrokerRegistration, unclean: bool
    ) -> list[pb.MetadataRecord]:
        """What goes before the registration of a new incarnation.

        The old one may still stand in ISRs: the new one has to earn its place. One that did not
        stop cleanly may have lost records: it is not eligible either (KIP-966). Where that is more
        than a step's work, the broker has to ask again when it is done:
        DuplicateBrokerRegistrationError.
        """
        broker_id = before.broker_id
        key = _leaving(broker_id)
        if key not in self.sweeps:
            task = elections.out_of_service(broker_id, unclean=unclean)
            sweep = Sweep(key, task, lambda image: _marks(image, before, fenced=True))
            records, left = sweep.step(rules, looked_at_max=UNLIMITED)
            if not left:
                return records
            self.sweeps.add(sweep)
        raise DuplicateBrokerRegistrationError(
            f"broker {broker_id} is still being taken out of the partitions of its earlier process"
        )

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
    """Whether that very incarnation still is; it may have been forgotten meanwhile."""
    found = image.brokers.get(broker.broker_id)
    return found is not None and found.epoch == broker.epoch


def _marks(
    image: MetadataImage, broker: BrokerRegistration, *, fenced: bool
) -> list[pb.MetadataRecord]:
    """The broker's own record, when its partitions are seen to."""
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
