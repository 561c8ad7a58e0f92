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
from quorum.raft.voters import ReplicaKey, VoterSet

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
        if not leaders or not world.dynamic or world.rivals.at_work:
            return
        leader = leaders[world.rng.randrange(len(leaders))]
        lost = self.lost_voters(leader)
        voters = leader.replica.voters
        spare = [n for n in world.controllers() if not voters.is_voter(n.config.key)]
        kind = world.rng.random()
        if any(n.wounds.is_open for n in world.controllers()):
            return  # a damaged voter heals first: the others have to stay a majority
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
                if node.alive:
                    self.world.schedule_tick(node)  # it may have had nobody to ask

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
            or (not self.world.dynamic and self._may_be_emptied(node))
        )

    def _may_be_emptied(self, node: SimNode) -> bool:
        """Whether a static voter may come back with an empty disk."""
        static = not any(n.log.kraft_version for n in self.world.controllers() if n.incarnation)
        return static and self.may_forget(node)

    def may_forget(self, node: SimNode) -> bool:
        """Whether a voter may come back with an older disk, or a static one with an empty disk.

        It keeps its place in the majority without its records and its vote. So every other voter
        has to hold what it acknowledged, and to be in a later epoch or to know the leader of its
        epoch. The copy has to name the voters of today. Otherwise the operator loses the cluster.
        """
        world = self.world
        voters = self._agreed_voters()
        if node.is_mere_broker or voters is None or len(voters) < 3:
            return False
        if node.log.kraft_version and node.old_voters != voters:
            return False
        others = self._other_voters(node, voters)
        own, last_epoch = world.checks.persisted(node), node.log.last_epoch
        known = [world.checks.persisted(n) for n in others]
        return (
            self.others_have(node)
            and all(n.log.last_epoch >= last_epoch and not n.wounds.is_open for n in others)
            and all(
                k.epoch > own.epoch or (k.epoch == own.epoch and k.leader_id is not None)
                for k in known
            )
        )

    def others_have(self, node: SimNode) -> bool:
        """Whether every other voter holds durably what this node acknowledged."""
        voters = self._agreed_voters()
        if voters is None:
            return False
        others = self._other_voters(node, voters)
        return all(
            n.durable_offset >= node.acknowledged_offset and not n.wounds.is_open for n in others
        )

    def may_rot(self, node: SimNode) -> bool:
        """Whether a file of this node may be damaged: of the voters, at most a minority is without
        its records, its disk or its address."""
        if node.wounds.is_open:
            return False
        if node.is_mere_broker:
            return True
        voters = self._agreed_voters()
        if voters is None:
            return False
        if not voters.is_voter(node.config.key):
            return True
        others = self._other_voters(node, voters)
        whole = [n for n in others if not n.wounds.is_open and not n.writes_state]
        return len(whole) >= voters.majority

    def _other_voters(self, node: SimNode, voters: VoterSet) -> list[SimNode]:
        """The other voters that have their disks and addresses."""
        nodes = self.world.nodes
        others = [(nodes[v.key.replica_id], v) for v in voters]
        return [
            n
            for n, v in others
            if n is not node and n.config.key.matches(v.key) and n.config.endpoint == v.endpoint
        ]

    def _agreed_voters(self) -> VoterSet | None:
        """The voters, if all controllers agree on them, and no change is under way."""
        world = self.world
        if world.now_ms - self.last_change_ms < 3 * CHANGE_TIMEOUT_MS:
            return None
        started = [n for n in world.controllers() if n.incarnation > 0]
        if len(started) < len(world.controllers()):
            return None
        views = {n.replica.voters for n in started}
        offsets = {n.log.voters_offset for n in started}
        if len(views) != 1 or max(o or 0 for o in offsets) >= world.checks.committed_end:
            return None
        [voters] = views
        return voters

    def may_be_missed(self, node: SimNode) -> bool:
        """Whether a controller may get another disk or address. Requires dynamic voters that are
        agreed on, committed and not changing, and a majority that keeps both.
        """
        if not self.world.dynamic or node.is_mere_broker:
            return False
        voters = self._agreed_voters()
        if voters is None:
            return False
        others = self._other_voters(node, voters)
        intact = [n for n in others if not n.wounds.is_open]
        return len(intact) >= voters.majority or not voters.is_voter(node.config.key)
