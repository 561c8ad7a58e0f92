"""The partitions of an internal topic that this broker leads, as the runtime uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from commitlog.types import AppendOrigin, NotCachedError
from node.partition.hosted import HostedPartition, PendingAck
from node.serving.produce import ProduceHandler, park
from tidemark.errors import CoordinatorNotAvailableError, ErrorCode, StorageError

_READ_BYTES = 1 << 20


class LedPartition:
    """The runtime's `PartitionLog` of a hosted partition, in one epoch of its leadership."""

    def __init__(
        self, hosted: HostedPartition, produce: ProduceHandler, disk: Executor | None
    ) -> None:
        """Records that the page cache lacks are read in `disk`."""
        self._hosted = hosted
        self._produce = produce
        self._disk = disk
        self.leader_epoch = hosted.core.leader_epoch

    @property
    def start_offset(self) -> int:
        return self._hosted.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._hosted.log.log_end_offset

    def append(self, batch: bytes, *, verified: bool = False) -> None:
        self._produce.append(self._hosted, batch, AppendOrigin.COORDINATOR, verified=verified)

    def when_committed(self, end_offset: int, answer: Callable[[ErrorCode], None]) -> None:
        park(self._hosted, PendingAck(end_offset, self.leader_epoch, answer))
        self._hosted.answer_acks()

    async def read(self, offset: int) -> tuple[bytes, int]:
        log = self._hosted.log
        try:
            try:
                found = log.read(offset, _READ_BYTES, waits=False)
            except NotCachedError as error:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._disk, error.load)
                found = log.read(offset, _READ_BYTES)
        except OSError as error:
            raise StorageError(f"{self._hosted.topic_partition}: {error}") from error
        if found.next_offset <= offset:
            raise CoordinatorNotAvailableError(
                f"{self._hosted.topic_partition} has no records at {offset} and ends at"
                f" {log.log_end_offset}"
            )
        return bytes(found.records), found.next_offset


class Leadable(Protocol):
    """`coordinator.runtime.runtime.CoordinatorRuntime`."""

    def leading(self, partition: int, log: LedPartition) -> None: ...

    def resigned(self, partition: int) -> None: ...


class Leaderships:
    """Tells a runtime which partitions this broker leads; called at each change of a role."""

    def __init__(
        self, runtime: Leadable, produce: ProduceHandler, disk: Executor | None = None
    ) -> None:
        self._runtime = runtime
        self._produce = produce
        self._disk = disk
        self._led: dict[int, tuple[HostedPartition, int]] = {}

    def role_changed(self, hosted: HostedPartition) -> None:
        partition = hosted.topic_partition.partition
        now = (hosted, hosted.core.leader_epoch)
        if not hosted.is_leader or hosted.is_gone:
            if self._led.pop(partition, None) is not None:
                self._runtime.resigned(partition)
        elif self._led.get(partition) != now:
            self._led[partition] = now
            self._runtime.leading(partition, LedPartition(hosted, self._produce, self._disk))
