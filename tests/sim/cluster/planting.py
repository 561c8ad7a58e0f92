"""The base of the bugs that are planted in the whole cluster."""

from __future__ import annotations

from typing import ClassVar

from tests.sim.patching import Patching


class ClusterCanary(Patching):
    """The correct implementation. Each subclass breaks one rule."""

    fault_ms: ClassVar[int] = 12_000
    """How long faults happen; less for bugs that show soon."""
