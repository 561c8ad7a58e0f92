"""Read-only answers of the Admin service: pure functions of an image.

Controllers and brokers serve them alike, each from the image it holds.
"""

from __future__ import annotations

from quorum.image import (
    BrokerRegistration,
    ControllerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from quorum.image.features import KRAFT_SUPPORTED, KRAFT_VERSION, METADATA_RELEASES, SUPPORTED
from quorum.image.image import METADATA_VERSION
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2, common_pb2

INTERNAL_PREFIX = "__"


def list_topics(
    image: MetadataImage, request: admin_pb2.ListTopicsRequest
) -> admin_pb2.ListTopicsResponse:
    """All topics by name; internal ones (`__...`) only if the request includes them."""
    return admin_pb2.ListTopicsResponse(
        topics=[
            admin_pb2.ListTopicsResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id.bytes,
                num_partitions=len(topic.partitions),
                replication_factor=replication_factor(topic),
            )
            for topic in image.topics.ordered()
            if request.include_internal or not topic.name.startswith(INTERNAL_PREFIX)
        ]
    )


def describe_topics(
    image: MetadataImage, request: admin_pb2.DescribeTopicsRequest
) -> admin_pb2.DescribeTopicsResponse:
    """The named topics in the order of the request, or all of them if it names none.

    An unknown topic has UNKNOWN_TOPIC_OR_PARTITION.
    """
    names = list(request.topic_names) or image.topics.names()
    return admin_pb2.DescribeTopicsResponse(topics=[_describe_topic(image, name) for name in names])


def _describe_topic(image: MetadataImage, name: str) -> admin_pb2.DescribeTopicsResponse.Topic:
    topic = image.topics.get(name)
    if topic is None:
        return admin_pb2.DescribeTopicsResponse.Topic(
            name=name,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # type: ignore[arg-type]
            error_message=f"there is no topic {name!r}",
        )
    return admin_pb2.DescribeTopicsResponse.Topic(
        name=name,
        topic_id=topic.topic_id.bytes,
        partitions=[_describe_partition(image, i, p) for i, p in topic.ordered()],
        configs=dict(image.topic_configs(name)),
    )


def _describe_partition(
    image: MetadataImage, index: int, partition: PartitionRegistration
) -> admin_pb2.DescribeTopicsResponse.Partition:
    return admin_pb2.DescribeTopicsResponse.Partition(
        partition_index=index,
        leader_id=-1 if partition.leader is None else partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        offline_replicas=offline_replicas(image, partition),
    )


def list_reassignments(
    image: MetadataImage, request: admin_pb2.ListPartitionReassignmentsRequest
) -> admin_pb2.ListPartitionReassignmentsResponse:
    """Reassignments in progress, of the requested partitions or of all.

    Unknown partitions have none.
    """
    response = admin_pb2.ListPartitionReassignmentsResponse()
    if request.topics:
        named = [(image.topics.get(t.topic), set(t.partition_indexes)) for t in request.topics]
    else:
        named = [(topic, set()) for topic in image.topics.ordered()]
    for topic, indexes in named:
        for index, partition in topic.ordered() if topic is not None else ():
            if topic is not None and partition.is_reassigning and index in (indexes or {index}):
                response.partitions.add(
                    topic=topic.name,
                    partition_index=index,
                    replicas=partition.replicas,
                    adding_replicas=partition.adding,
                    removing_replicas=partition.removing,
                )
    return response


def describe_features(
    image: MetadataImage, kraft_version: int = 0
) -> admin_pb2.DescribeFeaturesResponse:
    """Levels in effect, ranges this version supports, and ranges of the registered nodes."""
    levels = {name: image.features.get(name, 0) for name in SUPPORTED}
    ranges = {**SUPPORTED, KRAFT_VERSION: KRAFT_SUPPORTED}
    levels[KRAFT_VERSION] = kraft_version
    return admin_pb2.DescribeFeaturesResponse(
        finalized_features_epoch=image.offset,
        features=[
            admin_pb2.DescribeFeaturesResponse.Feature(
                name=name,
                level=levels[name],
                supported_min=supported.lowest,
                supported_max=supported.highest,
                release=METADATA_RELEASES.get(levels[name], "") if name == METADATA_VERSION else "",
            )
            for name, supported in sorted(ranges.items())
        ],
        nodes=[
            *(_node_features(i, image.controllers[i], True) for i in sorted(image.controllers)),
            *(_node_features(i, image.brokers[i], False) for i in sorted(image.brokers)),
        ],
    )


def _node_features(
    node_id: int, node: BrokerRegistration | ControllerRegistration, is_controller: bool
) -> admin_pb2.DescribeFeaturesResponse.NodeFeatures:
    return admin_pb2.DescribeFeaturesResponse.NodeFeatures(
        node_id=node_id,
        is_controller=is_controller,
        features=[
            common_pb2.FeatureRange(name=f.name, min_level=f.min_level, max_level=f.max_level)
            for f in node.features
        ],
        listeners=[
            common_pb2.Endpoint(name=e.name, host=e.host, port=e.port) for e in node.endpoints
        ],
    )


def offline_replicas(image: MetadataImage, partition: PartitionRegistration) -> list[int]:
    """Replicas whose broker is fenced or not registered, or whose log directory is offline or gone
    (KIP-112)."""
    return [
        replica
        for replica in partition.replicas
        if (broker := image.brokers.get(replica)) is None
        or broker.fenced
        or not image.replica_is_online(partition, replica)
    ]


def replication_factor(topic: TopicImage) -> int:
    """Number of replicas of partition 0, as Kafka's tools print it; 0 without partitions."""
    first = topic.partitions.get(0)
    return 0 if first is None else len(first.replicas)


def describe_cluster(
    image: MetadataImage,
    *,
    cluster_id: str,
    controller_id: int | None,
    listener: str | None = None,
) -> admin_pb2.DescribeClusterResponse:
    """Registered brokers, fenced ones included, with their endpoint of `listener`.

    `listener` None means the first endpoint of each broker.
    """
    return admin_pb2.DescribeClusterResponse(
        cluster_id=cluster_id,
        controller_id=-1 if controller_id is None else controller_id,
        brokers=[node_of(image.brokers[i], listener) for i in sorted(image.brokers)],
    )


def node_of(broker: BrokerRegistration, listener: str | None = None) -> common_pb2.Node:
    """The broker as clients see it; at its first endpoint if it does not have the listener."""
    endpoint = broker.endpoint(listener) or broker.endpoint()
    return common_pb2.Node(
        node_id=broker.broker_id,
        host=endpoint.host if endpoint else "",
        port=endpoint.port if endpoint else 0,
        rack=broker.rack or "",
        fenced=broker.fenced,
    )
