"""The answer to a client's Metadata request: live brokers, topics, leaders. Pure, from an image."""

from __future__ import annotations

from collections.abc import Callable

from quorum.image import MetadataImage, TopicImage
from quorum.services.admin_answers import INTERNAL_PREFIX, node_of, offline_replicas
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2 as pb


def metadata_response(
    image: MetadataImage,
    request: pb.MetadataRequest,
    cluster_id: str,
    controller_id: int | None,
    listener: str | None,
    is_opening: Callable[[TopicPartition], bool] = lambda _: False,
) -> pb.MetadataResponse:
    """Brokers at `listener`, and the requested topics or all. Unknown topics have
    UNKNOWN_TOPIC_OR_PARTITION. Partitions that the answering node leads and `is_opening` have
    LEADER_NOT_AVAILABLE."""
    response = pb.MetadataResponse(
        cluster_id=cluster_id, controller_id=-1 if controller_id is None else controller_id
    )
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        if not broker.fenced:
            response.brokers.append(node_of(broker, listener))
    names = image.topics.names() if request.all_topics else list(request.topics)
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            response.topics.add(
                name=name,
                error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # type: ignore[arg-type]
            )
        else:
            _add_topic(response, image, topic, is_opening)
    return response


def _add_topic(
    response: pb.MetadataResponse,
    image: MetadataImage,
    topic: TopicImage,
    is_opening: Callable[[TopicPartition], bool],
) -> None:
    answer = response.topics.add(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.name.startswith(INTERNAL_PREFIX),
    )
    for index, partition in topic.ordered():
        leader = partition.leader
        led = (
            leader is not None
            and leader in image.brokers
            and not is_opening(TopicPartition(topic.name, index))
        )
        code = ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE
        answer.partitions.add(
            error_code=int(code),  # type: ignore[arg-type]
            partition_index=index,
            leader_id=-1 if leader is None else leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=offline_replicas(image, partition),
        )
