"""Bugs planted in production code; the whole cluster under some seed must catch each of them.

A canary is a class with `patches`: rows of (owner, name of its attribute, broken attribute), which
are in place while a world runs. Production builds all objects itself, so a bug is planted where the
class or module keeps its code. A new one is a class in `CANARIES`, and the seeds that catch it in
`test_whole_cluster.py`. `python -m tests.sim --cluster --canary NAME --seeds 60` finds them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest.mock import patch

from tests.sim.partitions import canaries as partitions


class ClusterCanary:
    """The correct implementation. Each subclass breaks one rule."""

    patches: ClassVar[tuple[tuple[Any, str, Any], ...]] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Runs the world with the bug in place."""
        with contextlib.ExitStack() as stack:
            for owner, name, broken in self.patches:
                stack.enter_context(patch.object(owner, name, broken))
            yield


class CommitsWithAnyIsr(ClusterCanary):
    """A high watermark moves while the ISR is below min.insync.replicas (rule 9)."""

    patches = partitions.CommitsWithAnyIsr.patches


class ElectsAnyReplica(ClusterCanary):
    """A replica outside of ISR and ELR is elected as if it had been in sync (I4)."""

    patches = partitions.ElectsAnyReplica.patches


CANARIES: dict[str, type[ClusterCanary]] = {
    "cluster-commits-with-any-isr": CommitsWithAnyIsr,
    "cluster-elects-any-replica": ElectsAnyReplica,
}
