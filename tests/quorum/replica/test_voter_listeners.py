"""Voters with several controller listeners (KIP-853): in the log, on the wire, and in use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.voters import ReplicaKey, Voter, VoterSet, reachable
from quorum.replica import voters_codec as wire
from quorum.replica import voters_record
from quorum.replica.settings import controller_listeners
from tests.quorum.controller.cluster import RealNode, active, eventually, free_ports
from tidemark.client import AsyncAdmin
from tidemark.config import parse_server_config
from tidemark.errors import InvalidRequestError
from tidemark.records import Voters
from tidemark.types import Endpoint, Listener

INNER, OUTER = Listener("INNER", "i", 1), Listener("OUTER", "o", 2)
KEY = ReplicaKey(7, UUID(int=77))


def test_a_replica_uses_the_listener_that_comes_first_in_its_own_names() -> None:
    both = (INNER, OUTER)
    assert reachable(both, ("OUTER",)) == Endpoint("o", 2)
    assert reachable(both, ("OUTER", "INNER")) == Endpoint("o", 2)
    assert reachable(both, ("OTHER", "INNER")) == Endpoint("i", 1)
    assert reachable(both, ("OTHER",)) == Endpoint("i", 1), "without any of them the first"


def test_a_record_keeps_all_listeners_whoever_reads_it() -> None:
    record = voters_record.to_record(VoterSet([Voter(KEY, INNER.endpoint, (INNER, OUTER))]))
    for names, endpoint in ((("INNER",), INNER.endpoint), (("OUTER",), OUTER.endpoint)):
        read = voters_record.from_record(record, names)
        assert read.endpoint(7) == endpoint
        assert read.listeners(7) == (INNER, OUTER)
        assert voters_record.to_record(read) == record
    (alone,) = voters_record.to_record(VoterSet([Voter(KEY, Endpoint("h", 3))])).voters
    assert [(e.name, e.host, e.port) for e in alone.endpoints] == [("CONTROLLER", "h", 3)]
    assert isinstance(record, Voters)


def test_requests_carry_all_listeners_and_older_ones_carry_one() -> None:
    add = m.AddVoterRequest("c", KEY, INNER.endpoint, 5, True, (INNER, OUTER))
    assert wire.add_request_from_proto(wire.add_request_to_proto(add)) == add
    update = m.UpdateVoterRequest("c", 4, KEY, INNER.endpoint, (INNER, OUTER))
    message = wire.update_request_to_proto(update)
    assert wire.update_request_from_proto(message) == update
    del message.listeners[:]
    listener = (Listener("CONTROLLER", "i", 1),)
    assert wire.update_request_from_proto(message).listeners == listener
    message.listeners.add(name="INNER", host="i", port=0)
    with pytest.raises(InvalidRequestError, match="host and port"):
        wire.update_request_from_proto(message)
    message.listeners[0].port = 1
    message.listeners.add(name="INNER", host="j", port=1)
    with pytest.raises(InvalidRequestError, match="twice"):
        wire.update_request_from_proto(message)


def config_of(node_id: int, ports: list[int], names: str, path: Path) -> dict[str, str]:
    inner, outer = ports
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"INNER://127.0.0.1:{inner},OUTER://127.0.0.1:{outer}",
        "controller.listener.names": names,
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "log.dirs": str(path),
    }


def test_the_listeners_of_a_controller_are_what_it_advertises_in_the_order_of_its_names() -> None:
    values = config_of(1, [1, 2], "OUTER,INNER", Path("x"))
    values["controller.quorum.bootstrap.servers"] = "h:1"
    values["advertised.listeners"] = "OUTER://there:22,INNER://here:11"
    assert controller_listeners(parse_server_config(values)) == (
        Listener("OUTER", "there", 22),
        Listener("INNER", "here", 11),
    )
    del values["controller.quorum.bootstrap.servers"]
    values["controller.quorum.voters"] = "1@static:5"
    static = controller_listeners(parse_server_config(values))
    assert static[0] == Listener("OUTER", "static", 5), "what peers were told counts"
    assert static[1] == Listener("INNER", "here", 11)


def test_controllers_of_two_networks_elect_move_and_describe_their_listeners(
    tmp_path: Path,
) -> None:
    """1 and 2 prefer INNER, 3 prefers OUTER: static voters first, then voters of the log."""

    async def main() -> None:
        ports = {node_id: free_ports(2) for node_id in (1, 2, 3)}
        names = {1: "INNER,OUTER", 2: "INNER,OUTER", 3: "OUTER,INNER"}
        nodes: dict[int, RealNode] = {}
        for node_id in ports:
            node = RealNode(node_id, {n: p[0] for n, p in ports.items()}, tmp_path / str(node_id))
            # Each names the voters by its own network.
            first = 1 if node_id == 3 else 0
            voters = ",".join(f"{n}@127.0.0.1:{p[first]}" for n, p in ports.items())
            values = config_of(node_id, ports[node_id], names[node_id], node.path)
            values["controller.quorum.voters"] = voters
            node.config = parse_server_config(values)
            nodes[node_id] = node
            await node.start()
        try:
            first_leader = await active(nodes)
            await eventually(
                lambda: len(first_leader.loader.image.controllers) == 3, "all are registered"
            )
            async with AsyncAdmin(f"127.0.0.1:{ports[2][1]}") as admin:
                await admin.update_features({"kraft.version": 1})
                both = {n: {("INNER", p[0]), ("OUTER", p[1])} for n, p in ports.items()}

                def known() -> bool:
                    return all(
                        both
                        == {
                            v.replica_id: {(e.name, e.port) for e in v.listeners}
                            for v in node.raft.describe().voters
                        }
                        for node in nodes.values()
                    )

                await eventually(known, "every controller knows all listeners of each")
                quorum = await admin.describe_quorum()
                assert both == {
                    v.replica_id: {(name, e.port) for name, e in v.listeners.items()}
                    for v in quorum.voters
                }
            by_node = {
                n: {i: e.port for i, e in node.raft.describe().endpoints.items()}
                for n, node in nodes.items()
            }
            assert by_node[1] == {n: p[0] for n, p in ports.items()}
            assert by_node[3] == {n: p[1] for n, p in ports.items()}
            leader = await active(nodes)
            await nodes.pop(leader.node_id).stop()
            second = await active(nodes)
            rest = next(n for n in nodes.values() if n is not second)
            wanted = ports[second.node_id][1 if rest.node_id == 3 else 0]
            endpoint = rest.raft.leader_endpoint()
            assert endpoint is not None and endpoint.port == wanted
        finally:
            await asyncio.gather(*(node.stop() for node in nodes.values()))

    asyncio.run(main())
