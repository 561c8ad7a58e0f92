"""The fetcher's core against a modelled leader: any history of changes, answers, losses and errors.

The leader keeps a session as `node.serving.fetch_session` does. Each answer says in which epoch and
at which offset it read, so a wrong pairing of answers and partitions shows at once.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.replication.fetcher_core import (
    FIRST_PAUSE_S,
    Command,
    FetcherCore,
    FetchPlan,
    Followed,
    FollowerState,
)
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition

KEYS = [TopicPartition("t", index) for index in range(4)]


@dataclass
class Replica:
    """A follower's log in one leader epoch."""

    end: int = 0


@dataclass
class Asked:
    """One partition of a request on its way."""

    key: TopicPartition
    epoch: int
    offset: int


@dataclass
class Answer:
    number: int
    session_id: int = 0
    lost_session: bool = False
    found: list[tuple[Asked, int, int]] = field(default_factory=list)  # code, end offset


class Leader:
    """One peer: its logs, and the session of the open call."""

    def __init__(self, rng: random.Random, keeps_sessions: bool) -> None:
        self.rng = rng
        self.keeps_sessions = keeps_sessions
        self.ends = dict.fromkeys(KEYS, 0)
        self.faults: dict[TopicPartition, int] = {}
        self.ids = 0
        self.hang_up()

    def hang_up(self) -> None:
        self.session_id = 0
        self.wanted: dict[TopicPartition, Asked] = {}
        self.told: set[TopicPartition] = set()

    def serve(
        self, request: FetchPlan[Replica], asked: list[Asked], *, is_followed: bool
    ) -> Answer | None:
        """Answers; None while the fetch is parked and no request came behind it."""
        if request.session_id == 0:
            self.hang_up()
            self.ids += 1
            self.session_id = self.ids
        elif request.session_id != self.session_id:
            return Answer(request.number, lost_session=True)
        for key in request.forgotten:
            self.wanted.pop(key, None)
            self.told.discard(key)
        for item in asked:
            self.wanted[item.key] = item
            self.told.discard(item.key)
        found = [
            (item, self.faults.get(key, 0), self.ends[key])
            for key, item in self.wanted.items()
            if key not in self.told
            and (self.ends[key] > item.offset or key in self.faults or self.rng.random() < 0.1)
        ]
        if not found and request.waits and not is_followed and self.rng.random() < 0.7:
            return None
        self.told.update(item.key for item, code, end in found if code or end > item.offset)
        answer = Answer(request.number, self.session_id if self.keeps_sessions else 0, found=found)
        if not self.keeps_sessions:
            self.hang_up()
        return answer


class World:
    def __init__(self, seed: int, keeps_sessions: bool) -> None:
        self.rng = random.Random(seed)
        self.core: FetcherCore[Replica] = FetcherCore(1.0, 8.0)
        self.leader = Leader(self.rng, keeps_sessions)
        self.now = 0.0
        self.epochs = dict.fromkeys(KEYS, 0)
        self.sent: deque[tuple[FetchPlan[Replica], list[Asked]]] = deque()
        self.answers: deque[Answer] = deque()
        self.aside: list[Followed[Replica]] = []
        self.met: Counter[str] = Counter()

    def follow(self) -> None:
        key = self.rng.choice(KEYS)
        known = self.core._followed.get(key)
        if known is None or self.rng.random() < 0.5:
            self.epochs[key] += 1
            self.core.follow(key, Replica(self.leader.ends[key] // 2), self.epochs[key])
        else:
            was_failed = known.state is FollowerState.FAILED
            assert self.core.follow(key, known.hosted, known.epoch) == was_failed
            self.met["failed again followed"] += was_failed

    def unfollow(self) -> None:
        self.core.unfollow(self.rng.choice(KEYS))

    def append(self) -> None:
        self.leader.ends[self.rng.choice(KEYS)] += 1

    def fault(self) -> None:
        key = self.rng.choice(KEYS)
        if self.leader.faults.pop(key, None) is None:
            self.leader.faults[key] = self.rng.choice(
                [
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                ]
            )

    def send(self) -> None:
        request = self.core.next_request(self.now)
        if request is not None:
            self.met["two under way"] += len(self.sent) + len(self.answers) > 0
            assert not self.core._fetching.keys() & set(request.forgotten), "left and is fetched"
            asked = [Asked(i.key, i.epoch, i.hosted.end) for i in request.named]
            self.sent.append((request, asked))

    def serve(self) -> None:
        if self.sent:
            answer = self.leader.serve(*self.sent[0], is_followed=len(self.sent) > 1)
            if answer is not None:
                self.sent.popleft()
                self.answers.append(answer)

    def deliver(self) -> None:
        if not self.answers:
            return
        answer = self.answers.popleft()
        if answer.lost_session:
            self.core.lost(answer.number, self.now, delays=False)
            return
        if not self.core.answered(answer.number, answer.session_id):
            return
        for asked, code, end in answer.found:
            news = not code and end > asked.offset  # otherwise offsets alone, e.g. a high watermark
            found = self.core.on_answer(
                answer.number, asked.key, code, self.now, has_records=news, diverges=False
            )
            if found is None:
                self.met["late"] += 1
                assert news or code or not self.is_named(asked), "a high watermark is lost"
                continue
            item, command = found
            assert (item.epoch, item.hosted.end) == (asked.epoch, asked.offset), "another's answer"
            if command is Command.APPEND:
                if self.rng.random() < 0.1:
                    self.core.fail(item)
                else:
                    item.hosted.end = end
            elif command is not Command.WAIT:
                is_range = command is Command.FIND_RANGE
                state = (
                    FollowerState.TRUNCATING if is_range else FollowerState.BUILDING_REMOTE_LOG_AUX
                )
                self.core.begin(item, state)
                self.aside.append(item)

    def is_named(self, asked: Asked) -> bool:
        """Whether the leader was asked this of the partition as it is now."""
        item = self.core._fetching.get(asked.key)
        return (
            item is not None
            and item.named_in is not None
            and (item.epoch, item.hosted.end) == (asked.epoch, asked.offset)
        )

    def name(self) -> None:
        item = self.core._fetching.get(self.rng.choice(KEYS))
        if item is not None:
            self.core.name_again(item)

    def finish(self) -> None:
        if self.aside:
            item = self.aside.pop(self.rng.randrange(len(self.aside)))
            if item.state is FollowerState.TRUNCATING and self.rng.random() < 0.3:
                self.core.begin(item, FollowerState.BUILDING_REMOTE_LOG_AUX)
            if self.core.follows(item) and self.rng.random() < 0.3:
                self.core.delay(item, self.now)
            self.core.ended(item)

    def lose(self) -> None:
        """Ends the call: no request under way is answered."""
        numbers = [r.number for r, _ in self.sent] + [a.number for a in self.answers]
        self.sent.clear()
        self.answers.clear()
        self.leader.hang_up()
        self.rng.shuffle(numbers)
        for number in numbers:
            self.core.lost(number, self.now, delays=True)

    def restart(self) -> None:
        """The leader forgets the session without the call ending."""
        self.leader.hang_up()

    def wait(self) -> None:
        self.now += self.rng.choice((0.001, 0.004, 0.5, 3.0))

    def settle(self) -> None:
        """Without further faults every followed partition gets everything."""
        self.leader.faults.clear()
        for _ in range(60):
            while self.aside:
                self.finish()
            for step in (self.send, self.send, self.serve, self.serve, self.deliver, self.deliver):
                step()
                self.core.validate()
            due = self.core.next_deadline()
            if due is not None and not self.core._under_way:
                self.now = max(self.now, due)
            self.now += 0.01
        for key, item in self.core._followed.items():
            assert item.state in (FollowerState.FETCHING, FollowerState.FAILED), item
            assert item.state is FollowerState.FAILED or item.hosted.end == self.leader.ends[key], (
                item
            )


STEPS = [
    *(World.send, World.serve, World.deliver) * 4,
    *(World.append, World.follow, World.wait) * 2,
    *(World.unfollow, World.fault, World.finish, World.lose, World.restart, World.name),
]


def walk(seed: int, steps: int, keeps_sessions: bool = True) -> World:
    world = World(seed, keeps_sessions)
    for _ in range(steps):
        world.rng.choice(STEPS)(world)
        world.core.validate()
    world.settle()
    return world


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 200), st.booleans())
def test_any_history_pairs_answers_and_ends_with_everything(
    seed: int, steps: int, keeps_sessions: bool
) -> None:
    walk(seed, steps, keeps_sessions)


def test_the_walks_reach_the_rare_branches() -> None:
    met: Counter[str] = Counter()
    for seed in range(150):
        met += walk(seed, 200).met
    assert min(met[name] for name in ("two under way", "late", "failed again followed")) > 10, met


def test_a_state_follows_only_the_states_of_the_table() -> None:
    core: FetcherCore[Replica] = FetcherCore(1.0, 8.0)
    core.follow(KEYS[0], Replica(), 1)
    request = core.next_request(0.0)
    assert request is not None
    (item,) = request.named
    core.fail(item)
    for leave in (
        core.fail,
        lambda i: core.delay(i, 0.0),
        lambda i: core.begin(i, FollowerState.TRUNCATING),
    ):
        with pytest.raises(AssertionError, match="FAILED"):
            leave(item)
    core.ended(item)
    assert item.state is FollowerState.FAILED, "only a new item is fetched"
    assert core.next_request(99.0) is None


def test_while_the_tier_fails_the_delays_grow_to_their_limit_and_an_append_ends_that() -> None:
    core: FetcherCore[Replica] = FetcherCore(1.0, 4.0)
    core.follow(KEYS[0], Replica(), 1)
    now, waits = 0.0, []
    code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    for answer in [code] * 4 + [ErrorCode.NONE, code]:
        request = core.next_request(now)
        assert request is not None
        core.answered(request.number, 1)
        found = core.on_answer(
            request.number, KEYS[0], answer, now, has_records=not answer, diverges=False
        )
        assert found is not None
        if answer:
            core.begin(found[0], FollowerState.BUILDING_REMOTE_LOG_AUX)
            core.delay(found[0], now)
            core.ended(found[0])
            due = core.next_deadline()
            assert due is not None
            waits.append(due - now)
            now = due
    assert waits == [1, 2, 4, 4, 1]


def begun(keeps_sessions: bool = True) -> FetcherCore[Replica]:
    """Returns a core with one partition whose first request, sent at 0, was answered."""
    core: FetcherCore[Replica] = FetcherCore(1.0, 4.0)
    core.follow(KEYS[0], Replica(), 1)
    first = core.next_request(0.0)
    assert first is not None
    assert (first.number, first.session_id, first.waits) == (1, 0, False)
    assert core.answered(1, 7 if keeps_sessions else 0)
    return core


def test_a_leader_without_sessions_is_named_everything_in_requests_that_wait() -> None:
    core = begun(keeps_sessions=False)
    for number in (2, 3):
        request = core.next_request(0.0)
        assert request is not None
        assert (len(request.named), request.waits) == (1, True)
        core.follow(KEYS[1], Replica(), number)
        assert core.next_request(9.0) is None, "nothing goes behind it"
        core.unfollow(KEYS[1])
        assert core.answered(number, 0)


def test_changes_that_come_together_go_behind_a_parked_request_together() -> None:
    core = begun()
    assert core.next_request(1.0) is not None
    core.follow(KEYS[1], Replica(), 1)
    assert core.next_request(1.004) is None
    core.follow(KEYS[2], Replica(), 1)
    assert core.next_deadline() == 1.005
    request = core.next_request(1.005)
    assert request is not None
    assert [item.key for item in request.named] == KEYS[1:3]
    core.follow(KEYS[3], Replica(), 1)
    assert core.next_request(2.0) is None, "two are under way"


def test_what_was_under_way_when_a_session_ended_belongs_to_no_later_one() -> None:
    core = begun()
    assert core.next_request(1.0) is not None
    core.follow(KEYS[1], Replica(), 1)
    assert core.next_request(2.0) is not None
    assert core.lost(2, 2.0, delays=False)
    assert core.next_request(2.0) is None, "an answer is still to come"
    assert not core.answered(3, 7)
    again = core.next_request(2.0)
    assert again is not None
    assert (again.session_id, len(again.named)) == (0, 2)
    core = begun()
    assert core.next_request(1.0) is not None
    core.follow(KEYS[1], Replica(), 1)
    assert core.next_request(2.0) is not None
    assert core.lost(3, 2.0, delays=True)
    assert not core.lost(2, 2.5, delays=True)
    assert core.next_deadline() == 2.0 + FIRST_PAUSE_S, "delayed once"


def lose(core: FetcherCore[Replica], now: float, *, answered: bool = False) -> float:
    """Loses the next fetch, after the answer of one before it; returns the pause that follows."""
    request = core.next_request(now)
    assert request is not None
    if answered:
        assert core.answered(request.number, 7)
        core.follow(KEYS[1], Replica(), request.number)
        request = core.next_request(now)
        assert request is not None
    assert core.lost(request.number, now, delays=True)
    due = core.next_deadline()
    assert due is not None
    return due - now


def test_a_broken_call_is_begun_anew_soon_and_a_leader_that_is_lost_is_asked_seldom() -> None:
    core, now, pauses = begun(), 1.0, []
    for _ in range(9):
        pauses.append(lose(core, now))
        now += pauses[-1]
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])
    assert lose(core, now + 2.0) == pytest.approx(0.01), "the call has held for a while"


def test_calls_that_each_break_after_an_answer_are_begun_ever_more_seldom() -> None:
    core, now, pauses = begun(), 1.0, []
    for _ in range(8):
        pauses.append(lose(core, now, answered=True))
        now += pauses[-1]
    assert pauses[-2:] == pytest.approx([0.64, 1.0])
