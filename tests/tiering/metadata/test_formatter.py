"""Text of remote log metadata: KIP-405's format, and its properties in dump-log."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiering.builders import FINISHED, PARTITION, segment
from tidemark.cli.main import app
from tidemark.errors import ConfigError
from tidemark.types import uuid_to_text
from tiering.metadata.codec import format_metadata
from tiering.metadata.formatter import RemoteLogMetadataFormatter
from tiering.metadata.segments import RemotePartitionDeleteMetadata, RemotePartitionDeleteState

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0" / "tier"
ONE = segment(5, 9, 2)
TOPIC = f"topicId:{uuid_to_text(PARTITION.topic_id)},topicName:flights,partition:3"
IDENTITY = f"remote-log-segment-id:{{id:{uuid_to_text(ONE.id)},{TOPIC}}}"


def test_records_have_the_text_of_the_kip() -> None:
    formatter = RemoteLogMetadataFormatter.configured({})
    assert formatter.text(ONE) == (
        f"type:RemoteLogSegmentMetadata,event-value:{{{IDENTITY},start-offset:5,end-offset:9,"
        "broker-id:1,remote-log-segment-state:COPY_SEGMENT_FINISHED}"
    )
    assert formatter.text(ONE.update(FINISHED, 1, 4)) == (
        f"type:RemoteLogSegmentMetadataUpdate,event-value:{{{IDENTITY},broker-id:4,"
        "remote-log-segment-state:COPY_SEGMENT_FINISHED}"
    )
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    assert formatter.text(RemotePartitionDeleteMetadata(PARTITION, marked, 1, 2)) == (
        f"type:DeletePartitionState,event-value:{{topic-id-partition:{{{TOPIC}}},broker-id:2,"
        "remote-partition-delete-state:DELETE_PARTITION_MARKED}"
    )
    assert formatter.place(7, 8) == ""


def test_each_property_adds_its_field() -> None:
    names = ("partition", "message.offset", "version", "all.event.value.fields")
    every = {f"print.{name}": "true" for name in names}
    formatter = RemoteLogMetadataFormatter.configured({**every, "separator": "; "})
    assert formatter.place(7, 8) == "partition:7; message-offset:8; "
    assert formatter.text(ONE) == (
        f"type:RemoteLogSegmentMetadata; version:0; event-value:{format_metadata(ONE)}"
    )
    for wrong in ({"print.partitions": "true"}, {"print.version": "yes"}):
        with pytest.raises(ConfigError):
            RemoteLogMetadataFormatter.configured(wrong)


def dump(*options: str) -> str:
    file = GOLDEN / "__remote_log_metadata-1" / "00000000000000000000.log"
    return CliRunner().invoke(app, ["dump-log", str(file), *options]).output


def test_dump_log_prints_a_metadata_partition_so() -> None:
    decoder = "--remote-log-metadata-decoder"
    shown = dump(decoder, "--property", "print.partition=true", "--property",
                 "print.message.offset=true")  # fmt: skip
    plain = dump(decoder)
    assert "payload: partition:1,message-offset:0,type:RemoteLogSegmentMetadata," in shown
    assert shown.count("partition:1,message-offset:") == plain.count("payload:") > 3
    refused = dump("--print-data-log", "--property", "print.version=true")
    assert "--remote-log-metadata-decoder" in refused
