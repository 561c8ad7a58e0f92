"""The tree of an image, and the differences of two trees."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.inspect.tree import Leaf, MetadataView, changes, find, tree_of, walk
from tests.quorum.image.strategies import History
from tests.quorum.inspect.metadata_logs import MetadataLog
from tidemark.errors import ConfigError


@pytest.fixture
def log(tmp_path: Path) -> MetadataLog:
    return MetadataLog(tmp_path / "__cluster_metadata-0", seed=7, batches=30)


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
    """Leaves by path, without those that `changes` does not report."""
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


def test_the_tree_has_a_place_for_every_part_of_an_image() -> None:
    """A new part of an image must appear in the tree and in its differences as well."""
    parts = {field.name for field in dataclasses.fields(MetadataImage)}
    assert parts - {"offset", "epoch"} == {
        *("brokers", "controllers", "topics", "configs", "features", "next_producer_id"),
        *("client_quotas", "acls", "scram_users"),
    }
    assert tree_of(MetadataView(EMPTY_IMAGE)).names() == [
        *(
            "acls",
            "brokers",
            "clientQuotas",
            "configs",
            "controllers",
            "features",
            "producerIds",
            "quorum",
            "scramUsers",
            "topics",
        )
    ]
