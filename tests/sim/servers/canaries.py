"""Planted bugs in the controller and its edges; the simulated cluster must catch each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

from quorum.controller.partition_change import PartitionChangeBuilder
from quorum.controller.quorum_controller import QuorumController
from quorum.controller.result import ControllerResult
from quorum.replica.loader import MetadataLoader
from snapshot.reader import SnapshotReader
from tidemark.errors import ApiError


class Servers:
    """The correct implementation. Each subclass breaks one rule."""

    controller: type[QuorumController] = QuorumController
    loader: type[MetadataLoader] = MetadataLoader
    patches: tuple[tuple[object, str, object], ...] = ()
    """Object, attribute and replacement, in force while a seed runs."""


class _AnswersBeforeCommit(QuorumController):
    def _process(
        self, generate: Callable[[int], ControllerResult[Any]], future: asyncio.Future[Any]
    ) -> int:
        if future.done():
            return 0
        try:
            result = generate(self._now_ms())
            self._append(result)
        except ApiError as error:
            future.set_exception(error)
            return 0
        future.set_result(result.response)
        return sum(map(len, result.groups))


class AnswersBeforeCommit(Servers):
    """A change is answered when it is appended, not when it is committed (RULES.md rule 7)."""

    controller = _AnswersBeforeCommit


class _LeavesOutOfSnapshots(MetadataLoader):
    def handle_load_snapshot(self, reader: SnapshotReader) -> None:
        class AllButOne:
            id = reader.id

            def batches(self) -> Iterator[list[bytes]]:
                for values in reader.batches():
                    yield values[:-1]

        super().handle_load_snapshot(cast(SnapshotReader, AllButOne()))


class LeavesOutOfSnapshots(Servers):
    """A node that loads a checkpoint misses its last record (RULES.md I8)."""

    loader = _LeavesOutOfSnapshots


_draft = PartitionChangeBuilder._draft


def _elects_any_replica(self: PartitionChangeBuilder) -> Any:
    draft = _draft(self)
    if not any(self.is_acceptable_leader(r) for r in draft.isr):
        draft.isr = tuple(r for r in draft.replicas if self.is_acceptable_leader(r)) or draft.isr
    return draft


class ElectsOutsideOfElr(Servers):
    """The controller elects a replica outside of ISR and ELR as if it had been in sync (I4)."""

    patches = ((PartitionChangeBuilder, "_draft", _elects_any_replica),)


CANARIES: dict[str, type[Servers]] = {
    "answers-before-commit": AnswersBeforeCommit,
    "leaves-out-of-snapshots": LeavesOutOfSnapshots,
    "elects-outside-of-elr": ElectsOutsideOfElr,
}
