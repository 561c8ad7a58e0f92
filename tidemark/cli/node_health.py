"""Problems that nodes tell of themselves, for `tidemark cluster health` (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemark.cli.output import reason_of
from tidemark.cli.problems import Problem
from tidemark.errors import ApiError, UnsupportedVersionError

if TYPE_CHECKING:
    from tidemark.client.models import FailedTask, ListenerCertificate, NodeState

FAILURES_MIN = 3
"""Failures in a row before a task is told: one that fails once is tried again."""
_DAY_MS = 86_400_000


def node_problems(
    nodes: Mapping[int, NodeState | ApiError],
    active_brokers: Collection[int],
    now_ms: int,
    min_certificate_days: int,
) -> list[Problem]:
    """Certificates near their end, and tasks of the tier that fail again and again.

    Of nodes that do not answer only active brokers are told. The others have problems of their own,
    and a controller's listener may not be for clients. An older node has no such answer.
    """
    found: list[Problem] = []
    for node_id, state in sorted(nodes.items()):
        if isinstance(state, ApiError):
            if node_id in active_brokers and not isinstance(state, UnsupportedVersionError):
                where = f"broker {node_id}"
                found.append(Problem("warning", "node unknown", where, reason_of(state)))
            continue
        for certificate in state.certificates:
            where = f"node {node_id}: listener {certificate.listener}"
            found += _of_certificate(where, certificate, now_ms, min_certificate_days)
        for task in state.failed_tasks:
            found += _of_task(node_id, task)
    return found


def _of_certificate(
    where: str, certificate: ListenerCertificate, now_ms: int, min_days: int
) -> Iterator[Problem]:
    if certificate.error_message:
        told = f"{certificate.error_message}: the former certificate stays in use"
        yield Problem("warning", "certificate unreadable", where, told)
        return
    left_ms, end = certificate.not_after_ms - now_ms, _date(certificate.not_after_ms)
    if left_ms <= 0:
        told = f"{certificate.subject}: {end}; no client can connect that checks it"
        yield Problem("critical", "certificate ended", where, told)
    elif left_ms < min_days * _DAY_MS:
        told = f"{certificate.subject}: {end}, in {left_ms // _DAY_MS} days"
        yield Problem("warning", "certificate ends soon", where, told)


def _of_task(node_id: int, task: FailedTask) -> Iterator[Problem]:
    if task.failures < FAILURES_MIN:
        return
    where = f"broker {node_id}: {task.topic_partition}"
    told = f"{task.task} failed {task.failures} times since {_date(task.since_ms)}"
    yield Problem("warning", "tier task fails", where, f"{told}: {task.last_error}")


def _date(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
