"""Fetches from the replica that a leader names (KIP-392), and the way back to the leader."""

from __future__ import annotations

import pytest

from tests.client.consuming.harness import A, B, Fetching, failing
from tidemark.client.consuming.closest import REST_MS
from tidemark.errors import ErrorCode, NetworkError
from tidemark.wire import FetchPartitionData

AGE_MS = 60_000


def naming(node: int) -> FetchPartitionData:
    return FetchPartitionData(*A, high_watermark=2, preferred_read_replica=node)


def sent_to_two(reset: str = "earliest") -> Fetching:
    """Node 1 leads A; it named node 2, which is asked now."""
    fetching = Fetching(reset, client_rack="b", preference_max_age_ms=AGE_MS)
    fetching.assign(A)
    fetching.logs[A].append(2)
    (request,) = fetching.sent.values()
    assert (request.node, request.rack) == (1, "b")
    fetching.answer(naming(2), after_ms=1)
    assert fetching.asked() == [(2, [A])], "at once"
    return fetching


def racks(fetching: Fetching) -> list[tuple[int, str]]:
    return [(request.node, request.rack) for request in fetching.sent.values()]


def test_records_come_from_the_named_replica_until_the_preference_is_over() -> None:
    fetching = sent_to_two()
    fetching.serve()
    assert [offset for _, offset, _ in fetching.poll()] == [0, 1]
    assert racks(fetching) == [(2, "b")]
    fetching.answer(FetchPartitionData(*A, high_watermark=2), after_ms=AGE_MS)
    assert racks(fetching) == [(1, "b")]
    assert fetching.error() is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_a_replica_refuses_is_asked_of_the_leader_at_once(code: ErrorCode) -> None:
    """No position is reset, and no error reaches the reader. The leader names the replica again
    only after a rest."""
    fetching = sent_to_two()
    fetching.serve()
    fetching.poll()
    fetching.answer(failing(A, code), after_ms=1)
    assert racks(fetching) == [(1, "")]
    assert fetching.partitions[A].reader is not None
    assert fetching.partitions[A].reader.offset == 2
    assert fetching.error(got_nothing=True) is None
    fetching.logs[A].append(1)
    fetching.serve()
    assert [offset for _, offset, _ in fetching.poll()] == [2]
    assert racks(fetching) == [(1, "")]
    fetching.answer(FetchPartitionData(*A, high_watermark=3), after_ms=REST_MS)
    assert racks(fetching) == [(1, "b")]


def test_a_replica_that_does_not_answer_is_left_for_the_leader() -> None:
    fetching = sent_to_two()
    fetching.fail(NetworkError("connection refused"))
    assert racks(fetching) == [(1, "")]
    assert fetching.wake_at_ms is None or fetching.wake_at_ms > fetching.now_ms


def test_a_slow_replica_is_left_before_its_call_times_out() -> None:
    fetching = sent_to_two()
    (slow,) = fetching.sent
    fetching.step(after_ms=2_500)
    assert fetching.cancelled == [slow]
    del fetching.sent[slow]
    assert racks(fetching) == [(1, "")]


def test_new_metadata_takes_no_fetch_away_from_the_named_replica() -> None:
    fetching = sent_to_two()
    fetching.refreshed()
    assert fetching.cancelled == []
    assert racks(fetching) == [(2, "b")]


def test_a_named_replica_that_now_leads_is_retried_with_pauses() -> None:
    fetching = sent_to_two()
    fetching.leaders.leaders[A] = 2
    fetching.answer(failing(A, ErrorCode.UNKNOWN_LEADER_EPOCH), after_ms=1)
    assert racks(fetching) == [(2, "")]
    fetching.answer(failing(A, ErrorCode.UNKNOWN_LEADER_EPOCH), after_ms=1)
    assert not fetching.sent
    assert fetching.wake_at_ms is not None
    assert fetching.wake_at_ms > fetching.now_ms


def test_partitions_of_one_node_with_and_without_a_rack_keep_to_its_two_requests() -> None:
    """`validate`, which each step calls, counts them."""
    fetching = sent_to_two()
    fetching.assign(A, B, at=None)
    fetching.fail(NetworkError("refused"))  # A goes to node 1 without a rack
    fetching.serve(request_id=max(i for i, r in fetching.sent.items() if not r.is_fetch))
    assert sorted(racks(fetching)) == [(1, ""), (1, "b")]


def test_without_a_rack_a_named_replica_is_not_asked() -> None:
    fetching = Fetching("earliest")
    fetching.assign(A)
    assert racks(fetching) == [(1, "")]
    fetching.answer(naming(2), after_ms=1)
    assert [node for node, _ in racks(fetching)] in ([1], [])
