"""The partitions of a fetch: named once (`SessionlessFetch`), or kept in a session (KIP-227).

A session lives as long as one open call of a follower or a consumer. The leader keeps its
partitions, so a request and its answer name only changes, and a thousand idle partitions cost
nothing while one is busy. Kafka numbers sessions and their requests, and keeps a bounded cache of
them. Here the call is the session: it begins with a full request and ends with the call. The id
only shows a follower that its call has been replaced.

A partition is read in these cases:

- The request names it.
- Its log moved or its ISR shrank since the last read.
- It has more to do: bytes beyond the response's limit, or a follower outside of the ISR.
- A disk or the tier was read for it meanwhile.

After an answer with records, an error or a diverging epoch a partition is not read before a request
names it. The next request may have been sent before the follower had that answer. A request that
comes behind a parked one ends its wait.

No pass goes over all partitions. One is answered if it has news: records, an error, a diverging
epoch, or another high watermark or log start than in its last answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from node.partition.hosted import HostedPartition, Wakeable
from node.partition.replica_state import Pulse
from tidemark.errors import InvalidFetchSessionEpochError
from tidemark.types import OrderedSet, TopicPartition
from tidemark.wire import FetchPartitionData
from tidemark.wire.produce import buffers_of

_ids = itertools.count(1)


class FetchingReplica(NamedTuple):
    """A follower that fetches: its node id and broker epoch."""

    node_id: int
    broker_epoch: int


class FetchPartition(NamedTuple):
    """One partition of a fetch; None stands for -1 in the request."""

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None
    log_start_offset: int = -1
    topic_id: bytes = b""

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic or self.topic_id.hex(), self.partition)


class FetchContext(Protocol):
    """The partitions of one fetch, and their answers (Kafka's FetchContext)."""

    @property
    def held_bytes(self) -> int:
        """Bytes of records in answers that the next `take` does not repeat, once it was called."""
        ...

    def asked_at(self, now_ms: int) -> None:
        """Records the time of a follower's request."""

    def take(self) -> Sequence[FetchPartition]:
        """The partitions to read now."""
        ...

    def watch(self, item: FetchPartition, hosted: HostedPartition) -> None:
        """Ends `wait` when the partition moves from now on."""

    def look_again(self, item: FetchPartition) -> None:
        """Includes the partition in the next `take`, without ending `wait` for it."""

    def looked_at(self, items: Sequence[FetchPartition], answers: list[FetchPartitionData]) -> None:
        """Records the answer of each item of `take`."""

    async def wait(self, until: float, also: Sequence[OrderedSet[Wakeable]] = ()) -> None:
        """Waits until a watched partition moves, the waiters of one of `also` are woken, or the
        loop's time is `until`.
        """

    def ends_now(self) -> bool:
        """Whether an advanced high watermark, or a request behind it, ends the fetch."""
        ...

    def answers(self) -> list[FetchPartitionData]:
        """The answers of the fetch; called once, at its end."""
        ...


class SessionlessFetch:
    """Reads all partitions in each pass, and answers them in order."""

    __slots__ = ("_answers", "_from_replica", "_wanted", "_watched", "offsets")

    def __init__(self, wanted: Sequence[FetchPartition], *, from_replica: bool = False) -> None:
        self._wanted = wanted
        self.offsets = [item.fetch_offset for item in wanted]
        self._from_replica = from_replica
        self._watched: list[HostedPartition] = []
        self._answers: list[FetchPartitionData] = []

    @property
    def held_bytes(self) -> int:
        return 0

    def asked_at(self, now_ms: int) -> None:
        pass

    def take(self) -> Sequence[FetchPartition]:
        self._watched.clear()
        return self._wanted

    def watch(self, item: FetchPartition, hosted: HostedPartition) -> None:
        self._watched.append(hosted)

    def look_again(self, item: FetchPartition) -> None:
        pass

    def looked_at(self, items: Sequence[FetchPartition], answers: list[FetchPartitionData]) -> None:
        self._answers = answers

    async def wait(self, until: float, also: Sequence[OrderedSet[Wakeable]] = ()) -> None:
        """Waits until a partition moves, one of `also` is woken, or the loop's time is `until`.

        A follower's fetch waits for the log's end, a consumer's for the high watermark.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        handle = loop.call_at(until, _wake, waiter)
        sets = [p.data_waiters if self._from_replica else p.commit_waiters for p in self._watched]
        sets += also
        for waiters in sets:
            waiters.add(waiter)
        try:
            await waiter
        finally:
            handle.cancel()
            for waiters in sets:
                waiters.discard(waiter)

    def ends_now(self) -> bool:
        return False

    def answers(self) -> list[FetchPartitionData]:
        return self._answers


def _wake(waiter: Wakeable) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Watch:
    """A waiter of a partition that marks it in the session at each wake-up."""

    __slots__ = ("_mark", "hosted")

    def __init__(self, hosted: HostedPartition, mark: Callable[[], None]) -> None:
        self.hosted = hosted
        self._mark = mark

    def done(self) -> bool:
        return False

    def set_result(self, _: None) -> None:
        self._mark()


class IncrementalFetch:
    """The part of a session that followers and consumers share; `close` it with its call."""

    def __init__(self) -> None:
        self.behind: asyncio.Future[Any] | None = None  # done when another request follows
        self.held_bytes = 0
        self._wanted: dict[TopicPartition, FetchPartition] = {}
        self._moved: dict[TopicPartition, None] = {}  # to read, in this order
        self._again: dict[TopicPartition, None] = {}  # to read before those
        self._told: set[TopicPartition] = set()  # not read until they are named again
        self._answers: dict[TopicPartition, FetchPartitionData] = {}
        self._waiter: asyncio.Future[None] | None = None

    def apply(
        self, named: Sequence[FetchPartition], forgotten: Iterable[TopicPartition] = ()
    ) -> None:
        """Begins a request, with its changes."""
        self._answers.clear()
        self.held_bytes = 0
        for key in forgotten:
            self._drop(key)
        for item in named:
            self._wanted[item.key] = item
            self._moved[item.key] = None
            self._told.discard(item.key)

    def __len__(self) -> int:
        return len(self._wanted)

    def asked_at(self, now_ms: int) -> None:
        """A consumer is not watched."""

    def take(self) -> list[FetchPartition]:
        """The partitions to read now."""
        keys = self._again | self._moved
        self._again, self._moved = {}, {}
        for key in keys:
            self.held_bytes -= _size_of(self._answers.pop(key, None))
        told, wanted = self._told, self._wanted
        return [wanted[key] for key in keys if key in wanted and key not in told]

    def look_again(self, item: FetchPartition) -> None:
        """Includes the partition in the next `take`, without ending `wait` for it."""
        self._again[item.key] = None

    def looked_at(self, items: Sequence[FetchPartition], answers: list[FetchPartitionData]) -> None:
        for item, answer in zip(items, answers, strict=True):
            self._answers[item.key] = answer
            self.held_bytes += _size_of(answer)

    async def wait(self, until: float, also: Sequence[OrderedSet[Wakeable]] = ()) -> None:
        """Waits until a partition moves, another request follows, one of `also` is woken, or the
        loop's time is `until`."""
        if self._moved or self.is_followed:
            return
        behind, loop = self.behind, asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        handle = loop.call_at(until, self._wake)
        if behind is not None:
            behind.add_done_callback(self._next_came)
        for waiters in also:
            waiters.add(waiter)
        try:
            await waiter
        finally:
            handle.cancel()
            self._waiter = None
            if behind is not None:
                behind.remove_done_callback(self._next_came)
            for waiters in also:
                waiters.discard(waiter)

    @property
    def is_followed(self) -> bool:
        """Whether another request came behind this one, which ends its wait."""
        return self.behind is not None and self.behind.done()

    def ends_now(self) -> bool:
        return self.is_followed

    def _next_came(self, _: asyncio.Future[Any]) -> None:
        self._wake()

    def _on_moved(self, key: TopicPartition) -> None:
        self._moved[key] = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            _wake(self._waiter)

    def _drop(self, key: TopicPartition) -> None:
        self._wanted.pop(key, None)
        self._moved.pop(key, None)
        self._again.pop(key, None)
        self._told.discard(key)

    def close(self) -> None:
        """Forgets all partitions."""
        for key in list(self._wanted):
            self._drop(key)
        self._moved.clear()
        self._again.clear()
        self._answers.clear()
        self.held_bytes = 0


class FetchSession(IncrementalFetch):
    """A follower's session; belongs to the event loop.

    With `tells_commits` an advanced high watermark is answered at once: consumers read at the
    follower (KIP-392). Else it goes with the next answer, which halves the messages.
    """

    def __init__(self, tells_commits: bool = False) -> None:
        super().__init__()
        self.id = 0
        self.tells_commits = tells_commits
        self.pulse = Pulse()
        self._replica: FetchingReplica | None = None
        self._data: dict[TopicPartition, _Watch] = {}
        self._commits: dict[TopicPartition, _Watch] = {}
        self._committed: dict[TopicPartition, None] = {}  # high watermark moved
        self._sent: dict[TopicPartition, tuple[int, int]] = {}

    def begin(
        self,
        replica: FetchingReplica,
        session_id: int,
        named: Sequence[FetchPartition],
        forgotten: Iterable[TopicPartition],
    ) -> None:
        """Applies a request: everything (id 0), or the changes. Raises
        InvalidFetchSessionEpochError if the changes are of another session."""
        if session_id == 0:
            self.close()
            self.id, self._replica = next(_ids), replica
        elif session_id != self.id or replica != self._replica:
            raise InvalidFetchSessionEpochError("begin the session anew with a full fetch")
        self.apply(named, forgotten)

    def asked_at(self, now_ms: int) -> None:
        self.pulse.last_request_ms = now_ms

    def watch(self, item: FetchPartition, hosted: HostedPartition) -> None:
        """Marks the partition in the session whenever it moves from now on."""
        key = item.key
        data = self._data.get(key)
        if data is None or data.hosted is not hosted:
            self._unwatch(key)
            self._data[key] = data = _Watch(hosted, lambda: self._on_moved(key))
            self._commits[key] = _Watch(hosted, lambda: self._on_commit(key))
        hosted.data_waiters.add(data)
        hosted.commit_waiters.add(self._commits[key])
        assert self._replica is not None, "a session begins with a request"
        hosted.core.remotes[self._replica.node_id].pulse = self.pulse

    def ends_now(self) -> bool:
        return self.is_followed or (
            self.tells_commits
            and any(
                key not in self._told and self._sent.get(key) != positions_of(watch.hosted)
                for key in self._committed
                if (watch := self._commits.get(key)) is not None
            )
        )

    def answers(self) -> list[FetchPartitionData]:
        """The news of partitions that were read, and of those whose high watermark moved."""
        looked_at, self._answers = self._answers, {}
        committed, self._committed = self._committed, {}
        for key in committed:
            watch = self._commits.get(key)
            if watch is None:
                continue
            watch.hosted.commit_waiters.add(watch)
            if key in self._told:
                continue
            answer = looked_at.get(key)
            if answer is None and self._sent.get(key) != positions_of(watch.hosted):
                looked_at[key] = answer = FetchPartitionData(key.topic, key.partition)
            if answer is not None and not answer.error_code:
                set_positions(answer, watch.hosted)  # it moved after it was read
        return [answer for key, answer in looked_at.items() if self._is_news(key, answer)]

    def _is_news(self, key: TopicPartition, answer: FetchPartitionData) -> bool:
        if answer.error_code:
            self._sent.pop(key, None)
            self._told.add(key)
            return True
        positions = (answer.high_watermark, answer.log_start_offset)
        news = bool(answer.records) or answer.diverging_epoch is not None
        if news:
            self._told.add(key)
        if self._sent.get(key) != positions:
            self._sent[key] = positions
            news = True
        return news

    def _on_commit(self, key: TopicPartition) -> None:
        self._committed[key] = None
        if self.tells_commits:
            self._wake()

    def _drop(self, key: TopicPartition) -> None:
        super()._drop(key)
        self._sent.pop(key, None)
        self._unwatch(key)

    def _unwatch(self, key: TopicPartition) -> None:
        data, commit = self._data.pop(key, None), self._commits.pop(key, None)
        if data is not None and commit is not None:
            data.hosted.data_waiters.discard(data)
            commit.hosted.commit_waiters.discard(commit)
            assert self._replica is not None, "a session begins with a request"
            core = data.hosted.core
            state = core.remotes.get(self._replica.node_id)
            if state is not None and state.pulse is self.pulse:
                state.look_up_pulse(core.log_end_offset)
                state.pulse = None

    def close(self) -> None:
        """Removes all watches; the next request must be a full one."""
        self.id = 0
        super().close()
        self._committed.clear()


class ConsumerSession(IncrementalFetch):
    """A consumer's session; it moves with the high watermark.

    A partition is named by its topic, or by the topic's id alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []
        """The fetch offset of each of the last `answers`."""
        self._watches: dict[TopicPartition, _Watch] = {}
        self._sent: dict[TopicPartition, tuple[int, int, int]] = {}

    def watch(self, item: FetchPartition, hosted: HostedPartition) -> None:
        """Marks the partition in the session when it moves next."""
        key = item.key
        watch = self._watches.get(key)
        if watch is None or watch.hosted is not hosted:
            self._unwatch(key)
            self._watches[key] = watch = _Watch(hosted, lambda: self._on_moved(key))
        hosted.commit_waiters.add(watch)

    def answers(self) -> list[FetchPartitionData]:
        """The news of partitions that were read."""
        looked_at, self._answers = self._answers, {}
        news = {key: answer for key, answer in looked_at.items() if self._is_news(key, answer)}
        self.offsets = [self._wanted[key].fetch_offset for key in news]
        return list(news.values())

    def _is_news(self, key: TopicPartition, answer: FetchPartitionData) -> bool:
        if (
            answer.records
            or answer.error_code
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica is not None
        ):
            self._told.add(key)
            return True
        positions = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        is_new = self._sent.get(key) != positions
        self._sent[key] = positions
        return is_new

    def _drop(self, key: TopicPartition) -> None:
        super()._drop(key)
        self._sent.pop(key, None)
        self._unwatch(key)

    def _unwatch(self, key: TopicPartition) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.hosted.commit_waiters.discard(watch)


def _size_of(answer: FetchPartitionData | None) -> int:
    return 0 if answer is None else buffers_of(answer.records)[1]


def positions_of(hosted: HostedPartition) -> tuple[int, int]:
    """The offsets a follower needs besides the records: high watermark and log start."""
    return hosted.core.high_watermark, hosted.log.log_start_offset


def set_positions(answer: FetchPartitionData, hosted: HostedPartition) -> None:
    """Sets the offsets that every answer has."""
    answer.high_watermark = hosted.core.high_watermark
    answer.last_stable_offset = min(hosted.log.last_stable_offset, hosted.core.high_watermark)
    answer.log_start_offset = hosted.log.log_start_offset
