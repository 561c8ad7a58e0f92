"""The edge of a group's member: heartbeats in the background, everything else in a poll."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition import UNKNOWN_EPOCH, Position
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.errors import CommitFailedError
from tidemark.client.groups.core import MemberSettings, Membership, MembershipCore
from tidemark.client.groups.requests import commit_request, committed_in, of_commit, of_fetch
from tidemark.client.models import ConsumerGroupMetadata, OffsetAndMetadata
from tidemark.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    StaleMemberEpochError,
    TidemarkError,
    UnknownMemberIdError,
)
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

logger = logging.getLogger(__name__)

_LEAVE_MS = 5_000
_FENCED = (FencedMemberEpochError, FencedInstanceIdError, UnknownMemberIdError)
Partitions = Sequence[TopicPartition]


class RebalanceListener(Protocol):
    """Told of each change of the assignment, from within a poll. Each method may be a coroutine
    function, and may be missing.

    Positions of revoked partitions can still be committed in `on_partitions_revoked`, those of lost
    ones can not: another member has them.
    """

    def on_partitions_assigned(self, partitions: Partitions) -> Any: ...

    def on_partitions_revoked(self, partitions: Partitions) -> Any: ...

    def on_partitions_lost(self, partitions: Partitions) -> Any: ...


class GroupMember:
    """A consumer's part in a group, as a member or only with the group's offsets."""

    def __init__(
        self,
        settings: MemberSettings,
        calls: CoordinatorCalls,
        fetcher: Fetcher,
        assign: Callable[[Partitions], None],
        auto_commit_ms: int,
        rng: Random,
    ) -> None:
        """`assign` has the consumer read partitions; `auto_commit_ms` 0: commits nothing itself."""
        self.core = MembershipCore(settings, rng)
        self._calls = calls
        self._fetcher = fetcher
        self._assign = assign
        self._auto_commit_ms = auto_commit_ms
        self._auto_commit_at_ms = fetcher.now_ms() + auto_commit_ms
        self._commit: asyncio.Task[None] | None = None
        self._listener: RebalanceListener | None = None
        self._beat: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unplaced: set[TopicPartition] = set()
        self.processed: dict[TopicPartition, int] = {}  # of an iteration amid a poll's records

    # --- subscription

    def subscribe(
        self, names: tuple[str, ...], pattern: str, listener: RebalanceListener | None
    ) -> None:
        """Joins the group, or changes the subscription."""
        self._listener = listener
        self.core.subscribe(names, pattern, self._fetcher.now_ms())
        self._auto_commit_at_ms = self._fetcher.now_ms() + self._auto_commit_ms
        self._changed.set()
        if self._beat is None:
            self._beat = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_subscribed(self) -> bool:
        return self.core.state is not Membership.OUT

    async def leave(self) -> None:
        """Commits if that is automatic, tells the listener, and leaves the group at once."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait([self._beat])
            self._beat = None
        if self._commit is not None:
            await asyncio.wait([self._commit])
        if self._auto_commit_ms and self.core.state in (Membership.OUT, Membership.MEMBER):
            await self._try_commit(self.positions())
        owned = sorted(self.core.owned)
        lost = self.core.state is Membership.LOST
        request = self.core.leave()
        if owned:
            await self._tell("lost" if lost else "revoked", owned)
        if request is not None:
            try:
                await self._calls.attempt(
                    request, pb.ConsumerGroupHeartbeatResponse, _of_whole, _LEAVE_MS
                )
            except TidemarkError as error:
                logger.info("group %s: left without an answer: %s", self._group_id, error)

    @property
    def _group_id(self) -> str:
        return self.core.settings.group_id

    # --- heartbeats

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            request = self.core.heartbeat(loop.time() * 1000)
            if request is not None:
                await self._send(request)
                continue
            next_ms = self.core.next_ms()
            wait_s = None if next_ms is None else max(0.0, next_ms / 1000 - loop.time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _send(self, request: pb.ConsumerGroupHeartbeatRequest) -> None:
        core = self.core
        if core.take_leaving():
            logger.warning(
                "group %s: no poll for max.poll.interval.ms=%d ms, so this member leaves; it joins"
                " again with the next poll: poll more often, or process less between polls",
                self._group_id,
                core.settings.max_poll_interval_ms,
            )
        sent_at_ms = self._fetcher.now_ms()
        try:
            answer = await self._calls.attempt(
                request, pb.ConsumerGroupHeartbeatResponse, _of_whole
            )
        except TidemarkError as error:
            core.failed(error, self._fetcher.now_ms())
        else:
            now_ms = self._fetcher.now_ms()
            self._fetcher.core.meter.beat(now_ms - sent_at_ms, now_ms)
            core.answered(request, answer, now_ms)
        if core.has_work:
            self._fetcher.wake()

    # --- in a poll

    async def before_poll(self) -> None:
        """Does what is due before records are handed over: takes over the assignment, places new
        partitions, commits from time to time. Raises the error that stopped the member."""
        now_ms = self._fetcher.now_ms()
        if self.is_subscribed:
            self.core.polled(now_ms)
            if self.core.error is not None:
                raise self.core.error
            if self.core.state is Membership.LOST:
                await self._give_up()
            while self.core.has_work and self.core.target is not None:
                await self._reconcile(self.core.target)
        await self.place()
        if self._auto_commit_ms and now_ms >= self._auto_commit_at_ms:
            self._auto_commit_at_ms = now_ms + self._auto_commit_ms
            positions = self.positions()
            if positions and self._commit is None:
                self._commit = asyncio.get_running_loop().create_task(self._try_commit(positions))
                self._commit.add_done_callback(self._committed)

    def _committed(self, _: asyncio.Task[None]) -> None:
        self._commit = None

    async def _give_up(self) -> None:
        owned = sorted(self.core.owned)
        self._assign([])
        self._unplaced.clear()
        if owned:
            await self._tell("lost", owned)
        self.core.gave_up(self._fetcher.now_ms())
        self._changed.set()

    async def _reconcile(self, target: Mapping[TopicPartition, bytes]) -> None:
        """Takes one assignment over: what goes is committed and told, then what comes is placed."""
        core, before = self.core, self.core.owned
        gone = sorted(p for p, topic_id in before.items() if target.get(p) != topic_id)
        new = sorted(p for p, topic_id in target.items() if before.get(p) != topic_id)
        if gone:
            if self._auto_commit_ms:
                await self._try_commit({p: o for p, o in self.positions().items() if p in gone})
            await self._tell("revoked", gone)
            kept = {p: topic_id for p, topic_id in before.items() if p not in gone}
            self._assign(list(kept))
            self._unplaced.difference_update(gone)
            core.reconciled(kept, self._fetcher.now_ms())
        if new:
            owned = {**core.owned, **{p: target[p] for p in new}}
            self._assign(list(owned))
            self._unplaced.update(new)
            await self.place()
            await self._tell("assigned", new)
            core.reconciled(owned, self._fetcher.now_ms())
        self._changed.set()

    async def _tell(self, what: str, partitions: Partitions) -> None:
        told = getattr(self._listener, f"on_partitions_{what}", None)
        if what == "lost" and told is None:
            told = getattr(self._listener, "on_partitions_revoked", None)
        if told is not None:
            result = told(partitions)
            if inspect.isawaitable(result):
                await result

    # --- positions

    def placing(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that the caller assigned itself begin at the group's offsets."""
        self._unplaced.update(partitions)

    def placed(self, partition: TopicPartition) -> None:
        """The caller sought: the group's offset does not count."""
        self._unplaced.discard(partition)

    async def place(self) -> None:
        """Seeks to the committed offsets; where there is none, auto.offset.reset decides."""
        partitions = sorted(self._unplaced)
        if not partitions:
            return
        found = await self.committed(partitions)
        known = self._fetcher.core.assignment.partitions
        for partition, committed in found.items():
            if partition in self._unplaced and partition in known and committed is not None:
                epoch = committed.leader_epoch
                to = Position(committed.offset, UNKNOWN_EPOCH if epoch is None else epoch)
                self._fetcher.core.seek(known[partition], to)
        self._unplaced.difference_update(partitions)
        self._fetcher.schedule()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets behind all that was processed, of the partitions that have one."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, state in self._fetcher.core.assignment.partitions.items():
            if partition in self._unplaced or state.reader is None:
                continue
            epoch = None if state.reader.epoch == UNKNOWN_EPOCH else state.reader.epoch
            found[partition] = OffsetAndMetadata(state.reader.offset, epoch)
        for partition, offset in self.processed.items():
            if partition in found:
                found[partition] = OffsetAndMetadata(offset)
        return found

    def metadata(self) -> ConsumerGroupMetadata:
        """The member as it is now, or only the group."""
        settings = self.core.settings
        if not self.is_subscribed:
            return ConsumerGroupMetadata(settings.group_id)
        return ConsumerGroupMetadata(
            settings.group_id, settings.member_id, self.core.epoch, settings.instance_id or None
        )

    async def _try_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self.commit(offsets, _LEAVE_MS)
        except TidemarkError as error:
            logger.warning("group %s: automatic commit failed: %s", self._group_id, error)

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Stores offsets. Raises CommitFailedError if this consumer was fenced, and the error of a
        partition that was refused."""
        if not offsets:
            return

        def make() -> pb.OffsetCommitRequest:
            request = commit_request(self._group_id, offsets, self.core.owned)
            if self.is_subscribed:
                request.member_id = self.core.settings.member_id
                request.member_epoch = self.core.epoch
            return request

        sent_at_ms = self._fetcher.now_ms()
        try:
            await self._calls.call(
                make,
                pb.OffsetCommitResponse,
                of_commit,
                timeout_ms,
                retried=(StaleMemberEpochError,) if self.core.state is Membership.MEMBER else (),
            )
        except (*_FENCED, StaleMemberEpochError) as error:
            raise CommitFailedError(
                f"group {self._group_id}: this consumer is not the group's member any more, so"
                f" others have its partitions; poll to join again ({error})"
            ) from error
        now_ms = self._fetcher.now_ms()
        self._fetcher.core.meter.committed(now_ms - sent_at_ms, now_ms)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offset of each partition; None where there is none."""
        wanted = list(partitions)

        def make() -> pb.OffsetFetchRequest:
            request = pb.OffsetFetchRequest(require_stable=True)
            group = request.groups.add(group_id=self._group_id)
            topics: dict[str, pb.OffsetFetchRequest.Topic] = {}
            for partition in wanted:
                if partition.topic not in topics:
                    topics[partition.topic] = group.topics.add(name=partition.topic)
                topics[partition.topic].partition_indexes.append(partition.partition)
            return request

        found = committed_in(await self._calls.call(make, pb.OffsetFetchResponse, of_fetch))
        return {partition: found.get(partition) for partition in wanted}


def _of_whole(answer: Any) -> Iterable[tuple[int, str]]:
    return ((answer.error_code, answer.error_message),)
