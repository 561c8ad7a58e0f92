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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from quorum.controller import elections
from quorum.controller.elections import ElectionRules
from quorum.controller.result import ControllerResult
from quorum.controller.sessions import BrokerSessions
from quorum.features import check_supported
from quorum.image import BrokerRegistration, FeatureRange, Listener, MetadataImage
from quorum.image.records import broker_record
from tidemark.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    StaleBrokerEpochError,
)
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
class ClusterControl:
    """Generates the records of brokers' registrations and heartbeats."""

    cluster_id: str
    sessions: BrokerSessions

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
            moved = elections.directories_offline(rules, broker.broker_id, gone)
        elif before is not None:
            if self.sessions.is_live(broker.broker_id, now_ms):
                raise DuplicateBrokerRegistrationError(
                    f"another broker {broker.broker_id} is alive; if it was this one, it is "
                    f"forgotten within {self.sessions.timeout_ms} ms"
                )
            # The old incarnation may still stand in ISRs: the new one has to earn its place. One
            # that did not stop cleanly may have lost records: it is not eligible either (KIP-966).
            unclean = request.previous_broker_epoch != before.epoch
            moved = elections.broker_out_of_service(rules, broker.broker_id, unclean=unclean)
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
        state = self._next_state(image, broker, request)
        failed = {d for d in broker.log_dirs if d.bytes in request.offline_log_dirs}
        if failed and len(failed) == len(broker.log_dirs):
            state = BrokerState.FENCED  # it has nowhere left to write
            records = _transition(rules, broker, state)
        elif failed:
            # One thing at a time: both change the same partitions. What else the broker wants, it
            # wants in its next heartbeat as well.
            state = _state_of(broker)
            records = _directories_failed(rules, broker, failed)
        else:
            records = _transition(rules, broker, state)
        result = ControllerResult.each(
            records,
            controller_pb2.BrokerHeartbeatResponse(
                is_caught_up=request.current_metadata_offset >= broker.epoch,
                is_fenced=state.fenced,
                should_shut_down=state is BrokerState.SHUTDOWN_NOW,
            ),
        )
        if state is BrokerState.CONTROLLED_SHUTDOWN and records:
            result.after_append = lambda offset: self.sessions.begin_shutdown(
                broker.broker_id, offset
            )
        return result

    def fence_stalest(self, rules: ElectionRules, now_ms: int) -> list[pb.MetadataRecord]:
        """Fences the broker in service that has been silent longest beyond its session, only one.

        One at a time, so that a controller that was itself stopped for a while does not fence the
        whole cluster before it hears of it.
        """
        broker_id = self.sessions.stalest(rules.image, now_ms)
        if broker_id is None:
            return []
        broker = rules.image.brokers[broker_id]
        return _transition(rules, broker, BrokerState.FENCED)

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


def _transition(
    rules: ElectionRules,
    broker: BrokerRegistration,
    state: BrokerState,
) -> list[pb.MetadataRecord]:
    """The records that take the broker from what the image says into `state`.

    Should only the first of very many be written, the next controller has to find the rest still to
    do: so a broker that goes is marked last, and one that comes first.
    """
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch
    )
    mark = pb.MetadataRecord(broker_registration_change=change)
    if state is BrokerState.UNFENCED:
        if not broker.fenced:
            return []
        mark.broker_registration_change.fenced = False
        if broker.in_controlled_shutdown:
            # It was fenced on its way down and thought better of it: it may lead again.
            mark.broker_registration_change.in_controlled_shutdown = False
        return [mark, *elections.broker_in_service(rules, broker.broker_id)]
    if state.fenced:
        if broker.fenced:
            return []
        mark.broker_registration_change.fenced = True
    else:
        if broker.in_controlled_shutdown:
            return []
        mark.broker_registration_change.in_controlled_shutdown = True
    return [*elections.broker_out_of_service(rules, broker.broker_id), mark]


def _state_of(broker: BrokerRegistration) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    if broker.in_controlled_shutdown:
        return BrokerState.CONTROLLED_SHUTDOWN
    return BrokerState.UNFENCED


def _directories_failed(
    rules: ElectionRules, broker: BrokerRegistration, failed: set[UUID]
) -> list[pb.MetadataRecord]:
    """The partitions there go on without the broker; the registration keeps what still works."""
    change = pb.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        log_dirs=[d.bytes for d in broker.log_dirs if d not in failed],
    )
    return [
        *elections.directories_offline(rules, broker.broker_id, failed),
        pb.MetadataRecord(broker_registration_change=change),
    ]


def unregister_broker(rules: ElectionRules, broker_id: int) -> list[pb.MetadataRecord]:
    """Forgets a broker; its replicas stay assigned. Raises BrokerIdNotRegisteredError."""
    broker = rules.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"no broker {broker_id} is registered")
    record = pb.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return [
        *elections.broker_out_of_service(rules, broker_id, unclean=True),
        pb.MetadataRecord(unregister_broker=record),
    ]


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
