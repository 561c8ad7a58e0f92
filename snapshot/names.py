"""How a checkpoint is named: `%020d-%010d.checkpoint`, of its end offset (exclusive) and the epoch
of its last record.

The design document (KIP-630) prints the epoch with 20 digits, Apache Kafka's code writes 10: 10
are written, both are read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

_NAME = re.compile(r"(\d{20})-(\d{10}|\d{20})\.checkpoint")


class SnapshotId(NamedTuple):
    """Everything below `end_offset`, whose last record has `epoch`. Orders by offset, then
    epoch.
    """

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """The file name of the frozen checkpoint."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"

    @property
    def part_name(self) -> str:
        """The file name while the checkpoint is being written or fetched."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{PART_SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    """The id of a frozen checkpoint's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None
