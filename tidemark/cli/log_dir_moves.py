"""Moves of replicas between the directories of their brokers (KIP-113): `tidemark log-dirs move`,
and the log_dirs of a reassignment plan.

tidemark log-dirs move --broker 4 --topic-partition flights-0 --to /disk2/tidemark
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError, RequestTimedOutError

if TYPE_CHECKING:
    from tidemark.client.models import LogDirDescription, TopicPartitionReplica
    from tidemark.client.sync import Admin

COMPLETE = "complete"
_POLL_S = 0.3


@with_session
def move(
    session: Session,
    broker: Annotated[int, typer.Option(help="The broker that has the replicas.")],
    topic_partition: Annotated[
        list[str], typer.Option("--topic-partition", help="e.g. flights-0; repeatable.")
    ],
    to: Annotated[str, typer.Option(help="A directory of the broker's log.dirs.")],
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show progress, return when it is done.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.", min=0)] = 3600,
) -> None:
    """Move replicas to another directory of their broker. Naming the directory they are in ends
    moves under way."""
    from tidemark.cli.reassignment import parse_partition
    from tidemark.client.models import TopicPartitionReplica

    wanted = {TopicPartitionReplica(parse_partition(text), broker): to for text in topic_partition}
    with session.admin() as admin:
        answers = admin.alter_replica_log_dirs(wanted)
        for error in filter(None, answers.values()):
            raise error
        states = wait_until_moved(admin, wanted, timeout) if wait else states_of(admin, wanted)
    session.show(
        {
            str(replica.topic_partition): {"broker": broker, "log_dir": to, "state": state}
            for replica, state in states.items()
        },
        ("PARTITION", "BROKER", "LOG DIR", "STATE"),
        [(r.topic_partition, r.broker_id, to, state) for r, state in states.items()],
    )
    if wait and any(state != COMPLETE for state in states.values()):
        raise typer.Exit(1)


def states_of(
    admin: Admin, wanted: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, str]:
    """`complete`, the rest to copy, or the replica's actual directory."""
    described = _described(admin, wanted)
    return {replica: _state(replica, path, described) for replica, path in wanted.items()}


def wait_until_moved(
    admin: Admin, wanted: Mapping[TopicPartitionReplica, str], timeout_s: float
) -> dict[TopicPartitionReplica, str]:
    """Shows progress on a terminal until every move has ended, and returns the states.

    Raises RequestTimedOutError after `timeout_s`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    deadline = time.monotonic() + timeout_s
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("moving", total=None)
        while True:
            described = _described(admin, wanted)
            states = {r: _state(r, path, described) for r, path in wanted.items()}
            copied, total = _copied(wanted, described)
            progress.update(bar, completed=copied, total=total)
            if not any(state.startswith("in progress") for state in states.values()):
                return states
            if time.monotonic() >= deadline:
                raise RequestTimedOutError(
                    f"the moves are not done after {timeout_s:g} s: {states}"
                )
            time.sleep(_POLL_S)


def parse_log_dirs(text: str) -> dict[TopicPartitionReplica, str]:
    """The directories that a plan of Kafka's tools names, except `any`. Raises ConfigError."""
    import json

    from tidemark.client.models import TopicPartitionReplica
    from tidemark.types import TopicPartition

    found: dict[TopicPartitionReplica, str] = {}
    for item in json.loads(text)["partitions"]:
        paths = item.get("log_dirs")
        if paths is None:
            continue
        partition = TopicPartition(str(item["topic"]), int(item["partition"]))
        if not isinstance(paths, list) or len(paths) != len(item["replicas"]):
            raise ConfigError(f"{partition}: as many log_dirs as replicas are needed")
        for broker_id, path in zip(item["replicas"], paths, strict=True):
            if path != "any":
                found[TopicPartitionReplica(partition, int(broker_id))] = str(path)
    return found


def begin(
    admin: Admin, wanted: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, str]:
    """Requests moves. Returns those whose brokers do not have the replicas yet.

    Such a broker makes the replica in the requested directory later. Raises the first other error.
    """
    from tidemark.errors import ReplicaNotAvailableError

    answers = admin.alter_replica_log_dirs(wanted) if wanted else {}
    later = {}
    for replica, error in answers.items():
        if isinstance(error, ReplicaNotAvailableError):
            later[replica] = wanted[replica]
        elif error is not None:
            raise error
    return later


def _described(
    admin: Admin, wanted: Mapping[TopicPartitionReplica, str]
) -> dict[int, list[LogDirDescription]]:
    brokers = sorted({replica.broker_id for replica in wanted})
    topics = sorted({replica.topic_partition.topic for replica in wanted})
    return admin.describe_log_dirs(brokers, topics) if brokers else {}


def _places(
    replica: TopicPartitionReplica, described: Mapping[int, list[LogDirDescription]]
) -> tuple[Any, Any]:
    """The present and the future (directory, replica) of a replica; None for one that does not
    exist.
    """
    current = future = None
    for directory in described.get(replica.broker_id, ()):
        for found in directory.replicas:
            if found.topic_partition == replica.topic_partition:
                if found.is_future:
                    future = (directory, found)
                else:
                    current = (directory, found)
    return current, future


def _state(
    replica: TopicPartitionReplica, path: str, described: Mapping[int, list[LogDirDescription]]
) -> str:
    current, future = _places(replica, described)
    if future is not None and PurePath(future[0].log_dir) == PurePath(path):
        return f"in progress: {future[1].offset_lag} offsets left to copy"
    if current is None:
        return "the broker has no such replica (online)"
    if PurePath(current[0].log_dir) == PurePath(path):
        return COMPLETE
    moving = "" if future is None else f", moving to {future[0].log_dir}"
    return f"not as planned: it is in {current[0].log_dir}{moving}"


def _copied(
    wanted: Mapping[TopicPartitionReplica, str], described: Mapping[int, list[LogDirDescription]]
) -> tuple[int, int]:
    """Bytes copied, and bytes in all."""
    copied = total = 0
    for replica in wanted:
        current, future = _places(replica, described)
        size = 0 if current is None else current[1].size_bytes
        total += size
        copied += size if future is None else future[1].size_bytes
    return copied, total
