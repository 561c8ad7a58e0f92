"""A problem of a cluster, as `tidemark cluster health` tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem; `severity` is critical or warning, `where` is a broker, a partition or a
    controller.
    """

    severity: str
    kind: str
    where: str
    detail: str
