"""Harm by a restart of a broker (pure)."""

from __future__ import annotations

from collections.abc import Callable

from quorum.image import MetadataImage


def restart_harms(image: MetadataImage, node_id: int, min_isr: Callable[[str], int]) -> list[str]:
    """The partitions that could not be written to while this broker is down: their in-sync replicas
    would be too few."""
    return sorted(
        f"{topic.name}-{index}"
        for topic, index, partition in image.topics.hosted_by(node_id)
        if node_id in partition.isr
        and len(partition.replicas) > 1
        and len(partition.isr) - 1 < min(min_isr(topic.name), len(partition.replicas))
    )
