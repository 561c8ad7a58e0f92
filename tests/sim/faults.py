"""The administrator of the simulated world: changes the voters, and decides when a node may lose
its disk or address. An operator who loses more disks than the quorum can bear loses the cluster,
and such a run proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorum.raft import messages as m
from quorum.raft.effects import RequestReceived
from quorum.raft.roles import Leader
from quorum.raft.voters import ReplicaKey

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World

ADMIN = 0
"""Node id of the administrator's requests; no node has it."""
CHANGE_TIMEOUT_MS = 1000
IMPATIENT_TIMEOUT_MS = 30
"""Timeout of an administrator who asks for the next change before the last one is committed."""


class Administrator:
    """Changes the voters all the time, and replaces voters that lost their disks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last_change_ms = -10_000
        self.is_impatient = world.seed % 5 == 4
        self.timeout_ms = IMPATIENT_TIMEOUT_MS if self.is_impatient else CHANGE_TIMEOUT_MS
        self.answers: dict[str, int] = {}

    def ask(self, leader: SimNode, request: m.AnyRequest) -> None:
        self.last_change_ms = self.world.now_ms
        if self.is_impatient and self.world.chance(0.2):  # the change may be taken back
            self.world.cut_off(leader)
        token = self.world.next_token()
        leader.tokens[token] = (ADMIN, 0, 0)
        leader.step(RequestReceived(token, request))

    def answered(self, response: m.Response) -> None:
        name = response.header.error.name
        self.answers[name] = self.answers.get(name, 0) + 1
        self.world.seen["voter change without a healthy majority"] += name == "NOT_ENOUGH_REPLICAS"

    def lost_voters(self, leader: SimNode) -> list[ReplicaKey]:
        nodes = self.world.nodes
        voters = leader.replica.voters
        return [v.key for v in voters if nodes[v.key.replica_id].config.key != v.key]

    def _has_moved_voters(self, leader: SimNode) -> bool:
        nodes = self.world.nodes
        voters = leader.replica.voters
        return any(nodes[v.key.replica_id].config.endpoint != v.endpoint for v in voters)

    def change_some(self) -> None:
        """Sends a change to one of the nodes that consider themselves leader."""
        world = self.world
        leaders = [n for n in world.leaders() if not n.is_paused]
        if not leaders or not world.dynamic:
            return
        leader = leaders[world.rng.randrange(len(leaders))]
        lost = self.lost_voters(leader)
        voters = leader.replica.voters
        spare = [n for n in world.controllers() if not voters.is_voter(n.config.key)]
        kind = world.rng.random()
        if lost:
            self.remove(leader, lost[0])
        elif self._has_moved_voters(leader):
            return  # a moved voter reports first: the quorum cannot spare another
        elif kind < 0.55 and spare:
            self.add(leader, spare[world.rng.randrange(len(spare))])
        elif len(voters) > 1:
            ids = voters.ids
            self.remove(leader, voters.key(ids[world.rng.randrange(len(ids))]))

    def add(self, leader: SimNode, node: SimNode) -> None:
        cluster_id, endpoint = node.config.cluster_id, node.config.endpoint
        assert endpoint is not None
        self.ask(leader, m.AddVoterRequest(cluster_id, node.config.key, endpoint, self.timeout_ms))

    def remove(self, leader: SimNode, key: ReplicaKey) -> None:
        request = m.RemoveVoterRequest(leader.config.cluster_id, key, self.timeout_ms)
        self.ask(leader, request)

    def make_dynamic(self) -> None:
        """Sends the upgrade of static voters (kraft.version 1) to one presumed leader."""
        leaders = [n for n in self.world.leaders() if not n.is_paused]
        if leaders:
            leader = leaders[self.world.rng.randrange(len(leaders))]
            self.ask(leader, m.UpgradeVersionRequest(leader.config.cluster_id, 1))

    def correct_bootstrap_servers(self) -> None:
        """Gives every node the current controller addresses, after healing."""
        if not self.world.dynamic:
            return
        endpoints = [n.config.endpoint for n in self.world.controllers()]
        servers = tuple(e for e in endpoints if e is not None)
        for node in self.world.nodes.values():
            node.config = replace(node.config, bootstrap=servers)
            if node.incarnation > 0:
                node.replica.state.config = node.config

    def mend(self) -> None:
        """Removes voters without their disks, after healing, so that nothing waits for them."""
        for leader in self.world.leaders():
            role = leader.replica.role
            if isinstance(role, Leader) and role.change is None:
                lost = self.lost_voters(leader)
                if lost:
                    self.remove(leader, lost[0])

    def may_lose_disk(self, node: SimNode) -> bool:
        """Whether a node may lose its disk: always a broker, and a controller if the quorum can
        spare it.
        """
        return (
            node.is_mere_broker
            or (not self.world.auto_join and self.may_be_missed(node))
            or self.may_forget(node)
        )

    def may_forget(self, node: SimNode) -> bool:
        """Whether a static voter may come back with an empty or an older disk.

        It keeps its place in the majority without its records and its vote. So every other voter
        has to hold what it acknowledged, and to be in a later epoch or to know the leader of its
        epoch. Otherwise the operator loses the cluster.
        """
        world = self.world
        voters = [n for n in world.controllers() if n.incarnation > 0]
        if node.is_mere_broker or world.dynamic or len(voters) < 3:
            return False
        if len(voters) < len(world.controllers()):
            return False
        if any(n.log.kraft_version or n.writes_state for n in voters):
            return False
        known = {n.node_id: world.checks.persisted(n) for n in voters}
        own = known[node.node_id]
        return all(
            n.durable_offset >= node.durable_when_down
            and n.log.last_epoch >= node.log.last_epoch
            and known[n.node_id].epoch >= own.epoch
            and (known[n.node_id].epoch > own.epoch or known[n.node_id].leader_id is not None)
            for n in voters
            if n is not node
        )

    def may_be_missed(self, node: SimNode) -> bool:
        """Whether a controller may get another disk or address. Requires dynamic voters that are
        agreed on, committed and not changing, and a majority that keeps both.
        """
        world = self.world
        if not world.dynamic or node.is_mere_broker:
            return False
        if world.now_ms - self.last_change_ms < 3 * CHANGE_TIMEOUT_MS:
            return False
        started = [n for n in world.controllers() if n.incarnation > 0]
        if len(started) < len(world.controllers()):
            return False
        views = {n.replica.voters for n in started}
        offsets = {n.log.voters_offset for n in started}
        if len(views) != 1 or max(o or 0 for o in offsets) >= world.checks.committed_end:
            return False
        [voters] = views
        intact = [
            v
            for v in voters
            if world.nodes[v.key.replica_id].config.key == v.key
            and world.nodes[v.key.replica_id].config.endpoint == v.endpoint
            and v.key.replica_id != node.node_id
        ]
        return len(intact) >= voters.majority or not voters.is_voter(node.config.key)
