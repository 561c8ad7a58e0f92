"""AlterPartition: a leader proposes a new ISR to the controller (KIP-497, KIP-841, KIP-903).

The checks follow Kafka's order, so the error determines the leader's next step. It fetches newer
metadata on NOT_CONTROLLER, FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION. It gives the change up
on INVALID_REQUEST, and retries without a member on INELIGIBLE_REPLICA.

The broker epoch of each new member keeps a restarted broker with an empty disk out of an ISR that
its earlier incarnation belonged to.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorum.controller.cluster_control import check_broker_epoch
from quorum.controller.elections import ElectionRules
from quorum.controller.partition_change import Election, find_partition_by_id
from quorum.controller.result import ControllerResult
from quorum.image import (
    LeaderRecoveryState,
    MetadataImage,
    PartitionRegistration,
    intern_ids,
)
from quorum.image.records import leader_to_wire, partition_after_change
from tidemark.errors import (
    ApiError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotControllerError,
)
from tidemark.v1 import controller_pb2
from tidemark.v1 import metadata_pb2 as pb

# A follower's broker epoch that its leader does not know; then only its registration counts.
_UNKNOWN_EPOCH = -1
_RECOVERY_STATES = frozenset(LeaderRecoveryState)

_Asked = controller_pb2.AlterPartitionRequest.PartitionData


def alter_partitions(
    rules: ElectionRules, request: controller_pb2.AlterPartitionRequest
) -> ControllerResult[controller_pb2.AlterPartitionResponse]:
    """Applies the proposed ISR changes, each partition with its own answer.

    Raises StaleBrokerEpochError if the leader that asks is not the registered broker.
    """
    check_broker_epoch(rules.image, request.broker_id, request.broker_epoch)
    response = controller_pb2.AlterPartitionResponse()
    result = ControllerResult(response)
    seen: set[tuple[bytes, int]] = set()
    for asked in request.partitions:
        try:
            if (asked.topic_id, asked.partition_index) in seen:
                raise InvalidRequestError("the partition is named twice in one request")
            seen.add((asked.topic_id, asked.partition_index))
            after, record = _alter(rules, request.broker_id, asked)
        except ApiError as error:
            response.partitions.add(
                topic_id=asked.topic_id,
                partition_index=asked.partition_index,
                error_code=int(error.code),  # type: ignore[arg-type]
            )
            continue
        if record is not None:
            result.groups.append([record])
        # If the asker is no longer the leader (it may be shutting down), the change stands. The
        # error keeps the asker from taking the answer for a new ISR of its own.
        leads = after.leader == request.broker_id
        _answer(response, asked, after, 0 if leads else NewLeaderElectedError.code)
    return result


def _alter(
    rules: ElectionRules, broker_id: int, asked: _Asked
) -> tuple[PartitionRegistration, pb.MetadataRecord | None]:
    """Returns the partition after the change, and the change record if anything changes."""
    topic, before = find_partition_by_id(rules.image, asked.topic_id, asked.partition_index)
    _check_epochs(before, broker_id, asked)
    members = {member.broker_id: member.broker_epoch for member in asked.new_isr}
    _check_isr(rules, before, broker_id, asked, members)
    builder = rules.builder(topic, asked.partition_index, before, election=Election.ONLINE)
    builder.target_isr = intern_ids(members)
    builder.target_recovery_state = LeaderRecoveryState(asked.leader_recovery_state)
    record = builder.build()
    if record is None:
        return before, None
    return partition_after_change(before, record.partition_change), record


def _answer(
    response: controller_pb2.AlterPartitionResponse,
    asked: _Asked,
    after: PartitionRegistration,
    code: int,
) -> None:
    response.partitions.add(
        topic_id=asked.topic_id,
        partition_index=asked.partition_index,
        error_code=int(code),  # type: ignore[arg-type]
        leader_id=leader_to_wire(after.leader),
        leader_epoch=after.leader_epoch,
        isr=after.isr,
        partition_epoch=after.partition_epoch,
        leader_recovery_state=after.leader_recovery_state,
        eligible_leader_replicas=after.elr,
        last_known_elr=after.last_known_elr,
    )


def _check_epochs(before: PartitionRegistration, broker_id: int, asked: _Asked) -> None:
    """Checks that the asker's epochs are this controller's: neither ahead nor behind."""
    if asked.leader_epoch > before.leader_epoch or asked.partition_epoch > before.partition_epoch:
        raise NotControllerError("the request knows epochs this controller has not heard of")
    if asked.leader_epoch < before.leader_epoch:
        raise FencedLeaderEpochError(f"the leader epoch is {before.leader_epoch}")
    if broker_id != before.leader:
        raise InvalidRequestError(f"the leader is {before.leader}, not {broker_id}")
    if asked.partition_epoch < before.partition_epoch:
        raise InvalidUpdateVersionError(f"the partition epoch is {before.partition_epoch}")


def _check_isr(
    rules: ElectionRules,
    before: PartitionRegistration,
    broker_id: int,
    asked: _Asked,
    members: Mapping[int, int],
) -> None:
    """Checks the members of a new ISR. `members` maps their ids, in its order, to broker epochs."""
    ids = list(members)
    if not ids or len(ids) != len(asked.new_isr) or not members.keys() <= set(before.replicas):
        raise InvalidRequestError(f"{ids} is no ISR of the replicas {list(before.replicas)}")
    if broker_id not in members:
        raise InvalidRequestError(f"the ISR {ids} lacks its leader {broker_id}")
    if asked.leader_recovery_state not in _RECOVERY_STATES:
        raise InvalidRequestError(f"no recovery state {asked.leader_recovery_state}")
    if asked.leader_recovery_state == LeaderRecoveryState.RECOVERING:
        if len(ids) > 1:
            raise InvalidRequestError("a recovering leader is alone in its ISR")
        if before.leader_recovery_state is LeaderRecoveryState.RECOVERED:
            raise InvalidRequestError("a recovered leader does not recover again")
    for member_id, epoch in members.items():
        _check_member(rules.image, member_id, epoch)
        # A broker that is being taken out may still be a member until its sweep removes it. It must
        # not become a member behind the sweep.
        if member_id in rules.leaving and member_id not in before.isr:
            raise IneligibleReplicaError(f"broker {member_id} is being taken out of service")


def _check_member(image: MetadataImage, member_id: int, epoch: int) -> None:
    broker = image.brokers.get(member_id)
    if broker is None or not broker.is_active:
        raise IneligibleReplicaError(f"broker {member_id} is fenced or shutting down")
    if epoch not in (_UNKNOWN_EPOCH, broker.epoch):
        raise IneligibleReplicaError(
            f"broker {member_id} registered anew: its epoch is {broker.epoch}"
        )
