"""Channels and servers of gRPC: the one place where clients and nodes get theirs.

A simulation puts its own network here (`tidemark.surroundings`). It carries the bytes of the same
methods, so codecs, services and retries are those of production. Importing this module imports
gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from tidemark.config.security import NO_SECURITY, ClientSecurity
from tidemark.surroundings import process_security, surroundings
from tidemark.wire.channel import CHANNEL_OPTIONS, RECONNECT_OPTIONS

if TYPE_CHECKING:
    from tidemark.wire.credentials import Stamp


class Network(Protocol):
    """Makes channels and servers with the interface of `grpc.aio`."""

    def channel(self, address: str) -> Any: ...

    def server(self) -> Any: ...


class Channels:
    """Opens the channels of one owner, which are secured alike."""

    def __init__(self, security: ClientSecurity | None = None) -> None:
        """`security` of None: that of the process, which the command line sets."""
        self.security: ClientSecurity = security or process_security() or NO_SECURITY
        self._stamps: WeakKeyDictionary[Any, Stamp] = WeakKeyDictionary()

    def open(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """A channel to `host:port`, with `options` beside those of every channel.

        Raises ConfigError for a key or certificate that can not be read.
        """
        network: Network | None = surroundings().network
        if network is not None:
            simulated: grpc.aio.Channel = network.channel(address)
            return simulated
        every = [*CHANNEL_OPTIONS, *RECONNECT_OPTIONS, *options]
        if not self.security.uses_ssl:
            return grpc.aio.insecure_channel(address, options=every)
        from tidemark.wire.credentials import channel_credentials, stamp_of

        stamp = stamp_of(self.security.ssl)
        credentials = channel_credentials(self.security.ssl)
        channel = grpc.aio.secure_channel(address, credentials, options=every)
        self._stamps[channel] = stamp
        return channel

    def is_outdated(self, channel: grpc.aio.Channel) -> bool:
        """Whether key files changed since the channel was opened: ask after a failure."""
        stamp = self._stamps.get(channel)
        if stamp is None:
            return False
        from tidemark.wire.credentials import stamp_of

        return stamp != stamp_of(self.security.ssl)


def blocking_channel(address: str) -> grpc.Channel:
    """A channel for calls that block, secured as the process is. Raises ConfigError."""
    security: ClientSecurity = process_security() or NO_SECURITY
    options = list(CHANNEL_OPTIONS)
    if not security.uses_ssl:
        return grpc.insecure_channel(address, options=options)
    from tidemark.wire.credentials import channel_credentials

    return grpc.secure_channel(address, channel_credentials(security.ssl), options=options)


def make_server(
    options: Mapping[str, int] | None = None, interceptors: Sequence[Any] = ()
) -> grpc.aio.Server:
    """A server without services and ports; `options` go over those of every server.

    `interceptors` see each call, of whatever service.
    """
    network: Network | None = surroundings().network
    if network is not None:
        simulated: grpc.aio.Server = network.server()
        return simulated
    every = dict(CHANNEL_OPTIONS) | dict(options or {})
    return grpc.aio.server(options=list(every.items()), interceptors=list(interceptors))
