"""The checkpoints that a simulated node makes of its image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snapshot.names import SnapshotId
from snapshot.writer import SnapshotWriter
from tidemark.errors import CorruptMessageError, FatalError, StorageError

if TYPE_CHECKING:
    from tests.sim.node import SimNode


class Checkpoints:
    """Writes the checkpoints of one life of a node."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.under_way = False

    def make(self) -> None:
        """Writes the image as a checkpoint in the background and cleans the log; power may fail at
        each step.
        """
        node = self._node
        if node.is_paused or node.image.offset == 0 or self.under_way:
            return
        end_offset, high_watermark = node.image.offset, node.replica.high_watermark
        node.image.wants_snapshot = False
        if node.canary.snapshots_uncommitted:
            end_offset = high_watermark = node.log.end_offset
        if end_offset < node.log.start_offset:
            return
        try:
            snapshot_id = node.log.snapshot_id_for(end_offset, high_watermark)
            if snapshot_id is None:
                return
            timestamp_ms = node.log.last_timestamp_ms(end_offset)
        except CorruptMessageError:
            if not node.wounds.is_open:
                raise
            node.world.seen["no checkpoint of a damaged log"] += 1
            return
        self._write(snapshot_id, timestamp_ms, node.image.records())

    def _write(self, snapshot_id: SnapshotId, timestamp_ms: int, values: list[bytes]) -> None:
        """Writes a checkpoint as RaftServer does: a full disk costs the checkpoint, a failed fsync
        the process.
        """
        node = self._node
        self.under_way = True
        writer: SnapshotWriter | None = None

        def write() -> None:
            nonlocal writer
            writer = node.log.snapshot_writer(snapshot_id, timestamp_ms)
            writer.append(values)

        def freeze() -> None:
            assert writer is not None
            writer.freeze()
            node.world.trace(node, f"snapshot {snapshot_id.name}")

        def frozen() -> None:
            self.under_way = False
            node.log.snapshot_frozen(snapshot_id)
            node.world.seen["checkpoint made"] += 1
            node.world.checks.on_snapshot_frozen(node, snapshot_id)
            node.serving.clean()

        def step(index: int) -> None:
            if node.world.chance(0.05):
                node.world.seen["crash while a checkpoint is written"] += 1
                node.crash()
                return
            try:
                (write, freeze, frozen)[index]()
            except FatalError as error:
                node.disk_failed(error)
                return
            except StorageError as error:
                node.world.is_planned(node, error)
                self.under_way = False
                if writer is not None:
                    writer.abort()
                return
            if index < 2:
                delay_ms = node.world.rng.randrange(node.snapshot_write_max_ms)
                node.world.seen["slow write of a checkpoint"] += delay_ms > 50
                node.world.after(delay_ms, node, lambda: step(index + 1))

        step(0)
