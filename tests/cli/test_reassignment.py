"""Plans: Kafka's JSON in both directions; placements are even, rack-aware and move little."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.cli.reassignment import (
    Plan,
    drain,
    parse_ids,
    parse_partition,
    parse_plan,
    plan_document,
    spread,
)
from tidemark.errors import ConfigError
from tidemark.types import TopicPartition


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Plan, dict[int, str | None], int]:
    """(placements, brokers with racks, replication factor)"""
    racks = draw(st.sampled_from(([None], ["a", "b", "c"])))
    count = draw(st.integers(3, 8))
    brokers = {number: racks[number % len(racks)] for number in range(count)}
    factor = draw(st.integers(1, 3))
    plan: Plan = {}
    for index in range(draw(st.integers(1, 25))):
        ids = draw(st.permutations(sorted(brokers)))
        plan[TopicPartition("t", index)] = tuple(ids[:factor])
    return plan, brokers, factor


def after(current: Plan, plan: Plan) -> Plan:
    return {partition: plan.get(partition, replicas) for partition, replicas in current.items()}


def loads(plan: Plan, brokers: dict[int, str | None]) -> list[int]:
    counted = Counter(b for replicas in plan.values() for b in replicas)
    return [counted[broker] for broker in brokers]


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_a_spread_is_even_distinct_and_keeps_racks_apart(
    cluster: tuple[Plan, dict[int, str | None], int],
) -> None:
    current, brokers, factor = cluster
    plan = spread(current, brokers)
    placed = after(current, plan)
    for partition, replicas in placed.items():
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= set(brokers)
        assert replicas != current[partition] or partition not in plan
        if brokers[0] is not None:
            before = len({brokers[b] for b in current[partition]})
            assert len({brokers[b] for b in replicas}) >= before
    if brokers[0] is None:
        found = loads(placed, brokers)
        assert max(found) - min(found) <= 1
    leads = Counter(replicas[0] for replicas in placed.values())
    assert all(leads[replicas[0]] - leads[b] < 2 for replicas in placed.values() for b in replicas)
    assert spread(placed, brokers) == {}, "a plan that is carried out needs no other one"


@settings(max_examples=100, deadline=None)
@given(clusters(), st.data())
def test_a_drained_broker_is_empty_and_nothing_else_moves(
    cluster: tuple[Plan, dict[int, str | None], int], data: st.DataObject
) -> None:
    current, brokers, factor = cluster
    leaving = data.draw(st.integers(0, len(brokers) - 1))
    if len(brokers) - 1 < factor:
        with pytest.raises(ConfigError):
            drain(current, brokers, [leaving])
        return
    plan = drain(current, brokers, [leaving])
    assert set(plan) == {p for p, replicas in current.items() if leaving in replicas}
    for partition, replicas in plan.items():
        assert leaving not in replicas
        assert len(set(replicas)) == factor
        kept = [b for b in current[partition] if b != leaving]
        assert list(replicas[: len(kept)]) == kept


def test_a_new_broker_gets_its_share_and_only_that_moves() -> None:
    current: Plan = {TopicPartition("t", n): (1 + n % 2, 2 - n % 2) for n in range(12)}
    plan = spread(current, {1: None, 2: None, 3: None})
    moved = sum(len(set(new) - set(current[p])) for p, new in plan.items())
    assert moved == 8  # 24 replicas: 8 on each
    assert loads(after(current, plan), {1: None, 2: None, 3: None}) == [8, 8, 8]


def test_the_replication_factor_goes_up_and_down() -> None:
    current: Plan = {TopicPartition("t", n): (1, 2) for n in range(4)}
    brokers: dict[int, str | None] = {1: "a", 2: "b", 3: "c"}
    assert all(set(r) == {1, 2, 3} for r in spread(current, brokers, replication_factor=3).values())
    assert all(len(r) == 1 for r in spread(current, brokers, replication_factor=1).values())
    with pytest.raises(ConfigError, match="4 replicas need 4 brokers"):
        spread(current, brokers, replication_factor=4)


def test_plans_are_kafkas_json() -> None:
    plan: Plan = {TopicPartition("b", 1): (4, 5), TopicPartition("a", 0): (6,)}
    document = plan_document(plan)
    assert [p["topic"] for p in document["partitions"]] == ["a", "b"]
    assert parse_plan(json.dumps(document)) == plan
    without_dirs = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}'
    assert parse_plan(without_dirs) == {TopicPartition("t", 0): (1,)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": []}',
        '{"version": 2, "partitions": []}',
        '{"partitions": [{"topic": "t", "partition": 0}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
        ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
    ],
)
def test_a_plan_that_says_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_plan(text)


def test_partitions_and_ids_in_text() -> None:
    assert parse_partition("a-b-3") == TopicPartition("a-b", 3)
    assert parse_ids(" 4, 5 ") == (4, 5)
    for wrong in ("t", "t-", "-1", "t-x", "t-²"):
        with pytest.raises(ConfigError):
            parse_partition(wrong)
