"""The directories of a node: formatting them, and checking at start that they are this node's.

`meta.properties` in every directory says cluster, node and directory (Kafka's format, version 1). A
node starts only on directories that name its own id and one and the same cluster: a directory
mounted at the wrong place must not be written to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from commitlog.checkpoints import META_PROPERTIES, CleanShutdown, MetaProperties
from commitlog.files import DirectoryLock, OsDirectory
from quorum.bootstrap import parse_initial_controllers, write_bootstrap_checkpoint
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from tidemark.config import ServerConfig
from tidemark.errors import ConfigError, StorageError
from tidemark.types import random_uuid, uuid_to_text


def random_cluster_id() -> str:
    """A new cluster id: 22 characters of URL-safe base64."""
    return uuid_to_text(random_uuid())


def directory_paths(config: ServerConfig) -> list[str]:
    """All directories of a node: log.dirs, and metadata.log.dir where it is another one."""
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
    """The voters that formatting writes down (see `quorum.bootstrap`); None: none.

    Raises ConfigError where the options do not fit the node.
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
        voters = parse_initial_controllers(initial_controllers)
        if config.node_id not in voters.ids:
            raise ConfigError(f"initial controllers: this node, {config.node_id}, is none of them")
        return voters
    name = config.controller_listener_names[0]
    endpoint = config.advertised_endpoints()[name]
    return VoterSet([Voter(ReplicaKey(config.node_id, random_uuid()), endpoint)])


def format_storage(
    config: ServerConfig,
    cluster_id: str,
    *,
    ignore_formatted: bool = False,
    voters: VoterSet | None = None,
) -> list[str]:
    """Writes meta.properties into every directory of the node; gives one line per directory.

    `voters` (of `first_voters`) become the bootstrap checkpoint of the metadata directory, which
    gets the directory id that they name for this node.

    Raises StorageError, before anything is written, for a directory that is formatted already (fine
    with `ignore_formatted`), that belongs to another cluster or node (never fine), or that can not
    be made.
    """
    if not cluster_id or any(c.isspace() for c in cluster_id):
        raise StorageError(f"cluster id {cluster_id!r} is empty or has blanks in it")
    plan: list[tuple[str, OsDirectory, bool]] = []
    for path in directory_paths(config):
        directory = OsDirectory(path)
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
        properties = MetaProperties(cluster_id, config.node_id, directory_id)
        properties.write(directory)
        lines.append(f"{path}: formatted for node {config.node_id} of cluster {cluster_id}")
    return lines


@dataclass(frozen=True, slots=True)
class NodeStorage:
    """The checked directories of a node, by path as configured."""

    cluster_id: str
    directories: dict[str, OsDirectory]
    directory_ids: dict[str, UUID]
    locks: list[DirectoryLock] = field(default_factory=list)

    def lock(self) -> None:
        """Takes every directory for this process; StorageError when another one holds it."""
        try:
            for directory in self.directories.values():
                self.locks.append(directory.lock())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives the directories back."""
        while self.locks:
            self.locks.pop().release()

    def previous_broker_epoch(self, config: ServerConfig) -> int:
        """The broker epoch of a clean stop before this start; -1 after any other (KIP-966)."""
        found = {
            CleanShutdown(directory).broker_epoch()
            for directory in self.log_directories(config).values()
        }
        return found.pop() if len(found) == 1 else -1

    def metadata(self, config: ServerConfig) -> tuple[OsDirectory, UUID]:
        """Where `__cluster_metadata-0` lives."""
        path = config.metadata_directory
        return self.directories[path], self.directory_ids[path]

    def log_directories(self, config: ServerConfig) -> dict[str, OsDirectory]:
        """log.dirs in their order."""
        return {path: self.directories[path] for path in config.log_dirs}


def open_storage(config: ServerConfig) -> NodeStorage:
    """Checks every directory. Raises StorageError that says what to do for one that is not
    formatted, belongs to another cluster or node, or carries the id of a second one (a copy).
    """
    directories: dict[str, OsDirectory] = {}
    ids: dict[str, UUID] = {}
    cluster_id: str | None = None
    for path in directory_paths(config):
        try:
            directory = OsDirectory(path, create=False)
        except StorageError as error:
            raise StorageError(
                f"{error}: run `tidemark storage format -c server.properties` first"
            ) from error
        found = MetaProperties.read(directory)
        if found is None:
            raise StorageError(
                f"{path} has no {META_PROPERTIES}: run `tidemark storage format` first, or correct "
                "log.dirs if the data is elsewhere"
            )
        found.check(path, cluster_id=cluster_id, node_id=config.node_id)
        if found.directory_id in ids.values():
            raise StorageError(
                f"{path} has the directory.id of another directory: one is a copy; remove it"
            )
        cluster_id = found.cluster_id
        directories[path], ids[path] = directory, found.directory_id
    assert cluster_id is not None, "a node has at least one directory"
    return NodeStorage(cluster_id, directories, ids)
