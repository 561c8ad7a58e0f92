"""Text of remote log metadata records, in KIP-405's format of the RemoteLogMetadataFormatter.

    partition:<n>,message-offset:<n>,type:<type>,version:<n>,event-value:<value>

Partition, offset and version are printed if their property is set. The value has the main fields,
or all of them with print.all.event.value.fields, as Kafka's own text of a record. The KIP's
`leader-epoch` is `broker-id`, which Kafka's records have in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.config.definition import unknown_key
from tidemark.errors import ConfigError
from tidemark.types import TopicIdPartition, uuid_to_text
from tiering.metadata.codec import format_metadata
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)

_SEPARATOR = "separator"
_FLAGS = (
    "print.partition",
    "print.message.offset",
    "print.version",
    "print.all.event.value.fields",
)


@dataclass(frozen=True, slots=True)
class RemoteLogMetadataFormatter:
    """A formatter with its properties; each is false by default."""

    print_partition: bool = False
    print_message_offset: bool = False
    print_version: bool = False
    print_all_event_value_fields: bool = False
    separator: str = ","

    @classmethod
    def configured(cls, properties: Mapping[str, str]) -> RemoteLogMetadataFormatter:
        """Returns a formatter with these properties. Raises ConfigError for unknown ones."""
        flags: dict[str, bool] = {}
        for key, text in properties.items():
            if key == _SEPARATOR:
                continue
            if key not in _FLAGS:
                raise unknown_key(key, [*_FLAGS, _SEPARATOR])
            if text not in ("true", "false"):
                raise ConfigError(f"{key}={text!r} is neither true nor false")
            flags[key.replace(".", "_")] = text == "true"
        return cls(**flags, separator=properties.get(_SEPARATOR, ","))

    def text(self, metadata: RemoteLogMetadata) -> str:
        """Returns the text of a record from its type on."""
        fields = [f"type:{_type(metadata)}"]
        if self.print_version:
            fields.append("version:0")
        fields.append(f"event-value:{self._value(metadata)}")
        return self.separator.join(fields)

    def place(self, partition: int, offset: int) -> str:
        """Returns the begin of a record's text: its partition and offset, as far as wanted."""
        fields = [f"partition:{partition}"] if self.print_partition else []
        if self.print_message_offset:
            fields.append(f"message-offset:{offset}")
        return "".join(field + self.separator for field in fields)

    def _value(self, metadata: RemoteLogMetadata) -> str:
        if self.print_all_event_value_fields:
            return format_metadata(metadata)
        partition = self._partition(metadata.topic_id_partition)
        broker = f"broker-id:{metadata.broker_id}"
        if not isinstance(metadata, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            state = f"remote-partition-delete-state:{metadata.state.name}"
            return self._braced(f"topic-id-partition:{self._braced(partition)}", broker, state)
        identity = f"id:{uuid_to_text(metadata.remote_log_segment_id.id)}"
        fields = [f"remote-log-segment-id:{self._braced(identity, partition)}"]
        if isinstance(metadata, RemoteLogSegmentMetadata):
            fields.append(f"start-offset:{metadata.start_offset}")
            fields.append(f"end-offset:{metadata.end_offset}")
        return self._braced(*fields, broker, f"remote-log-segment-state:{metadata.state.name}")

    def _partition(self, partition: TopicIdPartition) -> str:
        topic_id = uuid_to_text(partition.topic_id)
        names = (f"topicId:{topic_id}", f"topicName:{partition.topic}")
        return self.separator.join((*names, f"partition:{partition.partition}"))

    def _braced(self, *fields: str) -> str:
        return "{" + self.separator.join(fields) + "}"


def _type(metadata: RemoteLogMetadata) -> str:
    if isinstance(metadata, RemoteLogSegmentMetadata):
        return "RemoteLogSegmentMetadata"
    if isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        return "RemoteLogSegmentMetadataUpdate"
    return "DeletePartitionState"
