"""Links between the processes of a cluster, which are cut in one direction. The kernel cuts them in
network namespaces, or a proxy does where the machine does not permit those.

Node 0 is the process with the clients, here. Both kinds lose no bytes that TCP has taken: what is
under way arrives when the link is mended, as after a cable was pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidemark.cli.local_cluster import free_ports

CLIENTS = 0
_PORT = 9092
_PIECE_BYTES = 1 << 16
_REFUSAL_S = 0.2
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1


class Links(Protocol):
    """The network of a cluster: addresses of its nodes, and links to cut."""

    @property
    def hosts(self) -> Mapping[int, str]:
        """Addresses of the nodes."""

    @property
    def ports(self) -> Mapping[int, int]:
        """Ports of the nodes."""

    @property
    def launchers(self) -> Mapping[int, Sequence[str]]:
        """Commands that run the command of a node in its place on the network."""

    @property
    def settings(self) -> Mapping[int, Mapping[str, str]]:
        """Settings that nodes need on this network."""

    async def start(self) -> None:
        """Makes the network; processes may be started afterwards."""

    def cut(self, source: int, target: int) -> None:
        """Nothing from `source` reaches `target` any more."""

    def mend(self, source: int, target: int) -> None:
        """Ends `cut`."""

    async def stop(self) -> None:
        """Removes the network."""


class Namespaces:
    """A network namespace for each node, around a router that drops packets.

    To be used in network, mount and process namespaces of its own (`unshare`), where names are
    private. The kernel removes all of it with the last process.
    """

    def __init__(self, nodes: Iterable[int]) -> None:
        self._nodes = list(nodes)
        self.hosts = {node: f"10.99.{node}.1" for node in self._nodes}
        self.ports = dict.fromkeys(self._nodes, _PORT)
        self.launchers = {node: ("ip", "netns", "exec", f"node{node}") for node in self._nodes}
        self.settings: dict[int, dict[str, str]] = {}
        self._cut: set[tuple[int, int]] = set()

    async def start(self) -> None:
        _run("mkdir", "-p", "/run/netns")
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "netns", "add", "router")
        _run("ip", "netns", "exec", "router", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        for node in (CLIENTS, *self._nodes):
            inside: list[str] = []
            if node != CLIENTS:
                _run("ip", "netns", "add", f"node{node}")
                inside = ["-n", f"node{node}"]
                _run("ip", *inside, "link", "set", "lo", "up")
            peer = ["netns", f"node{node}"] if inside else ["netns", str(os.getpid())]
            link = ["link", "add", f"v{node}", "netns", "router", "type", "veth"]
            _run("ip", *link, "peer", "name", "net0", *peer)
            _run("ip", "-n", "router", "link", "set", f"v{node}", "up")
            _run("ip", "-n", "router", "addr", "add", f"10.99.{node}.254/24", "dev", f"v{node}")
            _run("ip", *inside, "addr", "add", f"10.99.{node}.1/24", "dev", "net0")
            _run("ip", *inside, "link", "set", "net0", "up")
            _run("ip", *inside, "route", "add", "default", "via", f"10.99.{node}.254")

    def cut(self, source: int, target: int) -> None:
        if (source, target) not in self._cut:
            self._cut.add((source, target))
            self._rule("add", source, target)

    def mend(self, source: int, target: int) -> None:
        if (source, target) in self._cut:
            self._cut.discard((source, target))
            self._rule("del", source, target)

    def _rule(self, verb: str, source: int, target: int) -> None:
        """A rule of the router's that drops packets silently."""
        ends = ("from", f"10.99.{source}.1", "to", f"10.99.{target}.1")
        _run("ip", "-n", "router", "rule", verb, *ends, "blackhole")

    async def stop(self) -> None:
        """Does nothing: the namespaces end with their last process."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Proxies:
    """A proxy before each node, in this process; it knows who connects by the owner of the socket.

    `listeners` has the listener's name of each node. `process_of` gives the process id of a running
    node, or None.
    """

    def __init__(
        self, listeners: Mapping[int, str], process_of: Callable[[int], int | None]
    ) -> None:
        self._nodes = list(listeners)
        self._process_of = process_of
        chosen = free_ports(2 * len(self._nodes))
        self.hosts = dict.fromkeys(self._nodes, "127.0.0.1")
        self.ports = dict(zip(self._nodes, chosen, strict=False))
        self._behind = dict(zip(self._nodes, chosen[len(self._nodes) :], strict=True))
        self.launchers: dict[int, tuple[str, ...]] = {}
        self._ways: dict[tuple[int, int], asyncio.Event] = {}  # set while the way is open
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.settings = {
            node: {
                "listeners": f"{name}://127.0.0.1:{self._behind[node]}",
                "advertised.listeners": f"{name}://127.0.0.1:{self.ports[node]}",
            }
            for node, name in listeners.items()
        }

    async def start(self) -> None:
        for node in self._nodes:

            async def connected(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int = node
            ) -> None:
                await self._connected(node, reader, writer)

            server = await asyncio.start_server(connected, "127.0.0.1", self.ports[node])
            self._servers.append(server)

    def cut(self, source: int, target: int) -> None:
        self._way(source, target).clear()

    def mend(self, source: int, target: int) -> None:
        self._way(source, target).set()

    def _way(self, source: int, target: int) -> asyncio.Event:
        if (source, target) not in self._ways:
            self._ways[source, target] = asyncio.Event()
            self._ways[source, target].set()
        return self._ways[source, target]

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            inner = await asyncio.open_connection("127.0.0.1", self._behind[node])
        except OSError:
            # Not at once, or the next attempt follows at once.
            await asyncio.sleep(_REFUSAL_S)
            writer.close()
            return
        port = writer.get_extra_info("peername")[1]
        source = await asyncio.to_thread(self.owner_of, port, self.ports[node])
        pumps = [
            asyncio.create_task(_pump(reader, inner[1], self._way(source, node))),
            asyncio.create_task(_pump(inner[0], writer, self._way(node, source))),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
                self._tasks.discard(pump)
            for end in (writer, inner[1]):
                end.close()

    def owner_of(self, port: int, peer_port: int) -> int:
        """The node whose process has the end of a connection at `port`."""
        inode = _inode_of(port, peer_port)
        for node in self._nodes:
            process = self._process_of(node)
            if process is not None and inode and _has_socket(process, inode):
                return node
        return CLIENTS


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event
) -> None:
    """Passes bytes on while the way is open. Ends with the connection."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            await way.wait()
            writer.write(piece)
            await writer.drain()


def _inode_of(port: int, peer_port: int) -> int:
    """The inode of a connected socket by its ports on loopback; 0 if there is none (sock_diag(7)).

    /proc/net/tcp tells the same, but reading it costs as much as there are old connections.
    """
    loopback = socket.inet_aton("127.0.0.1") + bytes(12)
    ends = struct.pack("!HH", port, peer_port) + loopback + loopback
    wanted = struct.pack("=BBHI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    body = wanted + ends + struct.pack("=I8s", 0, b"\xff" * 8)  # any device, any cookie
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(head + body)
        answer = netlink.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
        return 0
    return int(struct.unpack_from("=I", answer, 84)[0])


def _has_socket(process: int, inode: int) -> bool:
    try:
        files = list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False
    for file in files:
        with contextlib.suppress(OSError):
            if str(file.readlink()) == f"socket:[{inode}]":
                return True
    return False
