"""A log that is emptied and continues elsewhere, with history that its own batches do not tell.

A follower whose leader has older records in the tier only begins at the leader's local log
(KIP-405). Log start, leader epochs and producers up to there come from the tier. The change takes
many files, and one without the others is dangerous. A replica with an empty log and no epochs may
be in sync soon. As leader it would take the whole tier for another lineage's. So one file decides:

    1. the file `restart` gets the whole new state, durably
       -- the restart is decided: from here on it is finished, also by the next start --
    2. segments and snapshots go; the log's state in memory is the new one
    3. epochs, producer snapshot and the checkpoint of log starts are written
    4. the file `restart` is removed, before the log's next change

An opening that finds the file does steps 2 and 3 again: nothing was appended since. Step 4 is left
to the first change, because only a registered log is in the checkpoints. A step that fails, on a
full disk, is repeated before the next append; until then the file tells everything.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from crc32c import crc32c

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs
from commitlog.disk.files import Directory
from commitlog.segment.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    snapshot_name,
)
from commitlog.segment.producer_state import decode_snapshot
from tidemark.errors import StorageError

RESTART_FILE = "restart"
_OF_SEGMENTS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LOG_SUFFIX)
_VERSION = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """State of a log that is empty at `offset`: made by `of`, which checks it."""

    offset: int
    log_start_offset: int
    epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes

    @classmethod
    def of(
        cls,
        offset: int,
        log_start_offset: int,
        epochs: Iterable[tuple[int, int]],
        producer_snapshot: bytes,
    ) -> Restart:
        """Returns the state with the part of the lineage that is below `offset`. Raises
        StorageError if the snapshot is damaged, or the epochs do not rise.
        """
        start = min(log_start_offset, offset)
        below = tuple((epoch, begin) for epoch, begin in epochs if begin < offset)
        for (epoch, begin), (later, later_begin) in pairwise(below):
            if epoch >= later or begin >= later_begin:
                raise StorageError(f"leader epochs that do not rise: {below}")
        decode_snapshot(producer_snapshot)
        return cls(offset, start, below, producer_snapshot)

    def encode(self) -> bytes:
        """Returns the content of the file: a line with the CRC-32C of the rest, which is JSON."""
        body = json.dumps(
            {
                "version": _VERSION,
                "offset": self.offset,
                "logStartOffset": self.log_start_offset,
                "epochs": self.epochs,
                "producerSnapshot": base64.b64encode(self.producer_snapshot).decode(),
            }
        ).encode()
        return b"%08x\n%b\n" % (crc32c(body), body)

    @classmethod
    def read(cls, directory: Directory) -> Restart | None:
        """Reads the file; None if there is none. Raises StorageError if it is damaged."""
        if not directory.exists(RESTART_FILE):
            return None
        head, _, body = directory.read(RESTART_FILE).rstrip(b"\n").partition(b"\n")
        try:
            if int(head, 16) != crc32c(body):
                raise ValueError("its checksum differs")
            found = json.loads(body)
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']}")
            return cls.of(
                found["offset"],
                found["logStartOffset"],
                [(epoch, begin) for epoch, begin in found["epochs"]],
                base64.b64decode(found["producerSnapshot"], validate=True),
            )
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise StorageError(
                f"{directory.path}/{RESTART_FILE} is damaged ({error}): the log was being rebuilt"
                " from the tier, and what is here is incomplete. It is copied anew from its leader"
                " as soon as another replica is in sync. If there is none, stop the broker and"
                f" remove {directory.path}: the partition is then rebuilt from the tier"
            ) from error

    def apply(self, directory: Directory) -> None:
        """Removes the old log's files from a directory that no open log uses, and writes the new
        state. May be repeated.
        """
        kept = snapshot_name(self.offset)
        names = [name for name in directory.list() if name[:20].isdigit()]
        for suffix in _OF_SEGMENTS:  # a segment's log is last: it explains its indexes
            for name in reversed(names):
                if name.endswith(suffix) and name != kept:
                    directory.remove(name)
        directory.write_atomic(kept, self.producer_snapshot)
        directory.write_atomic(LEADER_EPOCH_CHECKPOINT, format_epochs(self.epochs))
