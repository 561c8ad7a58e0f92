"""Moves a consumer group to the other cluster of a mirror: its offsets, by the offset map.

The mirror's journal has the first and last offsets of each batch on both sides. Where a batch has
gaps, the group goes to its begin: it reads some records twice, and misses none. Run the mirror to
its end first, and stop the group's consumers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.client import Admin, OffsetAndMetadata
from tidemark.config.security import ClientSecurity
from tidemark.errors import ConfigError
from tidemark.spark.jobs.copying import translated
from tidemark.spark.jobs.files import HadoopFiles
from tidemark.spark.jobs.journal import OF_OFFSETS, Journal
from tidemark.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Translation:
    """The offset of a group on both sides; None if the mirror has no record before or at it."""

    partition: int
    offset: int
    target_offset: int | None
    is_exact: bool


def translations(
    results: Sequence[Mapping[str, Any]], offsets: Mapping[int, int]
) -> list[Translation]:
    """Translates offsets by partition."""
    found = []
    for partition, offset in sorted(offsets.items()):
        answer = translated(results, partition, offset)
        target, is_exact = (None, False) if answer is None else answer
        found.append(Translation(partition, offset, target, is_exact))
    return found


def translate(
    spark: Any,
    servers: str,
    target_servers: str,
    group: str,
    topics: tuple[str, str],
    directory: str,
    *,
    dry_run: bool,
    security: ClientSecurity | None = None,
    target_security: ClientSecurity | None = None,
) -> list[Translation]:
    """Commits the group's offsets of a topic in the target, for the topic there.

    `directory` has the journal of the mirror of `topics`, source and target. Raises ConfigError if
    it has none, or the group no offset of the topic. Raises JobDamagedError, UnknownMemberIdError
    if the group has members in the target, and the client's errors.
    """
    source, target = topics
    journal = Journal(HadoopFiles(spark, directory), directory, OF_OFFSETS)
    if not journal.load({"job": "mirror", "topics": [source], "target_topic": target}):
        raise ConfigError(f"{directory} has no journal of a mirror")
    with Admin(servers, security=security) as admin:
        known = admin.groups.offsets(group)
    offsets = {tp.partition: at.offset for tp, at in known.items() if tp.topic == source}
    if not offsets:
        raise ConfigError(f"group {group} has no offset of topic {source}")
    found = translations(journal.results(), offsets)
    wanted = {
        TopicPartition(target, each.partition): OffsetAndMetadata(each.target_offset)
        for each in found
        if each.target_offset is not None
    }
    if wanted and not dry_run:
        with Admin(target_servers, security=target_security) as admin:
            admin.groups.alter_offsets(group, wanted)
    return found
