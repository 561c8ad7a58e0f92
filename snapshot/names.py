"""Names of checkpoints: `%020d-%010d.checkpoint`, of the end offset (exclusive) and the epoch of
the last record.

The design document (KIP-630) prints the epoch with 20 digits, Apache Kafka's code with 10. Names
are written with 10 and read with both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

_NAME = re.compile(r"(\d{20})-(\d{10}|\d{20})\.checkpoint")


class SnapshotId(NamedTuple):
    """The identity of a checkpoint of everything below `end_offset`, whose last record has `epoch`.
    Ordered by offset, then epoch.
    """

    end_offset: int
    epoch: int

    @property
    def name(self) -> str:
        """File name of the frozen checkpoint."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"

    @property
    def part_name(self) -> str:
        """File name while the checkpoint is written or fetched."""
        return f"{self.end_offset:020d}-{self.epoch:010d}{PART_SUFFIX}"


def parse_name(name: str) -> SnapshotId | None:
    """Returns the id in a frozen checkpoint's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None
