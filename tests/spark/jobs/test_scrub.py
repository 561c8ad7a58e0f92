"""The check of the tier in Spark's tasks: it finds what `tidemark tier verify` finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.tiering.builders import PARTITION, server_config
from tests.tiering.world import World
from tidemark.cli.spark_scrub import findings_in_spark
from tiering.metadata.codec import encode
from tiering.metadata.history import MetadataHistory

pytestmark = pytest.mark.spark


def test_tasks_find_the_segment_with_a_flipped_byte_and_the_hole(
    spark: Any, tmp_path: Path
) -> None:
    world = World(tmp_path, index_interval_bytes=100)
    world.lead()
    for _ in range(6):
        world.produce_segment(count=5)
    world.produce(1)
    asyncio.run(world.once())
    history = MetadataHistory()
    for record in world.metadata.history.records:
        history.apply(encode(record))
    live = [(partition, cache, (0, 120)) for partition, cache in history.of_topic(None)]
    (log, *_) = sorted((tmp_path / "tier").rglob("*.log"))
    config = server_config(
        remote_log_storage_manager_class_name="directory", rsm_config_dir=tmp_path / "tier"
    )
    said: list[tuple[int, int]] = []
    found, checked = findings_in_spark(spark, config, live, lambda *done: said.append(done))
    assert (found, checked, said) == ([], 6, [(6, 6)])

    content = log.read_bytes()
    log.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    live = [(partition, cache, (0, 140)) for partition, cache, _ in live]
    found, _ = findings_in_spark(spark, config, live, lambda *done: None)
    assert any("checksum" in one.reason and one.path.endswith(log.name) for one in found)
    assert any("no segment has offsets 120 to 139" in one.reason for one in found)
    assert PARTITION.topic in found[0].path
