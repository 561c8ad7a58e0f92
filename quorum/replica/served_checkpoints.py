"""Verification of the checkpoints that a leader serves: before the first piece, not for each piece.

A checkpoint is verified once, and again when a follower begins anew with it: then the follower may
have found damage. A damaged one is not served (`quorum/replica/metadata_log.py::drop_snapshot`).
"""

from __future__ import annotations

import asyncio

from quorum.raft.effects import ReadSnapshot
from quorum.replica.metadata_log import ReplicatedLog
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader, file_name
from tidemark.errors import CorruptMessageError, SnapshotNotFoundError, StorageError


class ServedCheckpoints:
    """The checkpoints of one log that are known to be whole."""

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self._whole: set[SnapshotId] = set()
        self._checks: dict[SnapshotId, asyncio.Future[str | None]] = {}

    def must_verify(self, read: ReadSnapshot) -> bool:
        """Whether this read begins with a checkpoint that may be damaged."""
        return read.position == 0 and (read.doubted or read.snapshot_id not in self._whole)

    async def damage(self, snapshot_id: SnapshotId) -> str | None:
        """Verifies the whole file in a thread. Returns why it cannot be served, or None. Followers
        that begin at the same time share one pass.
        """
        check = self._checks.get(snapshot_id)
        if check is None:
            check = asyncio.ensure_future(asyncio.to_thread(self._verify, snapshot_id))
            self._checks[snapshot_id] = check
            check.add_done_callback(lambda _: self._checks.pop(snapshot_id, None))
        reason = await asyncio.shield(check)
        self._note(snapshot_id, reason)
        return reason

    def _note(self, snapshot_id: SnapshotId, reason: str | None) -> None:
        if reason is None:
            self._whole.add(snapshot_id)
        else:
            self._whole.discard(snapshot_id)

    @property
    def first_is_missing(self) -> bool:
        """Whether the checkpoint where the log begins is set aside, and must be made again."""
        earliest = self._log.earliest_snapshot
        if earliest is None or self._log.start_offset == 0:
            return False
        return file_name(self._log.directory, earliest) is None

    async def replacement(self, damaged_offset: int | None) -> SnapshotId | None:
        """Returns a whole checkpoint behind the damaged batch, or behind a first checkpoint that is
        set aside: the log may begin there. None if nothing is damaged, or there is none.
        """
        log, latest, earliest = self._log, self._log.latest_snapshot, self._log.earliest_snapshot
        if earliest is None or latest is None:
            return None
        behind = damaged_offset is not None and log.start_offset <= damaged_offset
        behind = behind and latest.end_offset > (damaged_offset or 0)
        lost = earliest != latest and self.first_is_missing
        whole = (behind or lost) and await self.damage(latest) is None
        return latest if whole else None

    def _verify(self, snapshot_id: SnapshotId) -> str | None:
        try:
            FileSnapshotReader(self._log.directory, snapshot_id).verify_checksums()
        except (CorruptMessageError, SnapshotNotFoundError, StorageError) as error:
            return str(error)
        return None
