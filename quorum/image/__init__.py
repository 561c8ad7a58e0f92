"""The cluster's metadata as an immutable value (KRaft's MetadataImage and MetadataDelta).

A `MetadataImage` is the state after one record of the metadata log. A reference to it is a
consistent view for as long as it is held. The records of a batch are replayed into a
`MetadataDelta`, the only place that interprets records, and `delta.apply(...)` returns the next
image. It shares everything unchanged with the one before.

Outsiders import from this package and from four modules. `types` has special directory ids,
`features` has levels and their ranges, `image` has names of features, and `records` has records of
the log. `partition_codec` and `placement_index` belong to the room.

Equal images give equal records in equal order, and so equal bytes on every node. The cost of the
next image depends on the change, not on the size of the cluster. A record that contradicts the
image raises InconsistentMetadataError.
"""

from quorum.image.delta import (
    InconsistentMetadataError,
    MetadataDelta,
    TopicDelta,
    diff,
    diff_in_steps,
)
from quorum.image.image import EMPTY_IMAGE, MetadataImage
from quorum.image.types import (
    BrokerRegistration,
    ControllerRegistration,
    FeatureRange,
    LeaderRecoveryState,
    PartitionRegistration,
    TopicImage,
    TopicsImage,
    intern_ids,
)
from tidemark.types import ConfigResource, ConfigResourceType

__all__ = [
    "EMPTY_IMAGE",
    "BrokerRegistration",
    "ConfigResource",
    "ConfigResourceType",
    "ControllerRegistration",
    "FeatureRange",
    "InconsistentMetadataError",
    "LeaderRecoveryState",
    "MetadataDelta",
    "MetadataImage",
    "PartitionRegistration",
    "TopicDelta",
    "TopicImage",
    "TopicsImage",
    "diff",
    "diff_in_steps",
    "intern_ids",
]
