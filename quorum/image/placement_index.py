"""Finds the partitions of a topic on a broker: a table of replicas as one block of numbers.

When one of a hundred brokers is fenced, 97 of 100 partitions do not concern it. A table of 4 bytes
per replica finds those of one topic in microseconds. Looking at each partition takes a hundred
microseconds. The table is computed on first use, so only the active controller has it. It belongs
to an immutable topic and never needs an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy

_NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """`indexes[i]` is the partition with the replicas `replicas[i * width : (i + 1) * width]`."""

    indexes: Any
    replicas: Any
    width: int

    @classmethod
    def of(cls, indexes: Sequence[int], lists: Sequence[tuple[int, ...]]) -> Placement:
        """Makes the table of partitions and their replicas."""
        widths = set(map(len, lists))
        width = max(widths)
        if len(widths) > 1:
            # Shorter lists are padded.
            lists = list(zip(*zip_longest(*lists, fillvalue=_NOBODY), strict=True))
        flat = numpy.fromiter(
            chain.from_iterable(lists), dtype=numpy.int32, count=width * len(lists)
        )
        return cls(numpy.array(indexes, dtype=numpy.int32), flat, width)

    def hosted_by(self, broker_id: int) -> list[int]:
        """Partitions with a replica on the broker, in no order."""
        places = numpy.flatnonzero(self.replicas == broker_id)
        found: list[int] = self.indexes[places // self.width].tolist()
        return found
