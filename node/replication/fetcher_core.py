"""The states of one fetcher's partitions, and its session with one leader (KIP-227). Pure.

    from                     to                        event
    -----------------------  ------------------------  --------------------------------------------
    (not followed)           FETCHING                  `follow`
    FETCHING                 TRUNCATING                the offset is out of the leader's range
    FETCHING                 FLUSHING                  flush.messages is reached
    FETCHING, TRUNCATING     BUILDING_REMOTE_LOG_AUX   the records are in the tier (KIP-405)
    TRUNC., BUILD., FLUSH.   FETCHING                  `ended`: the log is where the leader's is
    all but FAILED           DELAYED                   an error that may pass, or a throttle
    DELAYED                  FETCHING                  the delay is over
    all but DELAYED          FAILED                    the log cannot take what the leader has
    any                      FETCHING                  `follow` in another leader epoch; from FAILED
                                                       with any change of the metadata
    any                      (not followed)            `unfollow`

Only FETCHING partitions are in the session. A request names those that the leader does not have or
that need another answer, and the ones that left. Names and answers pair by these rules:

- Requests and answers have the same order. At most two are under way. The second is sent when a
  partition has to be named, and the leader then answers the first one at once.
- A full request begins a session and does not wait, because nothing can follow it before the
  session has its id.
- An answer that has records, an end of an epoch or an error counts once. After it the partition
  counts again in the answer of the next request that names it, or of a later one.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition

GRAIN_S = 0.001  # due within this counts as due now
GATHER_S = 0.005  # between the requests of which one ends the wait of the other
FIRST_PAUSE_S = 0.01  # for a leader that has not heard of its election, and after a lost fetch
_UNDER_WAY_MAX = 2

T = TypeVar("T")


class FollowerState(enum.Enum):
    """State of a follower, by the names of Kafka's ReplicaState and of KIP-405."""

    FETCHING = "Fetching"
    TRUNCATING = "Truncating"
    FLUSHING = "Flushing"
    BUILDING_REMOTE_LOG_AUX = "BuildingRemoteLogAux"
    DELAYED = "Delayed"
    FAILED = "Failed"


_ASIDE = frozenset(
    {
        FollowerState.FLUSHING,
        FollowerState.TRUNCATING,
        FollowerState.BUILDING_REMOTE_LOG_AUX,
    }
)
_DONE = frozenset(FollowerState) - _ASIDE
_NEXT = {
    FollowerState.FETCHING: frozenset(FollowerState) - {FollowerState.FETCHING},
    FollowerState.FLUSHING: _DONE,
    FollowerState.TRUNCATING: _DONE | {FollowerState.BUILDING_REMOTE_LOG_AUX},
    FollowerState.BUILDING_REMOTE_LOG_AUX: _DONE,
    FollowerState.DELAYED: frozenset({FollowerState.FETCHING}),
    FollowerState.FAILED: frozenset(),
}

_NOT_YET = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""Answers of a leader that has not applied the metadata which this follower has."""


class Command(enum.Enum):
    """Action of the edge for a partition's answer."""

    APPEND = "append the records"
    TRUNCATE = "truncate to where the histories part"
    FIND_RANGE = "ask for the leader's range"
    BUILD_AUX = "start from the tier"
    WAIT = "nothing: the partition is delayed"


@dataclass(slots=True, eq=False)
class Followed(Generic[T]):
    """One partition of a fetcher. `epoch` is the leader epoch in which it is followed."""

    key: TopicPartition
    hosted: T
    epoch: int
    state: FollowerState = FollowerState.FETCHING
    retry_at: float = 0.0  # while delayed
    failures: int = 0  # of the way from the tier, since the last append
    refusals: int = 0  # by a leader that may not have heard yet, since the last append
    named_in: int | None = None  # first request whose answer counts


class FetchPlan(NamedTuple, Generic[T]):
    """Contents of a request. Without a session id `named` are all partitions."""

    number: int
    session_id: int
    named: list[Followed[T]]
    forgotten: list[TopicPartition]
    waits: bool


class FetcherCore(Generic[T]):
    """Belongs to one edge, which passes in the time in s and sends the requests in their order."""

    def __init__(self, backoff_s: float, backoff_max_s: float) -> None:
        self.failed: dict[TopicPartition, Followed[T]] = {}
        self._backoff_s = backoff_s
        self._backoff_max_s = max(backoff_s, backoff_max_s)
        self._followed: dict[TopicPartition, Followed[T]] = {}
        self._fetching: dict[TopicPartition, Followed[T]] = {}
        self._unsent: dict[TopicPartition, Followed[T]] = {}  # for the next request
        self._delayed: list[tuple[float, int, Followed[T]]] = []  # a heap; entries may be outdated
        self._tie = itertools.count()
        self._session_id = 0
        self._in_session: set[TopicPartition] = set()
        self._leaving: set[TopicPartition] = set()  # the session may have to drop them
        self._keeps_sessions = True  # the leader, as far as it is known
        self._number = 0  # of the last request
        self._first = 0  # request of the session
        self._under_way: deque[int] = deque()
        self._sent_at = float("-inf")
        self._losses = 0  # of fetches, one soon after the other
        self._calm_at = float("-inf")  # a loss from then on is the first

    # --- what is followed ----------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[TopicPartition, object]:
        """The partitions followed; not to be changed."""
        return self._followed

    def follow(self, key: TopicPartition, hosted: T, epoch: int) -> bool:
        """Follows the partition in this leader epoch; False if it does already."""
        known = self._followed.get(key)
        is_same = known is not None and known.hosted is hosted and known.epoch == epoch
        if is_same and key not in self.failed:
            return False
        self.failed.pop(key, None)
        self._followed[key] = self._fetching[key] = self._unsent[key] = Followed(key, hosted, epoch)
        return True

    def unfollow(self, key: TopicPartition) -> None:
        if self._followed.pop(key, None) is not None:
            self.failed.pop(key, None)
            self._leave_session(key)

    def follows(self, item: Followed[T]) -> bool:
        """Whether the partition is still followed as this item."""
        return self._followed.get(item.key) is item

    # --- requests and answers ------------------------------------------------------------------

    def next_request(self, now: float) -> FetchPlan[T] | None:
        """The request to send now, if there is one."""
        self._rouse(now + GRAIN_S)
        if not self._fetching or len(self._under_way) >= _UNDER_WAY_MAX:
            return None
        if self._under_way and (not self._may_follow or now < self._sent_at + GATHER_S):
            return None
        self._number += 1
        self._under_way.append(self._number)
        self._sent_at = now
        if self._session_id:
            return self._changes()
        self._first = self._number
        named = list(self._fetching.values())
        self._unsent.clear()
        self._leaving.clear()
        return self._naming(named, [], not self._keeps_sessions)

    @property
    def _may_follow(self) -> bool:
        """Whether a request may be sent behind one that is under way."""
        return bool(self._session_id and self._unsent)

    def _changes(self) -> FetchPlan[T]:
        gone = sorted(k for k in self._leaving if k in self._in_session and k not in self._fetching)
        self._leaving.clear()
        self._in_session.difference_update(gone)
        named = list(self._unsent.values())
        self._unsent.clear()
        return self._naming(named, gone, True)

    def _naming(
        self, named: list[Followed[T]], forgotten: list[TopicPartition], waits: bool
    ) -> FetchPlan[T]:
        for item in named:
            if item.named_in is None:
                item.named_in = self._number
            self._in_session.add(item.key)
        return FetchPlan(self._number, self._session_id, named, forgotten, waits)

    def next_deadline(self) -> float | None:
        """Time at which `next_request` may have one without another event."""
        while self._delayed and not self._is_delayed(*self._delayed[0]):
            heapq.heappop(self._delayed)
        due = self._delayed[0][0] if self._delayed else None
        if self._may_follow and len(self._under_way) == 1:
            follow_up = self._sent_at + GATHER_S
            due = follow_up if due is None else min(due, follow_up)
        return due

    def answered(self, number: int, session_id: int) -> bool:
        """Takes the head of an answer; False if it is of an earlier session."""
        self._under_way.remove(number)
        if number < self._first:
            return False
        self._keeps_sessions = session_id != 0
        if session_id:
            self._session_id = session_id
        else:
            self._end_session()
        return True

    def on_answer(
        self,
        number: int,
        key: TopicPartition,
        code: int,
        now: float,
        *,
        has_records: bool,
        diverges: bool,
    ) -> tuple[Followed[T], Command] | None:
        """Takes the answer of one partition; None if it does not count (any more)."""
        item = self._fetching.get(key)
        if item is None or not self._counts(item, number):
            return None
        if code or has_records or diverges:
            item.named_in = None
            self._unsent[key] = item
        if code == ErrorCode.NONE:
            item.refusals = 0
            if diverges:
                return item, Command.TRUNCATE
            item.failures = 0
            return item, Command.APPEND
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return item, Command.FIND_RANGE
        if code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return item, Command.BUILD_AUX
        if code in _NOT_YET:
            pause_s = FIRST_PAUSE_S * 2 ** min(item.refusals, 20)
            item.refusals += 1
            self.hold(item, now + min(pause_s, self._backoff_s))
        else:
            self.delay(item, now)
        return item, Command.WAIT

    def name_again(self, item: Followed[T]) -> None:
        """Has the next request name the partition, although its records are where they were."""
        if self.follows(item) and item.state is FollowerState.FETCHING:
            self._unsent[item.key] = item

    def _counts(self, item: Followed[T], number: int) -> bool:
        """Whether the answer to this request is one to the item as it was named last."""
        return item.named_in is not None and number >= item.named_in

    def lost(self, number: int, now: float, *, delays: bool) -> bool:
        """Takes a fetch without an answer: the session is over. With `delays` all partitions wait,
        shortly at first: a call may break while the leader is well. False if the fetch was of an
        earlier session."""
        self._under_way.remove(number)
        if number < self._first:
            return False
        self._end_session()
        if delays:
            self._losses = self._losses + 1 if now < self._calm_at else 0
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self._losses, 20), self._backoff_s)
            self._calm_at = now + pause_s + self._backoff_s
            for item in tuple(self._fetching.values()):
                self.hold(item, now + pause_s)
        return True

    def _end_session(self) -> None:
        """The next request names everything."""
        self._session_id = 0
        self._first = self._number + 1
        self._in_session.clear()
        self._leaving.clear()

    # --- states --------------------------------------------------------------------------------

    def begin(self, item: Followed[T], state: FollowerState) -> None:
        """Begins work on the log, or to find out where to fetch from: any of `_ASIDE`."""
        assert state in _ASIDE, state
        if self.follows(item) and item.state is not state:
            self._move(item, state)
        if state is FollowerState.BUILDING_REMOTE_LOG_AUX:
            item.failures += 1  # until an append

    def ended(self, item: Followed[T]) -> None:
        """Fetches again after `begin`, unless the item is delayed or failed by now."""
        if self.follows(item) and item.state in _ASIDE:
            self._move(item, FollowerState.FETCHING)

    def delay(self, item: Followed[T], now: float) -> None:
        """Delays the partition after an error; while the tier fails, longer and longer."""
        pause_s = self._backoff_s * 2 ** min(max(0, item.failures - 1), 20)
        self.hold(item, now + min(pause_s, self._backoff_max_s))

    def hold(self, item: Followed[T], until: float) -> None:
        """Fetches the partition again at this time."""
        if self.follows(item):
            self._move(item, FollowerState.DELAYED)
            item.retry_at = until
            heapq.heappush(self._delayed, (until, next(self._tie), item))

    def fail(self, item: Followed[T]) -> None:
        """Fetches the partition no more until it is followed anew."""
        if self.follows(item):
            self._move(item, FollowerState.FAILED)
            self.failed[item.key] = item

    def _move(self, item: Followed[T], state: FollowerState) -> None:
        assert state in _NEXT[item.state], f"{item.key}: {item.state} to {state}"
        item.state = state
        if state is FollowerState.FETCHING:
            item.named_in = None
            self._fetching[item.key] = self._unsent[item.key] = item
        else:
            self._leave_session(item.key)

    def _leave_session(self, key: TopicPartition) -> None:
        self._fetching.pop(key, None)
        self._unsent.pop(key, None)
        self._leaving.add(key)

    def _rouse(self, due: float) -> None:
        while self._delayed and self._delayed[0][0] < due:
            entry = heapq.heappop(self._delayed)
            if self._is_delayed(*entry):
                self._move(entry[2], FollowerState.FETCHING)

    def _is_delayed(self, at: float, _: int, item: Followed[T]) -> bool:
        return self.follows(item) and item.state is FollowerState.DELAYED and item.retry_at == at

    def validate(self) -> None:
        """Asserts the invariants of states and session."""
        states = {key: item.state for key, item in self._followed.items()}
        assert set(self._fetching) == {k for k, s in states.items() if s is FollowerState.FETCHING}
        assert set(self.failed) == {k for k, s in states.items() if s is FollowerState.FAILED}
        assert self._unsent.keys() <= self._fetching.keys(), "names of partitions not fetched"
        assert len(self._under_way) <= _UNDER_WAY_MAX
        if self._session_id:
            for key, item in self._fetching.items():
                known = key in self._in_session and item.named_in is not None
                assert known or key in self._unsent, f"{key} is forgotten"
            assert self._in_session - self._fetching.keys() <= self._leaving, "stays named"
