"""Consumer groups as values for pages: states, members, and lag by partition (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.client.models import GroupDescription, GroupListing, OffsetAndMetadata
from tidemark.types import TopicPartition

Committed = Mapping[TopicPartition, OffsetAndMetadata]
Ends = Mapping[TopicPartition, int]


def _lag(offset: int | None, end: int | None) -> int | None:
    return None if offset is None or end is None else max(0, end - offset)


def groups(
    listed: Sequence[GroupListing],
    committed: Mapping[str, Committed],
    ends: Ends,
    left_out: int = 0,
) -> dict[str, Any]:
    """A row for each group; the lag is None where offsets or ends are unknown."""
    rows = []
    for group in listed:
        own = committed.get(group.group_id)
        lags = [_lag(found.offset, ends.get(p)) for p, found in (own or {}).items()]
        known = [lag for lag in lags if lag is not None]
        rows.append(
            {
                "group": group.group_id,
                "state": group.state,
                "type": group.type,
                "partitions": None if own is None else len(own),
                "lag": sum(known) if known else None,
            }
        )
    return {"groups": {"rows": rows, "rows_left_out": left_out}}


def group(
    group_id: str, described: GroupDescription | None, committed: Committed, ends: Ends
) -> dict[str, Any]:
    """One group: a row for each partition and for each member.

    `described` is None for a group that only commits offsets.
    """
    members = () if described is None else described.members
    owners = {partition: member for member in members for partition in member.assignment}
    rows = []
    for partition in sorted({*committed, *owners}):
        found, owner = committed.get(partition), owners.get(partition)
        offset = None if found is None else found.offset
        end = ends.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": offset,
                "end": end,
                "lag": _lag(offset, end),
                "member": None if owner is None else owner.member_id,
                "client": None if owner is None else owner.client_id,
                "metadata": "" if found is None else found.metadata,
            }
        )
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "group": group_id,
        "state": None if described is None else described.state,
        "epoch": None if described is None else described.group_epoch,
        "assignor": None if described is None else described.assignor,
        "lag": sum(lags) if lags else None,
        "partitions": {"rows": rows, "rows_left_out": 0},
        "members": {
            "rows": [
                {
                    "member": member.member_id,
                    "instance": member.instance_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "epoch": member.member_epoch,
                    "subscribed": ", ".join(member.subscribed_topic_names)
                    or member.subscribed_topic_regex,
                    "assigned": len(member.assignment),
                    "target": len(member.target_assignment),
                }
                for member in members
            ],
            "rows_left_out": 0,
        },
    }
