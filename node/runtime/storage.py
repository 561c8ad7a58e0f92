"""The directories of a node: formatting them, and checking at start that they are this node's.

`meta.properties` in every directory names cluster, node and directory (Kafka's format, version 1).
A node starts only on directories that name its own id and one cluster. A directory mounted at the
wrong place must not be written to.

A directory of log.dirs that is missing, unreadable or not formatted is offline while another one is
usable (KIP-112). It may be a disk that is not mounted, so a start never formats it. The directory
of the metadata log must be usable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from commitlog.disk.checkpoints import META_PROPERTIES, CleanShutdown, MetaProperties
from commitlog.disk.files import Directory, DirectoryLock, DiskError, storage_error
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.os_files import OsDirectory, open_directory
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.bootstrap import (
    parse_initial_controllers,
    read_first_levels,
    write_bootstrap_checkpoint,
    write_first_levels,
)
from quorum.replica.settings import controller_listeners
from tidemark.config import ServerConfig
from tidemark.errors import ConfigError, StorageError
from tidemark.types import random_uuid, uuid_to_text

logger = logging.getLogger(__name__)


def random_cluster_id() -> str:
    """A new cluster id: 22 characters of URL-safe base64."""
    return uuid_to_text(random_uuid())


def directory_paths(config: ServerConfig) -> list[str]:
    """All directories of a node: log.dirs, and metadata.log.dir if it is another one."""
    paths = list(dict.fromkeys((*config.log_dirs, config.metadata_directory)))
    resolved: dict[Path, str] = {}
    for path in paths:
        twin = resolved.setdefault(Path(path).resolve(), path)
        if twin != path:
            raise StorageError(f"log.dirs: {path} and {twin} are the same directory")
    return paths


def first_voters(
    config: ServerConfig, *, standalone: bool = False, initial_controllers: str | None = None
) -> VoterSet | None:
    """The voters that formatting writes (see `quorum.replica.bootstrap`); None if it writes none.

    Raises ConfigError if the options do not fit the node.
    """
    if not standalone and initial_controllers is None:
        return None
    if not config.is_controller:
        raise ConfigError(
            "only a controller is formatted with --standalone or --initial-controllers: "
            "brokers take --no-initial-controllers"
        )
    if config.controller_quorum_voters:
        raise ConfigError(
            "controller.quorum.voters names static voters: set "
            "controller.quorum.bootstrap.servers instead to have them in the log"
        )
    if initial_controllers is not None:
        listener = config.controller_listener_names[0]
        voters = parse_initial_controllers(initial_controllers, listener)
        if config.node_id not in voters.ids:
            raise ConfigError(f"initial controllers: this node, {config.node_id}, is none of them")
        return voters
    listeners = controller_listeners(config)
    key = ReplicaKey(config.node_id, random_uuid())
    return VoterSet([Voter(key, listeners[0].endpoint, listeners)])


def format_storage(
    config: ServerConfig,
    cluster_id: str,
    *,
    ignore_formatted: bool = False,
    voters: VoterSet | None = None,
    levels: Mapping[str, int] | None = None,
) -> list[str]:
    """Writes meta.properties into every directory of the node; returns one line per directory.

    `voters` (of `first_voters`) become the bootstrap checkpoint of the metadata directory, which
    takes the directory id that they name for this node. `levels` are the feature levels that a
    controller begins an empty log with (None: this version's).

    Raises StorageError before anything is written: for a directory that belongs to another cluster
    or node, that cannot be made, or that is formatted already. `ignore_formatted` allows the last
    case.
    """
    if not cluster_id or any(c.isspace() for c in cluster_id):
        raise StorageError(f"cluster id {cluster_id!r} is empty or has blanks in it")
    plan: list[tuple[str, Directory, bool]] = []
    for path in directory_paths(config):
        directory = open_directory(path)
        found = MetaProperties.read(directory)
        if found is not None:
            found.check(path, cluster_id=cluster_id, node_id=config.node_id)
            if not ignore_formatted:
                raise StorageError(
                    f"{path} is formatted already; use --ignore-formatted to keep it as it is"
                )
        plan.append((path, directory, found is not None))
    lines = []
    for path, directory, formatted in plan:
        if formatted:
            lines.append(f"{path}: formatted already, left as it is")
            continue
        directory_id = random_uuid()
        if voters is not None and path == config.metadata_directory:
            directory_id = voters.key(config.node_id).directory_id or directory_id
            write_bootstrap_checkpoint(directory, voters)
        if levels is not None and config.is_controller and path == config.metadata_directory:
            write_first_levels(directory, levels)
        properties = MetaProperties(cluster_id, config.node_id, directory_id)
        properties.write(directory)
        lines.append(f"{path}: formatted for node {config.node_id} of cluster {cluster_id}")
    return lines


@dataclass(frozen=True, slots=True)
class NodeStorage:
    """The checked directories of a node, by path as configured."""

    cluster_id: str
    directories: dict[str, Directory]
    directory_ids: dict[str, UUID]
    unusable: dict[str, str] = field(default_factory=dict)  # of log.dirs, with the reason
    locks: list[DirectoryLock] = field(default_factory=list)

    def lock(self, config: ServerConfig) -> None:
        """Locks every directory for this process. A disk error makes a directory unusable. Raises
        StorageError if another process holds a lock."""
        try:
            for path, directory in list(self.directories.items()):
                try:
                    self.locks.append(directory.lock())
                except DiskError as error:
                    del self.directories[path]
                    self._leave_out(path, error, config)
        except BaseException:
            self.release()
            raise

    def _leave_out(self, path: str, error: StorageError, config: ServerConfig) -> None:
        """Continues without one of log.dirs; raises the error if the node cannot."""
        if path == config.metadata_directory:
            raise error
        logger.error("log directory %s can not be used: %s", path, error)
        self.unusable[path] = str(error)
        if not any(path in self.directories for path in config.log_dirs):
            raise error

    def release(self) -> None:
        """Releases the locks of the directories."""
        while self.locks:
            self.locks.pop().release()

    def previous_broker_epoch(self, config: ServerConfig) -> int:
        """The broker epoch of the clean stop before this start (KIP-966).

        -1 after any other stop, and if a directory of log.dirs cannot be read.
        """
        found = set()
        for path in config.log_dirs:
            directory = self.directories.get(path)
            try:
                found.add(-1 if directory is None else CleanShutdown(directory).broker_epoch())
            except (StorageError, OSError):
                found.add(-1)
        return found.pop() if len(found) == 1 else -1

    def metadata(self, config: ServerConfig) -> tuple[Directory, UUID]:
        """The directory of `__cluster_metadata-0` and its id."""
        path = config.metadata_directory
        return self.directories[path], self.directory_ids[path]

    def first_levels(self, config: ServerConfig) -> Mapping[str, int]:
        """The feature levels of an empty log. Raises FatalError if their file cannot be used."""
        return read_first_levels(self.directories[config.metadata_directory])

    def first_usable(self, config: ServerConfig) -> Directory:
        """The first usable directory of log.dirs; there always is one."""
        return self.usable(config)[0]

    def usable(self, config: ServerConfig) -> list[Directory]:
        """The usable directories of log.dirs in order."""
        return [self.directories[p] for p in config.log_dirs if p in self.directories]

    def log_directories(self, config: ServerConfig) -> list[LogDirectory]:
        """The directories of log.dirs in order; unusable ones are offline from the start."""
        return [
            LogDirectory(
                self.directories.get(path) or OsDirectory.unseen(path),
                self.directory_ids.get(path),
                failure=self.unusable.get(path, ""),
            )
            for path in config.log_dirs
        ]


def open_storage(config: ServerConfig) -> NodeStorage:
    """Checks every directory of the node.

    Raises StorageError with the action to take for a directory of another cluster or node, or a
    copy of another directory. A missing or unformatted directory is an error only if the node
    cannot do without it.
    """
    storage = NodeStorage("", {}, {})
    refused: list[tuple[str, StorageError]] = []
    cluster_id: str | None = None
    for path in directory_paths(config):
        try:
            directory, found = _look_at(path)
        except StorageError as error:
            refused.append((path, error))
            continue
        found.check(path, cluster_id=cluster_id, node_id=config.node_id)
        if found.directory_id in storage.directory_ids.values():
            raise StorageError(
                f"{path} has the directory.id of another directory: one is a copy; remove it"
            )
        cluster_id = found.cluster_id
        storage.directories[path], storage.directory_ids[path] = directory, found.directory_id
    for path, reason in refused:
        storage._leave_out(path, reason, config)
    assert cluster_id is not None, "a node has at least one directory"
    return replace(storage, cluster_id=cluster_id)


def _look_at(path: str) -> tuple[Directory, MetaProperties]:
    """Opens a directory and reads its meta.properties. Raises StorageError if it is missing,
    unreadable or not formatted."""
    try:
        directory = open_directory(path, create=False)
    except StorageError as error:
        raise StorageError(
            f"{error}: run `tidemark storage format -c server.properties` first"
        ) from error
    try:
        found = MetaProperties.read(directory)
    except OSError as error:
        raise storage_error("read", f"{path}/{META_PROPERTIES}", error) from error
    if found is None:
        raise StorageError(
            f"{path} has no {META_PROPERTIES}: run `tidemark storage format` first (with "
            "--ignore-formatted for the other directories), or correct log.dirs if the data is "
            "elsewhere; is its disk mounted?"
        )
    return directory, found
