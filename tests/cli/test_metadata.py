"""`tidemark metadata`: the tree, its differences, and images from checkpoints and log directories,
whole or damaged, at every offset.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from commitlog.disk.files import OsDirectory
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.image.records import encode_record
from quorum.inspect.source import load
from quorum.inspect.tree import Leaf, MetadataView, changes, find, tree_of, walk
from snapshot import SnapshotId, SnapshotWriter
from snapshot.framing import encode_leader_change, encode_values
from tests.quorum.image.strategies import History
from tidemark.cli.main import app
from tidemark.cli.metadata import parse_side
from tidemark.errors import ConfigError, CorruptMessageError
from tidemark.v1 import metadata_pb2 as pb

runner = CliRunner()
BATCH = 5


class MetadataLog:
    """A log directory with known records; `images[n]` is the image after offset n."""

    def __init__(self, path: Path, seed: int, batches: int) -> None:
        self.directory = OsDirectory(path)
        self.path = path
        self.images: dict[int, MetadataImage] = {}
        self._batches: list[tuple[int, bytes]] = []
        history, image = History(random.Random(seed)), EMPTY_IMAGE
        first = encode_leader_change(0, 1, 5, leader_id=1, voters=[1, 2], granting_voters=[1])
        self._batches.append((0, first))
        self.images[0] = image = MetadataDelta(image).apply(0, 1)
        for _ in range(batches):
            records = history.records(BATCH)
            self._batches.append((image.end_offset, _batch(records, image.end_offset)))
            for record in records:
                delta = MetadataDelta(image)
                delta.replay(record)
                image = delta.apply(image.end_offset, 1)
                self.images[image.offset] = image
        self.last = image.offset

    def write(self, *, start: int = 0, segments: int = 1) -> None:
        """Segments from the batch that begins at `start` on."""
        kept = [(base, raw) for base, raw in self._batches if base >= start]
        size = -(-len(kept) // segments)
        for first in range(0, len(kept), size):
            part = kept[first : first + size]
            data = b"".join(raw for _, raw in part)
            (self.path / f"{part[0][0]:020d}.log").write_bytes(data)

    def checkpoint(self, offset: int) -> Path:
        """A checkpoint of the state after `offset`."""
        snapshot_id = SnapshotId(offset + 1, 1)
        writer = SnapshotWriter(self.directory, snapshot_id, 5)
        writer.append(self.images[offset].values())
        writer.freeze()
        return self.path / snapshot_id.name


def _batch(records: list[pb.MetadataRecord], base: int) -> bytes:
    return encode_values([encode_record(record) for record in records], base, 1, 5)


@pytest.fixture
def log(tmp_path: Path) -> MetadataLog:
    return MetadataLog(tmp_path / "__cluster_metadata-0", seed=7, batches=30)


def call(*arguments: str) -> str:
    result = runner.invoke(app, ["metadata", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


# --- sources ------------------------------------------------------------------------------------


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


def test_reading_a_directory_changes_nothing_in_it(log: MetadataLog) -> None:
    log.checkpoint(50)
    log.write(start=51)
    (log.path / "00000000000000000000-0000000009.checkpoint.part").write_bytes(b"left")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in log.path.iterdir()}
    load(str(log.path))
    call("tree", "-s", str(log.path))
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in log.path.iterdir()}


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


# --- the tree and its differences ---------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 60), more=st.integers(0, 60))
def test_changes_are_exactly_what_the_trees_differ_in(seed: int, cut: int, more: int) -> None:
    records = History(random.Random(seed)).records(cut + more)
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in records[:cut]:
        delta.replay(record)
    first = delta.apply(cut, 1)
    delta = MetadataDelta(first)
    for record in records[cut:]:
        delta.replay(record)
    second = delta.apply(cut + more, 1)
    flat = [_flat(image) for image in (first, second)]
    told = _flat(first)
    for change in changes(MetadataView(first), MetadataView(second)):
        assert change.before == flat[0].get(change.path)
        assert change.after == flat[1].get(change.path)
        assert change.before != change.after
        if change.after is None:
            told.pop(change.path)
        else:
            told[change.path] = change.after
    assert told == flat[1]


def _flat(image: MetadataImage) -> dict[str, object]:
    """Leaves by path, without what `changes` does not tell."""
    return {
        path: node.value
        for path, node in walk("", tree_of(MetadataView(image)))
        if isinstance(node, Leaf)
        and not path.startswith("/topics/byId")
        and not path.endswith("/name")
    }


def test_globs_find_what_is_there_and_nothing_else(log: MetadataLog) -> None:
    root = tree_of(MetadataView(log.images[log.last]))
    names = log.images[log.last].topics.names()
    assert [p for p, _ in find(root, "/topics/byName/*")] == [f"/topics/byName/{n}" for n in names]
    for wrong in ("/nothing", "/brokers/99", "/brokers/x", "/topics/byId/x", "/features/a/b"):
        with pytest.raises(ConfigError):
            find(root, wrong)


def test_commands_print_text_and_json(log: MetadataLog) -> None:
    log.write()
    image = log.images[log.last]
    source = ["-s", str(log.path)]
    topic = next(t for t in image.topics.ordered() if t.partitions)
    assert call("ls", *source).splitlines()[0] == "brokers/"
    assert json.loads(call("ls", "/topics/byName", "--json", *source)) == {
        "/topics/byName": [f"{name}/" for name in image.topics.names()]
    }
    path = f"/topics/byName/{topic.name}/0"
    shown = json.loads(call("cat", path, *source))
    assert shown["leaderEpoch"] == topic.partitions[0].leader_epoch
    assert json.loads(call("cat", path, "--json", *source)) == {path: shown}
    both = call("cat", f"/topics/byName/{topic.name}/id", "/features", *source).splitlines()
    assert both[0] == f"/topics/byName/{topic.name}/id:"
    text = call("tree", "/topics/byName", "--depth", "1", *source).splitlines()
    assert text[0] == "/topics/byName/"
    assert f"  {topic.name}/" in text
    assert json.loads(call("tree", "/producerIds", "--json", *source)) == {
        "/producerIds/nextProducerId": image.next_producer_id
    }
    paths = call("find", "/topics/byName", "--name", "id", *source).splitlines()
    assert f"/topics/byName/{topic.name}/id" in paths
    hit = json.loads(call("find", "--contains", f'"{topic.name}"', "--json", *source) or "null")
    assert hit is None  # a string is compared without its quotes
    assert path.rsplit("/", 1)[0] + "/name" in call("find", "--contains", topic.name, *source)


def test_diff_of_offsets_and_sources(log: MetadataLog) -> None:
    checkpoint = log.checkpoint(50)
    log.write()
    same = call("diff", str(checkpoint), "50", "-s", str(log.path)).splitlines()
    assert same[-1] == "0 changes"
    assert (
        runner.invoke(app, ["metadata", "diff", str(checkpoint), f"{log.path}@60"]).exit_code == 0
    )
    arguments = ["diff", "50", str(log.path), "--exit-code", "-s", str(checkpoint), "--json"]
    result = runner.invoke(app, ["metadata", *arguments])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["before"]["offset"], told["after"]["offset"]) == (50, log.last)
    assert {change["kind"] for change in told["changes"]} >= {"added"}


def test_a_side_is_an_offset_a_source_or_both() -> None:
    assert parse_side("12", "here") == ("here", 12)
    assert parse_side("dir@12", "here") == ("dir", 12)
    assert parse_side("host:1", "here") == ("host:1", None)
    assert parse_side("@3", "here") == ("here", 3)
    with pytest.raises(ConfigError):
        parse_side("", "here")


def test_the_tree_has_a_place_for_every_part_of_an_image() -> None:
    """Whoever gives the image another part must show it, and tell of its changes, too."""
    parts = {field.name for field in dataclasses.fields(MetadataImage)}
    assert parts - {"offset", "epoch"} == {
        *("brokers", "controllers", "topics", "configs", "features", "next_producer_id")
    }
    assert tree_of(MetadataView(EMPTY_IMAGE)).names() == [
        *("brokers", "configs", "controllers", "features", "producerIds", "quorum", "topics")
    ]
