"""The settings of a node as the replica and its log take them."""

from __future__ import annotations

from uuid import UUID

from quorum.raft.config import ReplicaConfig
from quorum.raft.voters import CONTROLLER_LISTENER, ReplicaKey, VoterSet
from quorum.replica.metadata_log import MetadataLogConfig
from tidemark.config import ServerConfig
from tidemark.types import Endpoint, Listener
from tidemark.wire.network import Channels


def metadata_log_config(config: ServerConfig) -> MetadataLogConfig:
    """Returns the metadata log settings of a node."""
    return MetadataLogConfig(
        config.metadata_log_segment_bytes,
        config.metadata_log_segment_ms,
        config.metadata_max_retention_bytes,
        config.metadata_max_retention_ms,
        config.controller_listener_names or (CONTROLLER_LISTENER,),
    )


def controller_channels(config: ServerConfig) -> Channels:
    """Opens a node's channels to controllers."""
    names = config.controller_listener_names or (CONTROLLER_LISTENER,)
    return Channels(config.channel_security(names[0]))


def controller_listeners(config: ServerConfig) -> tuple[Listener, ...]:
    """Returns the advertised controller listeners in the order of controller.listener.names; empty
    for a plain broker. For a static voter the first one comes from controller.quorum.voters."""
    if not config.is_controller:
        return ()
    advertised = config.advertised_endpoints()
    names = config.controller_listener_names or (CONTROLLER_LISTENER,)
    found = {name: advertised[name] for name in names if name in advertised}
    static = config.voters().get(config.node_id)
    if static is not None:
        found = {names[0]: static} | {n: e for n, e in found.items() if n != names[0]}
    return tuple(Listener(name, *endpoint) for name, endpoint in found.items())


def replica_config(config: ServerConfig, cluster_id: str, directory_id: UUID) -> ReplicaConfig:
    """Returns the replica's settings. With kraft.version 0 the voters are the controllers in
    controller.quorum.voters. From 1 on the log names them, and any controller can become one.
    """
    endpoints = config.voters()
    listeners = controller_listeners(config)
    names = config.controller_listener_names or (CONTROLLER_LISTENER,)
    bootstrap = tuple(map(Endpoint.parse, config.controller_quorum_bootstrap_servers))
    return ReplicaConfig(
        cluster_id=cluster_id,
        key=ReplicaKey(config.node_id, directory_id),
        voters=VoterSet.static(endpoints, names[0]),
        endpoint=listeners[0].endpoint if listeners else None,
        listeners=listeners,
        listener_names=names,
        bootstrap=bootstrap,
        election_timeout_ms=config.controller_quorum_election_timeout_ms,
        fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
        request_timeout_ms=config.controller_quorum_request_timeout_ms,
        retry_backoff_ms=config.controller_quorum_retry_backoff_ms,
        election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
        fetch_max_bytes=config.controller_quorum_fetch_max_bytes,
        fetch_snapshot_max_bytes=config.controller_quorum_fetch_snapshot_max_bytes,
        auto_join=config.controller_quorum_auto_join_enable,
    )
