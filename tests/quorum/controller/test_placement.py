"""The placer's promises over random clusters."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.controller.placement import StripedReplicaPlacer, UsableBroker
from quorum.image import PartitionRegistration
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ErrorCode, InvalidReplicationFactorError


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[UsableBroker], int, int, int]:
    """(brokers, partitions, replication factor, seed); at least one broker is in service."""
    count = draw(st.integers(1, 24))
    names = ["", "a", "ab", "abc", "abcdef"]
    racks: list[str | None] = [*draw(st.sampled_from(names))] or [None]
    if draw(st.booleans()):
        racks.append(None)  # some brokers report no rack
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


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 90), st.integers(0, 2**32)
)
def test_uneven_racks_get_their_share_by_the_number_of_their_brokers(
    sizes: list[int], partitions: int, seed: int
) -> None:
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    brokers = [UsableBroker(i, f"r{rack}", False) for i, rack in enumerate(racks)]
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, 1)
    held = Counter(replicas[0] for replicas in placed)
    spread = [held[b.broker_id] for b in brokers]
    assert max(spread) - min(spread) <= 2


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_replicas_on_fenced_brokers_count_for_their_rack(
    racks: int, partitions: int, seed: int
) -> None:
    """Each rack has a broker in service and a fenced one; one replica more than there are racks."""
    brokers = [UsableBroker(i, f"r{i % racks}", i >= racks) for i in range(2 * racks)]
    placed = StripedReplicaPlacer(random.Random(seed)).place(brokers, partitions, racks + 1)
    second = Counter(r % racks for replicas in placed for r in replicas if r >= racks)
    assert sum(second.values()) == partitions
    assert max(second.values()) - min(second[rack] for rack in range(racks)) <= 1


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 12), st.integers(0, 12), st.data())
def test_new_partitions_make_up_for_lopsided_old_ones(
    racks: int, per_rack: int, old: int, more: int, data: st.DataObject
) -> None:
    """Old replicas are all on one broker; afterwards every broker holds and leads the same."""
    brokers = [UsableBroker(i, f"r{i % racks}", False) for i in range(racks * per_rack)]
    crowded = data.draw(st.sampled_from(brokers)).broker_id
    existing = [(crowded,)] * old
    wanted = (len(brokers) - 1) * old + len(brokers) * more
    placer = StripedReplicaPlacer(random.Random(data.draw(st.integers(0, 2**32))))
    placed = placer.place(brokers, wanted, 1, existing)
    held = Counter(replicas[0] for replicas in [*existing, *placed])
    assert set(held.values()) == {old + more}


def test_leaderships_of_old_partitions_count() -> None:
    brokers = [UsableBroker(i, None, False) for i in (1, 2)]
    placed = StripedReplicaPlacer(random.Random(1)).place(brokers, 4, 2, [(1, 2)] * 4)
    assert {replicas[0] for replicas in placed} == {2}


def test_who_is_behind_has_its_turn_in_a_random_order() -> None:
    placer = StripedReplicaPlacer(random.Random(1))
    brokers = [UsableBroker(i, None, False) for i in range(6)]
    firsts = Counter(placer.place(brokers, 1, 1, [(0,)])[0][0] for _ in range(500))
    assert set(firsts) == set(range(1, 6))
    assert max(firsts.values()) < 150


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from("asf"), min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 2**32),
    st.data(),
)
def test_topics_on_clusters_with_fenced_and_leaving_brokers(
    states: list[str], partitions: int, factor: int, seed: int, data: st.DataObject
) -> None:
    """a: active, s: shutting down, f: fenced; placed by the controller, and manually."""
    s = Scenario(seed)
    ids = range(len(states))
    s.start_brokers(*ids, racks="".join("abc"[i % 3] for i in ids))
    s.create("leads", *[(i,) for i in ids])  # a broker that leads partitions does not stop at once
    active = {i for i in ids if states[i] == "a"}
    for i in ids:
        if states[i] != "a":
            s.heartbeat(i, want_shut_down=states[i] == "s", want_fence=states[i] == "f")
    usable = {i for i in ids if states[i] != "s"}
    answer = s.try_create("t", partitions=partitions, factor=factor)
    if not active or factor > len(usable):
        assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    else:
        assert answer.error_code == 0, answer.error_message
        for index in range(partitions):
            _check_placed(s.partition("t", index), active)
            assert set(s.partition("t", index).replicas) <= usable
    by_hand = tuple(data.draw(st.permutations(list(ids)))[:factor])
    answer = s.try_create("h", by_hand)
    if active & set(by_hand):
        assert s.partition("h").replicas == by_hand
        _check_placed(s.partition("h"), active)
    else:
        assert answer.error_code != 0
    assert s.try_create("unknown", (*by_hand, 77)).error_code != 0
    assert s.try_create("twice", (by_hand[0], by_hand[0])).error_code != 0


def _check_placed(partition: PartitionRegistration, active: set[int]) -> None:
    """Only replicas in service are in sync; the first of them leads."""
    in_sync = [replica for replica in partition.replicas if replica in active]
    assert sorted(partition.isr) == sorted(in_sync)
    assert partition.leader == in_sync[0]


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
