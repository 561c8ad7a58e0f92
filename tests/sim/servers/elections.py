"""The rule of clean elections, checked on every step of every partition (RULES.md I4, I9).

A clean election takes a replica of the ISR or an eligible one (KIP-966). A reassignment that ends
may take one that the old leader added to the ISR in the same step. The last known leader may lead
again, RECOVERING, where ISR and eligible replicas are empty.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from quorum.image import LeaderRecoveryState, MetadataImage, PartitionRegistration
from tests.sim.checks import Violation


class Elections:
    """The partitions of all images so far; `see` compares each with its last step."""

    def __init__(self, seen: Counter[str]) -> None:
        self._seen = seen
        self._known: dict[tuple[UUID, int], dict[int, PartitionRegistration]] = {}

    def see(self, image: MetadataImage) -> None:
        for topic in image.topics:
            for index, after in topic.partitions.items():
                steps = self._known.setdefault((topic.topic_id, index), {})
                if after.partition_epoch in steps:
                    continue
                steps[after.partition_epoch] = after
                before = steps.get(after.partition_epoch - 1)
                if before is not None and before.leader != after.leader:
                    self._judge(f"{topic.name}-{index}", before, after)

    def _judge(
        self, name: str, before: PartitionRegistration, after: PartitionRegistration
    ) -> None:
        leader = after.leader
        if leader is None:
            return
        self._seen["leader elected"] += 1
        if leader in before.isr:
            return
        if leader in before.elr:
            self._seen["eligible replica elected"] += 1
            return
        if after.leader_recovery_state == LeaderRecoveryState.RECOVERING:
            self._seen["last known leader elected"] += 1
            holds = leader in before.last_known_elr
        else:  # the old leader added it, and left the replicas
            holds = before.leader is not None and before.leader not in after.replicas
        if not holds:
            raise Violation(
                f"I4 a clean election takes a replica of ISR or ELR: {name}: {before} -> {after}"
            )
