"""ElectLeaders: elects preferred leaders, or any leader, on request (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterator

from quorum.controller.elections import ElectionRules
from quorum.controller.partition_change import Election
from quorum.controller.result import ControllerResult, check_operations
from quorum.image import MetadataImage, PartitionRegistration, TopicImage
from quorum.image.types import UNASSIGNED_DIRECTORY
from tidemark.errors import (
    ApiError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidRequestError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from tidemark.v1 import admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Request = admin_pb2.ElectLeadersRequest
_ELECTIONS = {_Request.PREFERRED: Election.PREFERRED, _Request.UNCLEAN: Election.UNCLEAN}


def elect_leaders(
    rules: ElectionRules, request: admin_pb2.ElectLeadersRequest
) -> ControllerResult[admin_pb2.ElectLeadersResponse]:
    """Elects leaders of the named partitions, each with its own answer, or of all that need one.

    Raises InvalidRequestError for an unknown type of election, PolicyViolationError for too many.
    """
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise InvalidRequestError(f"no election of type {request.election_type}")
    response = admin_pb2.ElectLeadersResponse()
    result = ControllerResult(response)
    asked = list(_all(rules.image, election) if request.all_partitions else _named(request))
    check_operations(len(asked))
    seen: set[tuple[str, int]] = set()
    for name, index in asked:
        if (name, index) in seen:
            continue
        seen.add((name, index))
        try:
            found = find_partition(rules.image, name, index)
            record = _elect(rules, election, *found, is_named=not request.all_partitions)
        except ApiError as error:
            _answer(response, name, index, error)
        else:
            _answer(response, name, index, None)
            result.groups.append([record])
    return result


def find_partition(
    image: MetadataImage, name: str, index: int
) -> tuple[TopicImage, int, PartitionRegistration]:
    """Returns a partition by name and index; raises UnknownTopicOrPartitionError."""
    topic = image.topics.get(name)
    partition = None if topic is None else topic.partitions.get(index)
    if topic is None or partition is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {name}-{index}")
    return topic, index, partition


def _all(image: MetadataImage, election: Election) -> Iterator[tuple[str, int]]:
    """Partitions that need an election, in order."""
    for topic in image.topics.ordered():
        needing = [i for i, p in topic.partitions.items() if _needs(p, election)]
        for index in sorted(needing):
            yield topic.name, index


def _needs(partition: PartitionRegistration, election: Election) -> bool:
    if election is Election.PREFERRED:
        return not partition.has_preferred_leader
    return partition.leader is None


def _named(request: admin_pb2.ElectLeadersRequest) -> Iterator[tuple[str, int]]:
    return ((p.topic, p.partition_index) for p in request.partitions)


def _elect(
    rules: ElectionRules,
    election: Election,
    topic: TopicImage,
    index: int,
    partition: PartitionRegistration,
    *,
    is_named: bool,
) -> pb.MetadataRecord:
    preferred = election is Election.PREFERRED
    if not _needs(partition, election):
        what = "its preferred leader" if preferred else "a leader"
        raise ElectionNotNeededError(f"{topic.name}-{index} has {what}")
    record = rules.builder(topic, index, partition, election=election).build()
    if record is not None and record.partition_change.HasField("leader"):
        return record
    if preferred:
        raise PreferredLeaderNotAvailableError(
            f"{topic.name}-{index}: replica {partition.preferred_leader} is not in sync or not in "
            "service"
        )
    bare = [r for r in partition.replicas if r not in rules.leaving and rules.image.is_active(r)]
    if not bare:
        raise EligibleLeadersNotAvailableError(
            f"{topic.name}-{index}: none of {list(partition.replicas)} is in service"
        )
    if not is_named:
        raise EligibleLeadersNotAvailableError(
            f"{topic.name}-{index}: broker {bare[0]} is in service without the log directory that"
            " had the replica. Give it back. Only if it is lost for good, name this partition:"
            " what the tier has of it comes back, and all other records are lost"
        )
    return _without_its_log(rules, topic, index, partition, bare[0])


def _without_its_log(
    rules: ElectionRules,
    topic: TopicImage,
    index: int,
    partition: PartitionRegistration,
    leader: int,
) -> pb.MetadataRecord:
    """Elects a replica whose log directory is gone, where no other replica is in service.

    Nothing counts on its records any more, so its broker makes a log anew if it certainly has none,
    and the tier's records come back.
    """
    directories = partition.directories_with(leader, UNASSIGNED_DIRECTORY)
    moved = partition._replace(directories=directories, isr=(), elr=())
    record = rules.builder(topic, index, moved, election=Election.UNCLEAN).build()
    assert record is not None, "a broker in service leads"
    change = record.partition_change
    if partition.elr:
        change.eligible_leader_replicas.SetInParent()
    if not change.directories:
        change.directories.extend(d.bytes for d in directories)
    return record


def _answer(
    response: admin_pb2.ElectLeadersResponse, name: str, index: int, error: ApiError | None
) -> None:
    response.results.add(
        topic=name,
        partition_index=index,
        error_code=0 if error is None else int(error.code),  # type: ignore[arg-type]
        error_message="" if error is None else str(error),
    )
