"""Fetches that stay: each round names what changed, and costs what moved (KIP-227)."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.consuming.harness import A, B, C, FakeLog, Fetching, failing, filled, in_flight
from tests.client.consuming.nodes import Nodes, fill, run
from tidemark.client import AsyncConsumer
from tidemark.client.consuming.core import IDLE_MS
from tidemark.errors import ErrorCode, NetworkError
from tidemark.types import TopicPartition
from tidemark.wire import FetchPartitionData, FetchResponse


def rounds(fetching: Fetching) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Partitions that the one fetch under way named, and those it had forgotten."""
    (request,) = fetching.sent.values()
    return list(request.named), request.forgotten


@pytest.mark.parametrize(
    "news",
    [
        filled(A, [Fetching().logs.setdefault(A, FakeLog()).append(1)]),
        failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(1, 7)),
        FetchPartitionData(*A, diverging_epoch=(0, 0)),
    ],
    ids=["records", "error", "divergence"],
)
def test_a_partition_with_news_is_named_again_and_the_others_are_not(
    news: FetchPartitionData,
) -> None:
    fetching = Fetching("earliest")
    fetching.assign(A, B, C)
    assert rounds(fetching) == ([A, B, C], [])
    fetching.answer(news)
    fetching.poll()
    while not fetching.sent or A not in in_flight(fetching):
        fetching.step(after_ms=100)
    last = fetching.sent[max(fetching.sent, key=lambda i: A in fetching.sent[i].asked)]
    assert set(last.named) == {A}
    assert in_flight(fetching) == {A, B, C}
    assert list(last.asked)[-1] == A, "behind those that had no news"


def test_a_quiet_round_names_nothing_and_a_high_watermark_alone_changes_nothing() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    fetching.answer()
    assert rounds(fetching) == ([], [])
    fetching.answer(FetchPartitionData(*A, high_watermark=9))
    assert rounds(fetching) == ([], [])
    assert len(fetching.core._requests.all()) == 1


def test_a_partition_that_leaves_is_forgotten_and_one_that_moved_is_named() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    fetching.seek(A, 3)
    fetching.assign(A, B, at=None)
    asked = max(fetching.sent)
    assert asked > 1, "not behind the long poll"
    del fetching.sent[asked]
    fetching.core.failed(asked, NetworkError("lost"), fetching.now_ms)
    fetching.answer(after_ms=100)
    assert rounds(fetching) == ([A], []), "it left, and is back at another offset"
    fetching.core.assign([B], fetching.now_ms)
    fetching.answer()
    assert rounds(fetching) == ([], [A])
    fetching.answer(filled(B, [fetching.logs[B].append(1)]))
    fetching.core.assign([A], fetching.now_ms)
    assert fetching.core._requests.get(1) is not None


def test_a_partition_that_is_back_as_it_was_is_neither_named_nor_forgotten() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    for change in (fetching.core.assignment.pause, fetching.core.assignment.resume):
        change(fetching.partitions[A])
    fetching.answer()
    assert rounds(fetching) == ([], [])
    fetching.core.assignment.pause(fetching.partitions[A])
    fetching.answer()
    assert rounds(fetching) == ([], [A])
    fetching.core.assignment.resume(fetching.partitions[A])
    fetching.answer()
    assert rounds(fetching) == ([A], [])


def test_a_new_leader_epoch_is_told_with_the_next_round() -> None:
    fetching = Fetching()
    fetching.leaders.epochs |= {A: 1, B: 1}
    fetching.assign(A, B)
    fetching.leaders.epochs[A] = 2
    fetching.refreshed()
    fetching.answer()
    assert rounds(fetching) == ([A], [])
    (request,) = fetching.sent.values()
    assert request.asked[A].leader_epoch == 2


def test_a_fetch_that_rests_is_sent_when_the_buffer_has_room_again() -> None:
    fetching = Fetching(buffer_bytes=50)
    fetching.assign(A, B)
    fetching.answer(filled(A, [fetching.logs[A].append(5)]))
    assert not fetching.sent
    fetching.poll()
    assert rounds(fetching) == ([A], [])
    assert fetching.asked() == [(1, [B, A])]


def test_a_fetch_that_nobody_waits_for_is_used_again_and_ends_after_five_minutes() -> None:
    fetching = Fetching(max_partition_fetch_bytes=1)
    fetching.assign(A)
    fetching.answer(filled(A, [fetching.logs[A].append(1)]))
    assert not fetching.sent
    fetching.poll()
    assert list(fetching.sent) == [1], "its call is open"
    fetching.answer(filled(A, [fetching.logs[A].append(1)]))
    assert fetching.step(after_ms=IDLE_MS - 1).ended == []
    assert fetching.wake_at_ms == fetching.now_ms + 1
    assert fetching.step(after_ms=1).ended == [1]
    fetching.poll()
    assert list(fetching.sent) == [2]


@pytest.mark.parametrize("way", ["fails", "is refused"])
def test_a_fetch_that_failed_ends_and_another_one_names_all(way: str) -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    fetching.answer()
    if way == "fails":
        fetching.fail(NetworkError("gone"))
    else:
        fetching.reply(1, FetchResponse([], ErrorCode.BROKER_NOT_AVAILABLE, "starting"))
    assert fetching.ended == [1]
    fetching.step(after_ms=100)
    assert list(fetching.sent) == [2]
    assert rounds(fetching) == ([A, B], [])


def test_a_request_that_is_answered_before_it_is_cancelled_goes_on() -> None:
    """The seek left it, its answer came, and the partition is in it again: one step decides."""
    fetching = Fetching()
    fetching.assign(A)
    fetching.seek(A, 3)
    del fetching.sent[1]
    fetching.core.answered(1, FetchResponse(), fetching.now_ms + 500)
    fetching.step(after_ms=500)
    assert fetching.cancelled == []
    assert list(fetching.sent) == [1]
    assert rounds(fetching) == ([A], [])


def test_a_step_costs_what_moved_and_not_all_partitions() -> None:
    fetching = Fetching(max_partition_fetch_bytes=1)
    many = [TopicPartition("t", number) for number in range(1_000)]
    fetching.assign(*many)
    looked_at: list[TopicPartition] = []
    leader = fetching.leaders.leader
    fetching.leaders.leader = lambda tp: (looked_at.append(tp), leader(tp))[1]  # type: ignore[method-assign, func-returns-value]
    for number in range(100):
        at = many[number]
        fetching.answer(filled(at, [fetching.logs[at].append(1)]))
    assert looked_at == [], "what waits for the reader is not looked at"
    fetching.poll()
    assert len(looked_at) == 100
    assert [len(request.live) for request in fetching.sent.values()] == [900, 100]
    for _ in range(10):
        fetching.answer()
    assert len(looked_at) == 100


def test_an_answer_without_news_ends_the_growing_pauses() -> None:
    fetching = Fetching()
    fetching.assign(A)
    refused = failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(3):
        fetching.answer(refused)
        fetching.step(after_ms=1_000)
    fetching.answer()
    fetching.answer(refused)
    fetching.step(after_ms=100)
    assert in_flight(fetching) == {A}


def test_an_answer_of_a_node_that_throttles_confirms_no_topic() -> None:
    """It read nothing: the id that the metadata named may be of a topic that was deleted."""
    fetching = Fetching()
    fetching.leaders.ids["t"] = b"o" * 16
    fetching.assign(A)
    fetching.answer(throttle=1_000)
    fetching.step(after_ms=1_000)
    for _ in range(2):
        fetching.answer(failing(A, ErrorCode.INCONSISTENT_TOPIC_ID))
        fetching.leaders.ids["t"] = b"n" * 16
        fetching.refreshed()
        fetching.step(after_ms=1_000)
    assert fetching.error(got_nothing=True) is None
    (request,) = fetching.sent.values()
    assert request.asked[A].topic_id == b"n" * 16


def test_the_call_of_a_fetch_that_ended_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes)
        assert await consumer.poll(5_000)
        for _ in range(5):
            nodes.trip = lost
            await asyncio.sleep(1)
            nodes.trip = lambda address, name: None
            await consumer.poll(5_000)
        await asyncio.sleep(1)
        assert 1 <= len(nodes.open_calls) <= 2

    def lost(address: str, name: str) -> None:
        raise NetworkError("lost")

    run(scenario, monkeypatch)
