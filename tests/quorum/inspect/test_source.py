"""Images from checkpoints and log directories, whole or damaged, at every offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorum.inspect.source import load
from snapshot import SnapshotId
from tests.quorum.inspect.metadata_logs import BATCH, MetadataLog
from tidemark.errors import ConfigError, CorruptMessageError


@pytest.fixture
def log(tmp_path: Path) -> MetadataLog:
    return MetadataLog(tmp_path / "__cluster_metadata-0", seed=7, batches=30)


def test_a_log_without_checkpoint_gives_the_image_at_every_offset(log: MetadataLog) -> None:
    log.write(segments=3)
    for offset, image in log.images.items():
        assert load(str(log.path), offset).image == image
    assert load(str(log.path)).image == log.images[log.last]
    assert load(str(log.path)).quorum["voters"] == [{"id": 1}, {"id": 2}]


def test_the_newest_checkpoint_that_reaches_back_far_enough_is_used(log: MetadataLog) -> None:
    log.checkpoint(50)
    log.checkpoint(100)
    log.write(start=51, segments=4)
    for offset in range(50, log.last + 1):
        view = load(str(log.path.parent), offset)
        assert view.image == log.images[offset]
        wanted = 101 if offset >= 100 else 51
        assert view.quorum["snapshot"] == SnapshotId(wanted, 1).name


def test_who_loads_a_checkpoint_may_watch_its_batches(log: MetadataLog) -> None:
    path = log.checkpoint(50)
    seen: list[bytes] = []

    def watch(batches: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
        assert size_bytes == path.stat().st_size
        for raw in batches:
            seen.append(raw)
            yield raw

    assert load(str(path), progress=watch).image == log.images[50]
    assert b"".join(seen) == path.read_bytes()


def test_a_broken_checkpoint_is_passed_over_and_told(log: MetadataLog) -> None:
    log.checkpoint(50)
    broken = log.checkpoint(100)
    broken.write_bytes(broken.read_bytes()[:-3])
    log.write(start=51)
    view = load(str(log.path))
    assert view.image == log.images[log.last]
    assert broken.name in view.notes[0]
    with pytest.raises(CorruptMessageError):
        load(str(broken))


def test_a_torn_log_is_read_as_far_as_it_goes_and_damage_is_told(log: MetadataLog) -> None:
    log.write()
    segment = log.path / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    assert load(str(log.path)).image == log.images[log.last - BATCH]
    segment.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    view = load(str(log.path))
    assert view.image == log.images[log.last - BATCH]
    assert f"up to offset {log.last - BATCH}" in view.notes[0]


def test_what_can_not_be_told_is_refused_with_the_reason(log: MetadataLog) -> None:
    path = log.checkpoint(50)
    log.write(start=51)
    assert load(str(path)).image == log.images[50]
    assert load(str(path), 50).image == log.images[50]
    with pytest.raises(ConfigError, match="offset 50 only"):
        load(str(path), 49)
    with pytest.raises(ConfigError, match="no state before offset 50"):
        load(str(log.path), 49)
    with pytest.raises(ConfigError, match=f"has offset {log.last}"):
        load(str(log.path), log.last + 1)
    with pytest.raises(ConfigError, match="no file"):
        load("nothing")
    (log.path.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match="neither a checkpoint nor a log"):
        load(str(log.path.parent / "empty"))
    with pytest.raises(ConfigError, match="no file"):
        load("/no/such:1")
    with pytest.raises(ConfigError, match="is no checkpoint"):
        load(str(log.path / f"{51:020d}.log"))
