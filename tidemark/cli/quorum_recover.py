"""`tidemark quorum recover`: new voters for a quorum that lost its majority for good.

Works on the files of one controller that is left, while its process does not run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.output import Json, print_json, print_line
from tidemark.cli.session import DryRun
from tidemark.errors import ConfigError
from tidemark.types import uuid_to_text

if TYPE_CHECKING:
    from quorum.raft.voters import VoterSet
    from quorum.replica.recovery import LogState
    from tidemark.config import ServerConfig

WARNING = (
    "What the lost voters committed beyond the end of this log is lost: topics, partitions,",
    "settings, leaders. What was never committed comes true. This cannot be undone: keep a copy.",
    "Never start a lost controller on its old directory: format it anew, with",
    "--no-initial-controllers, and add it by `tidemark quorum add-controller`.",
    "Restart the brokers afterwards. One that does not follow has more of the log than this",
    "controller: compare its directory (--compare) first, or remove its __cluster_metadata-0.",
)
STATIC_WARNING = (
    "The voters were static and are in the log from now on (kraft.version 1). In the settings of",
    "every other node controller.quorum.bootstrap.servers replaces controller.quorum.voters: a",
    "controller with an empty log would count the lost voters.",
)


def recover(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The server.properties of a controller left.")
    ],
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            help="Log directory of another controller or broker that is left; repeatable. Refuses "
            "if its log is more recent."
        ),
    ] = None,
    voters: Annotated[
        str | None,
        typer.Option(
            help="The new voters, this controller among them: id@host:port:directoryId,... "
            "Default: this controller alone."
        ),
    ] = None,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Do it, whatever may be lost.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make this stopped controller (or --voters) the voters, after a majority is lost for good."""
    from node.runtime.storage import open_storage
    from quorum.raft.voters import ReplicaKey
    from quorum.replica import recovery
    from quorum.replica.settings import metadata_log_config
    from tidemark.config import load_server_config

    settings = load_server_config(config)
    if not settings.is_controller:
        raise ConfigError(f"{config}: process.roles has no controller")
    storage = open_storage(settings)
    storage.lock(settings)
    try:
        directory, directory_id = storage.metadata(settings)
        key = ReplicaKey(settings.node_id, directory_id)
        log_config = metadata_log_config(settings)
        state = recovery.read_state(directory, log_config.listener_names)
        with _others(compare or [], storage.cluster_id, key) as others:
            recovery.check_most_recent(state, others)
            wanted = _new_voters(settings, key, voters)
            epoch = recovery.epoch_after([state, *others])
            done = accept_data_loss and not dry_run
            if done:
                now_ms = int(time.time() * 1000)
                recovery.recover(directory, log_config, state, key, wanted, epoch, now_ms)
        _tell([state, *others], wanted, epoch, done=done, as_json=as_json)
    finally:
        storage.release()
    if not done and not dry_run:
        raise ConfigError("nothing is changed yet: repeat it with --accept-data-loss")


@contextlib.contextmanager
def _others(paths: list[Path], cluster_id: str, own: Any) -> Iterator[list[LogState]]:
    """The logs to compare with, whose directories are locked meanwhile."""
    from commitlog.disk.checkpoints import MetaProperties
    from commitlog.disk.os_files import OsDirectory
    from quorum.replica.recovery import read_state
    from tidemark.errors import StorageError

    found = []
    with contextlib.ExitStack() as locks:
        for path in paths:
            directory = OsDirectory(path, create=False)
            properties = MetaProperties.read(directory)
            if properties is None or properties.cluster_id != cluster_id:
                raise StorageError(f"{path} is no log directory of cluster {cluster_id}")
            if properties.directory_id == own.directory_id:
                raise ConfigError(f"--compare: {path} is this controller's own directory")
            locks.callback(directory.lock().release)
            found.append(read_state(directory))
        yield found


def _new_voters(settings: ServerConfig, key: Any, text: str | None) -> VoterSet:
    """This controller with all its listeners, and the others of `text`."""
    from quorum.raft.voters import Voter, VoterSet
    from quorum.replica.bootstrap import parse_initial_controllers
    from quorum.replica.settings import controller_listeners

    listeners = controller_listeners(settings)
    own = Voter(key, listeners[0].endpoint, listeners)
    if text is None:
        return VoterSet([own])
    named = parse_initial_controllers(text, listeners[0].name)
    if not named.is_voter(key):
        raise ConfigError(
            f"--voters: controller {key.replica_id} with directory id "
            f"{uuid_to_text(key.directory_id)} has to be among them"
        )
    return named.with_voter(own)


def _tell(
    states: list[LogState], voters: VoterSet, epoch: int, *, done: bool, as_json: bool
) -> None:
    ids = list(voters.ids)
    if as_json:
        print_json({"done": done, "epoch": epoch, "voters": ids, "logs": [*map(_facts, states)]})
        return
    for state in states:
        facts = _facts(state)
        before = facts["voters"]
        who = "static voters" if before is None else f"voters {', '.join(map(str, before))}"
        print_line(
            f"{state.path}: epoch {state.last_epoch}, end offset {state.end_offset}, {who}"
            + (f"; the rest is damaged: {state.damage}" if state.damage else "")
        )
    verb = "made" if done else "would make"
    print_line(f"{verb} {', '.join(map(str, ids))} the voters, in epoch {epoch}")
    was_static = any(state.voters is None for state in states)
    for line in (*WARNING, *(STATIC_WARNING if was_static else ())):
        typer.echo(line, err=True)


def _facts(state: LogState) -> dict[str, Any]:
    return {
        "path": state.path,
        "epoch": state.last_epoch,
        "end_offset": state.end_offset,
        "voters": None if state.voters is None else list(state.voters.ids),
        "damage": state.damage,
    }
