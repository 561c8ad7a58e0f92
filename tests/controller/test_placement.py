"""The placer over random clusters: what it promises holds for all of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.controller.placement import StripedReplicaPlacer, UsableBroker
from tidemark.errors import InvalidReplicationFactorError


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[UsableBroker], int, int, int]:
    """(brokers, partitions, replication factor, seed); at least one broker is in service."""
    count = draw(st.integers(1, 24))
    racks = draw(st.sampled_from([[None], ["a"], ["a", "b"], ["a", "b", "c"], list("abcdef")]))
    fenced_share = draw(st.sampled_from([0.0, 0.0, 0.3, 0.9]))
    seed = draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    brokers = [
        UsableBroker(i, rng.choice(racks), i > 0 and rng.random() < fenced_share)
        for i in range(count)
    ]
    return brokers, draw(st.integers(1, 80)), draw(st.integers(1, count)), seed


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_replicas_are_distinct_and_a_broker_in_service_leads(
    cluster: tuple[list[UsableBroker], int, int, int],
) -> None:
    brokers, partitions, factor, seed = cluster
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, factor)
    fenced = {b.broker_id for b in brokers if b.fenced}
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert replicas[0] not in fenced


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_a_partition_has_as_many_racks_as_it_can(
    cluster: tuple[list[UsableBroker], int, int, int],
) -> None:
    brokers, partitions, factor, seed = cluster
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, factor)
    rack_of = {b.broker_id: b.rack for b in brokers}
    sizes = Counter(rack_of.values())
    for replicas in placed:
        used = Counter(rack_of[r] for r in replicas)
        assert len(used) == min(factor, len(sizes))
        # Even: a rack has two more than another only if the other has no more brokers.
        for rack, size in sizes.items():
            assert used[rack] == size or max(used.values()) - used[rack] <= 1


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_fenced_brokers_of_a_rack_come_after_all_others_of_it(
    cluster: tuple[list[UsableBroker], int, int, int],
) -> None:
    brokers, partitions, factor, seed = cluster
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, factor)
    by_id = {b.broker_id: b for b in brokers}
    for replicas in placed:
        for rack in {by_id[r].rack for r in replicas if by_id[r].fenced}:
            in_service = {b.broker_id for b in brokers if b.rack == rack and not b.fenced}
            assert in_service <= set(replicas)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(1, 90), st.integers(0, 999)
)
def test_equal_racks_make_replicas_and_leaders_even(
    racks: int, per_rack: int, factor: int, partitions: int, seed: int
) -> None:
    factor = min(factor, racks * per_rack)
    brokers = [UsableBroker(i, f"r{i % racks}", False) for i in range(racks * per_rack)]
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, factor)
    replicas = Counter(r for ids in placed for r in ids)
    leaders = Counter(ids[0] for ids in placed)
    spread = [replicas[b.broker_id] for b in brokers]
    assert max(spread) - min(spread) <= 2
    led = [leaders[b.broker_id] for b in brokers]
    assert max(led) - min(led) <= 2 + partitions // 20


def test_the_start_is_random_so_small_topics_do_not_pile_up_on_one_broker() -> None:
    placer = StripedReplicaPlacer(random.Random(3))
    brokers = [UsableBroker(i, "abc"[i % 3], False) for i in range(6)]
    firsts = Counter(placer.place(brokers, 1, 1)[0][0] for _ in range(600))
    assert set(firsts) == set(range(6))
    assert max(firsts.values()) < 150


def test_fenced_brokers_are_last_in_a_cluster_without_racks() -> None:
    brokers = [UsableBroker(i, None, i >= 3) for i in range(6)]
    placed = StripedReplicaPlacer(random.Random(1)).place(brokers, 50, 4)
    for replicas in placed:
        assert {0, 1, 2} < set(replicas)


@pytest.mark.parametrize(
    ("brokers", "factor"),
    [
        ([], 1),
        ([UsableBroker(1, None, True)], 1),
        ([UsableBroker(1, None, False)], 2),
        ([UsableBroker(1, None, False)], 0),
    ],
)
def test_too_few_brokers_are_an_error(brokers: list[UsableBroker], factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError):
        StripedReplicaPlacer(random.Random(1)).place(brokers, 1, factor)
