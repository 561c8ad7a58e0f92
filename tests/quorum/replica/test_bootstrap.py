"""Formatting with first voters: the options, the checkpoint they write, and a cluster started from
it.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from commitlog.disk.checkpoints import MetaProperties
from commitlog.disk.os_files import OsDirectory
from node.runtime.storage import first_voters, format_storage
from node.server import Server
from quorum.replica.bootstrap import parse_initial_controllers
from snapshot import FileSnapshotReader, SnapshotId
from tests.quorum.replica.servers import free_port
from tidemark.client.admin import AsyncAdmin
from tidemark.config import parse_server_config
from tidemark.errors import ConfigError, DuplicateVoterError, VoterNotFoundError
from tidemark.records import KRaftVersion, Voters
from tidemark.types import Endpoint, random_uuid, uuid_to_text

CLUSTER_ID = "bootstrap-test-cluster"


def controller(tmp_path, node_id, port, bootstrap, **more):
    settings = {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{bootstrap}",
        "log.dirs": str(tmp_path / f"node{node_id}"),
        "controller.quorum.election.timeout.ms": "200",
        "controller.quorum.fetch.timeout.ms": "500",
    }
    return parse_server_config(settings | more)


def directory_id(config):
    found = MetaProperties.read(OsDirectory(config.metadata_directory))
    return found.directory_id


def test_the_list_of_initial_controllers_is_read_or_refused_by_name():
    first, second = random_uuid(), random_uuid()
    text = f"1@a:9093:{uuid_to_text(first)}, 2@[::1]:9094:{uuid_to_text(second)}"
    voters = parse_initial_controllers(text)
    assert [(v.key.replica_id, v.key.directory_id, v.endpoint) for v in voters] == [
        (1, first, Endpoint("a", 9093)),
        (2, second, Endpoint("::1", 9094)),
    ]
    some_id = uuid_to_text(first)
    for wrong in ("", "1@a:9093", f"x@a:9093:{some_id}", f"1@a:{some_id}", "1@a:9093:short"):
        with pytest.raises(ConfigError):
            parse_initial_controllers(wrong)
    with pytest.raises(ConfigError, match="twice"):
        parse_initial_controllers(f"1@a:1:{some_id},1@b:2:{some_id}")


def test_standalone_writes_the_bootstrap_checkpoint_with_the_nodes_own_directory_id(tmp_path):
    config = controller(tmp_path, 4, 9093, 9093)
    format_storage(config, CLUSTER_ID, voters=first_voters(config, standalone=True))
    metadata = OsDirectory(str(tmp_path / "node4" / "__cluster_metadata-0"))
    assert metadata.list() == ["00000000000000000000-0000000000.checkpoint"]
    version, voters = FileSnapshotReader(metadata, SnapshotId(0, 0)).quorum
    assert version == KRaftVersion(1)
    assert isinstance(voters, Voters)
    [voter] = voters.voters
    assert (voter.voter_id, voter.voter_directory_id) == (4, directory_id(config))
    assert (voter.endpoints[0].host, voter.endpoints[0].port) == ("127.0.0.1", 9093)


def test_options_that_do_not_fit_the_node_are_refused(tmp_path):
    config = controller(tmp_path, 4, 9093, 9093)
    others = f"5@a:9093:{uuid_to_text(random_uuid())}"
    with pytest.raises(ConfigError, match="none of them"):
        first_voters(config, initial_controllers=others)
    static = parse_server_config(
        {
            "process.roles": "controller",
            "node.id": "4",
            "listeners": "CONTROLLER://127.0.0.1:9093",
            "controller.quorum.voters": "4@127.0.0.1:9093",
            "log.dirs": str(tmp_path),
        }
    )
    with pytest.raises(ConfigError, match="static voters"):
        first_voters(static, standalone=True)
    assert first_voters(static) is None


def test_a_cluster_grows_out_of_one_formatted_controller_asked_through_any_node(tmp_path):
    async def scenario():
        ports = {n: free_port() for n in (1, 2)}
        configs = {n: controller(tmp_path, n, port, ports[1]) for n, port in ports.items()}
        first = first_voters(configs[1], standalone=True)
        format_storage(configs[1], CLUSTER_ID, voters=first)
        format_storage(configs[2], CLUSTER_ID)  # --no-initial-controllers
        async with contextlib.AsyncExitStack() as stack:
            for config in configs.values():
                server = Server(config)
                await server.start()
                stack.push_async_callback(server.stop)
            admin = await stack.enter_async_context(AsyncAdmin(f"127.0.0.1:{ports[2]}"))
            new = (2, directory_id(configs[2]))
            endpoint = Endpoint("127.0.0.1", ports[2])
            await admin.add_raft_voter(*new, endpoint)
            quorum = await admin.describe_quorum()
            assert [voter.replica_id for voter in quorum.voters] == [1, 2]
            with pytest.raises(DuplicateVoterError):
                await admin.add_raft_voter(*new, endpoint)
            await admin.remove_raft_voter(1, directory_id(configs[1]))
            quorum = await admin.describe_quorum()
            assert [voter.replica_id for voter in quorum.voters] == [2]
            with pytest.raises(VoterNotFoundError):
                await admin.remove_raft_voter(1, directory_id(configs[1]))

    asyncio.run(scenario())
