"""Channels and servers of gRPC: the one place where clients and nodes get theirs.

A simulation puts its own network here (`tidemark.surroundings`). It carries the bytes of the same
methods, so codecs, services and retries are those of production. Importing this module imports
gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc.aio

from tidemark.surroundings import surroundings
from tidemark.wire.channel import CHANNEL_OPTIONS, RECONNECT_OPTIONS


class Network(Protocol):
    """Makes channels and servers with the interface of `grpc.aio`."""

    def channel(self, address: str) -> Any: ...

    def server(self) -> Any: ...


def open_channel(address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """A channel to `host:port`, with `options` beside those of every channel."""
    network: Network | None = surroundings().network
    if network is not None:
        simulated: grpc.aio.Channel = network.channel(address)
        return simulated
    every = [*CHANNEL_OPTIONS, *RECONNECT_OPTIONS]
    return grpc.aio.insecure_channel(address, options=[*every, *options])


def make_server(options: Mapping[str, int] | None = None) -> grpc.aio.Server:
    """A server without services and ports; `options` go over those of every server."""
    network: Network | None = surroundings().network
    if network is not None:
        simulated: grpc.aio.Server = network.server()
        return simulated
    return grpc.aio.server(options=list((dict(CHANNEL_OPTIONS) | dict(options or {})).items()))
