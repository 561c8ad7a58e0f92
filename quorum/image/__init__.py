"""The cluster's metadata as an immutable value, and what changed between two of them (KRaft's
MetadataImage and Delta).

Everybody that reads the metadata log holds a `MetadataImage`; a reference to it is a consistent
view for ever. The records of a batch are replayed into a `MetadataDelta`, the only place that knows
what a record means, and `delta.apply(...)` gives the next image, which shares all that did not
change with the one before.
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
