"""kraft.version 0 -> 1 on whole servers: static voters become voters of the log (KIP-853)."""

from __future__ import annotations

from uuid import UUID

from quorum.raft import messages as m
from quorum.raft.voters import ReplicaKey, VoterSet
from tests.quorum.replica.servers import CLUSTER_ID
from tests.quorum.replica.test_voter_changes import change, remove, run, voter_ids
from tidemark.errors import ErrorCode


def upgrade(level=1, *, dry=False, timeout_ms=20_000):
    return m.UpgradeVersionRequest(CLUSTER_ID, level, dry, timeout_ms)


def versions(nodes):
    return {n: s.describe().kraft_version for n, s in nodes.servers.items()}


def keys(nodes, node_id):
    return {v.key for v in nodes.servers[node_id]._replica.voters}


async def fetched_from(nodes, *node_ids):
    """Returns the leader once these nodes have fetched from it."""
    leader = await nodes.elected()
    wanted = set(node_ids) - {leader.node_id}

    def heard():
        known = {v.replica_id for v in leader.describe().voters if v.directory_id is not None}
        return wanted <= known

    await nodes.until(heard, f"fetches of {wanted}")
    return leader


def test_static_voters_get_into_the_log_and_can_be_changed_from_then_on():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        leader = await fetched_from(nodes, 1, 2, 3)
        assert await change(nodes, remove(nodes, 2)) == ErrorCode.UNSUPPORTED_VERSION
        assert await change(nodes, upgrade(dry=True)) == ErrorCode.NONE
        assert versions(nodes) == {1: 0, 2: 0, 3: 0}
        assert await change(nodes, upgrade()) == ErrorCode.NONE
        assert await change(nodes, upgrade()) == ErrorCode.NONE, "asked again, it holds already"
        exact = {nodes.key(n) for n in (1, 2, 3)}
        await nodes.until(
            lambda: all(keys(nodes, n) == exact for n in (1, 2, 3)), "directory ids everywhere"
        )
        assert versions(nodes) == {1: 1, 2: 1, 3: 1}
        other = next(n for n in (1, 2, 3) if n != leader.node_id)
        assert await change(nodes, remove(nodes, other)) == ErrorCode.NONE
        for node_id in (1, 2, 3):
            await nodes.kill(node_id)
        await nodes.start_all(1, 2, 3)  # with the static list still in their settings
        again = await nodes.elected()
        again.append(again.epoch, [b"a"])
        await nodes.committed([b"a"])
        rest = tuple(n for n in (1, 2, 3) if n != other)
        assert {voter_ids(nodes, n) for n in (1, 2, 3)} == {rest}

    run(scenario)


def test_a_voter_that_has_not_fetched_holds_the_upgrade_up():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        await fetched_from(nodes, 1, 2)
        leader = await nodes.elected()
        answer = await leader.handle(upgrade())
        while "try again" in answer.message and "voters 3" not in answer.message:
            answer = await leader.handle(upgrade())
        assert answer.header.error == ErrorCode.INVALID_UPDATE_VERSION
        assert "voters 3 have not fetched" in answer.message
        assert versions(nodes) == {1: 0, 2: 0}
        await nodes.start(3)
        await fetched_from(nodes, 1, 2, 3)
        assert await change(nodes, upgrade()) == ErrorCode.NONE

    run(scenario)


def test_only_the_one_step_up_is_possible():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        await fetched_from(nodes, 1, 2, 3)
        assert await change(nodes, upgrade(0)) == ErrorCode.NONE, "nothing to change"
        assert await change(nodes, upgrade(2)) == ErrorCode.INVALID_UPDATE_VERSION
        assert await change(nodes, upgrade()) == ErrorCode.NONE
        assert await change(nodes, upgrade(0)) == ErrorCode.INVALID_UPDATE_VERSION
        follower = next(s for s in nodes.servers.values() if s is not nodes.leader())
        answer = await follower.handle(upgrade())
        assert answer.header.error == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_an_upgrade_that_is_lost_with_its_leader_never_was():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        old = await fetched_from(nodes, 1, 2, 3)
        others = [n for n in (1, 2, 3) if n != old.node_id]
        nodes.network.cut(nodes.endpoints[old.node_id])
        answer = await old.handle(upgrade(timeout_ms=1))
        assert answer.header.error in (
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        await nodes.until(
            lambda: nodes.leader() is not None and nodes.leader().node_id in others, "a new leader"
        )
        new = await nodes.elected()
        new.append(new.epoch, [b"a"])
        nodes.network.heal()
        await nodes.committed([b"a"])
        assert versions(nodes) == {1: 0, 2: 0, 3: 0}
        assert {key.directory_id for key in keys(nodes, old.node_id)} == {None}

    run(scenario)


def test_after_the_upgrade_an_empty_disk_is_no_voter_whatever_its_settings_say():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        leader = await fetched_from(nodes, 1, 2, 3)
        assert await change(nodes, upgrade()) == ErrorCode.NONE
        lost = next(n for n in (1, 2, 3) if n != leader.node_id)
        await nodes.kill(lost)
        del nodes.directories[lost]
        new_key = ReplicaKey(lost, UUID(int=5000))
        nodes.key = lambda n, known=nodes.key: new_key if n == lost else known(n)
        await nodes.start(lost)
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"a"])
        await nodes.committed([b"a"])
        assert not nodes.servers[lost]._replica.state.is_voter
        assert lost in voter_ids(nodes, lost)

    run(scenario)


def test_the_log_names_the_listeners_as_the_static_voters_did():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        replica = (await fetched_from(nodes, 1, 2, 3))._replica
        replica.state.voters = VoterSet.static(nodes.endpoints, "INNER")
        dynamic = replica._voter_changes._dynamic_voters(replica.role)
        assert {v.key for v in dynamic} == {nodes.key(n) for n in (1, 2, 3)}
        assert {e.name for v in dynamic for e in v.listeners} == {"INNER"}

    run(scenario)
