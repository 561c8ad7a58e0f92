"""RaftCluster: a scripted, fault-free cluster, which describes its messages in words.

It is the simulator's world with every delay at 1 ms. Only the election timeouts are random, and
these come from a fixed seed. Fetches without news are omitted from the transcript.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from quorum.raft import messages as m
from quorum.raft.effects import Send
from quorum.raft.roles import Leader
from tests.sim.canaries import Canary
from tests.sim.checks import Checks
from tests.sim.faults import ADMIN
from tests.sim.node import SimNode
from tests.sim.world import World
from tidemark.errors import ErrorCode


class RaftCluster(World):
    """Voters 1..n and observers 11.., all started at once unless `start` names some."""

    def __init__(
        self,
        *,
        voters: int = 3,
        observers: int = 0,
        spares: int = 0,
        dynamic: bool = False,
        seed: int = 0,
        start: bool = True,
    ) -> None:
        """With `dynamic` the voters are in the log; then `spares` 6.. are controllers that can
        become voters.
        """
        super().__init__(seed)
        self.rng = random.Random(seed)
        ids = list(range(1, voters + 1))
        self.voters = ids
        self.checks = Checks()
        self.dynamic = dynamic
        self.nodes = {
            n: SimNode(self, n, voters=ids, canary=Canary(), dynamic=dynamic)
            for n in (*ids, *range(6, 6 + spares), *range(11, 11 + observers))
        }
        self.faulty = False
        self.lines: list[str] = []
        self._roles: dict[int, str] = {}
        self._voters: dict[int, str] = {}
        if start:
            for node_id in self.nodes:
                self.start(node_id)

    # --- verbs ----------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Adds a narrator's line to the transcript."""
        self.lines.extend(["", f"# {text}"])

    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()
        self._note_role(self.nodes[node_id])

    def crash(self, node_id: int) -> None:
        """Cuts the power: unsynced data is lost."""
        node = self.nodes[node_id]
        self.lines.append(f"{self.now_ms:5}  n{node_id} crashes")
        node.durable_when_down = node.durable_offset
        node.alive = False
        node.disk.crash(keep="nothing")
        self._roles.pop(node_id, None)

    def add_voter(self, node_id: int, by: int) -> None:
        """Sends node `by` a request to make the node a voter."""
        self.lines.append(f"{self.now_ms:5}  n{by} is asked to add voter n{node_id}")
        self.administrator.add(self.nodes[by], self.nodes[node_id])

    def remove_voter(self, node_id: int, by: int) -> None:
        """Sends node `by` a request to make the node an observer."""
        self.lines.append(f"{self.now_ms:5}  n{by} is asked to remove voter n{node_id}")
        leader = self.nodes[by]
        self.administrator.remove(leader, leader.replica.voters.key(node_id))

    def make_dynamic(self, by: int) -> None:
        """Sends node `by` a request for kraft.version 1."""
        self.lines.append(f"{self.now_ms:5}  n{by} is asked to put the static voters into the log")
        self.dynamic = True
        leader = self.nodes[by]
        self.administrator.ask(leader, m.UpgradeVersionRequest(leader.config.cluster_id, 1))

    def lose_disk(self, node_id: int) -> None:
        """Replaces the disk of a stopped node."""
        self.lines.append(f"{self.now_ms:5}  n{node_id} gets an empty disk, another directory id")
        self.nodes[node_id].lose_disk()

    def move(self, node_id: int) -> None:
        """Changes the node's address from its next start on."""
        self.nodes[node_id].move()
        endpoint = self.nodes[node_id].config.endpoint
        assert endpoint is not None
        self.lines.append(f"{self.now_ms:5}  n{node_id} moves to {endpoint.address}")

    def shut_down(self, node_id: int) -> None:
        self.lines.append(f"{self.now_ms:5}  n{node_id} shuts down")
        self.nodes[node_id].shut_down()

    def isolate(self, node_id: int) -> None:
        """Cuts the node off in both directions."""
        self.lines.append(f"{self.now_ms:5}  n{node_id} is cut off")
        for other in self.nodes:
            self.cut |= {(node_id, other), (other, node_id)}

    def mute(self, node_id: int) -> None:
        """Drops everything the node sends; it still receives."""
        self.lines.append(f"{self.now_ms:5}  n{node_id} is not heard any more")
        self.cut |= {(node_id, other) for other in self.nodes}

    def heal(self) -> None:
        self.lines.append(f"{self.now_ms:5}  the network is whole again")
        self.cut.clear()

    def append(self, node_id: int, *values: bytes) -> None:
        node = self.nodes[node_id]
        first = node.log.end_offset
        taken = node.propose(list(values))
        what = (
            f"appends offsets {first} to {node.log.end_offset - 1}" if taken else "can not append"
        )
        self.lines.append(f"{self.now_ms:5}  n{node_id} {what}")

    def snapshot(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.make_snapshot()
        latest = node.log.latest_snapshot
        self.lines.append(
            f"{self.now_ms:5}  n{node_id} has checkpoint {tuple(latest or ())}, "
            f"its log is [{node.log.start_offset}, {node.log.end_offset})"
        )

    def run_for(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        self._run_until(end_ms)
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 10_000) -> None:
        end_ms = self.now_ms + limit_ms
        while not condition():
            assert self.now_ms < end_ms, "the story does not go on\n" + "\n".join(self.lines[-40:])
            self.run_for(1)

    def run_until_leader(self, *, other_than: int | None = None) -> int:
        """Runs until a node leads and its own state machine knows of it; returns its id."""

        def leaders() -> list[int]:
            return [
                n.node_id
                for n in self.nodes.values()
                if n.alive
                and isinstance(n.replica.role, Leader)
                and n.node_id != other_than
                and n.listeners.next_offset(n.image) > n.replica.role.epoch_start_offset
            ]

        self.run_until(lambda: bool(leaders()))
        return leaders()[0]

    def run_until_equal(self, *node_ids: int) -> None:
        """Runs until these nodes (default: all) have committed the same log."""
        chosen = [self.nodes[n] for n in (node_ids or self.nodes)]
        self.run_until(
            lambda: (
                len({(n.log.end_offset, n.replica.high_watermark) for n in chosen}) == 1
                and chosen[0].replica.high_watermark == chosen[0].log.end_offset
            )
        )

    def show(self) -> None:
        """Adds one line per node with its state."""
        for node in self.nodes.values():
            if not node.alive:
                self.lines.append(f"       n{node.node_id} is down")
                continue
            replica, log = node.replica, node.log
            self.lines.append(
                f"       n{node.node_id} {type(replica.role).__name__} in epoch {replica.epoch}, "
                f"log [{log.start_offset}, {log.end_offset}) last epoch {log.last_epoch}, "
                f"high watermark {replica.high_watermark}"
            )

    def story(self) -> str:
        return "\n".join(self.lines).strip("\n") + "\n"

    # --- reports of the world -------------------------------------------------------------------

    def _delay_ms(self) -> int:
        return 1

    def chance(self, probability: float) -> bool:
        return False

    def trace(self, node: SimNode, what: str) -> None:
        super().trace(node, what)
        if what.startswith(("installed", "cleaned")):
            self.lines.append(f"{self.now_ms:5}  n{node.node_id} {what}")

    def schedule_tick(self, node: SimNode) -> None:
        super().schedule_tick(node)
        self._note_role(node)

    def _note_voters(self, node: SimNode) -> None:
        voters = ", ".join(
            f"n{v.key.replica_id}" + ("" if "'" not in v.endpoint.host else f" at {v.endpoint[0]}")
            for v in node.replica.voters
        )
        if self.dynamic and self._voters.get(node.node_id) != voters:
            self._voters[node.node_id] = voters
            self.lines.append(f"{self.now_ms:5}  n{node.node_id} counts voters [{voters}]")

    def _note_role(self, node: SimNode) -> None:
        self._note_voters(node)
        role = node.replica.role
        text = f"{type(role).__name__} in epoch {role.epoch}"
        leader_id = getattr(role, "leader_id", None)
        if leader_id is not None:
            text += f" (leader n{leader_id})"
        if self._roles.get(node.node_id) != text:
            self._roles[node.node_id] = text
            self.lines.append(f"{self.now_ms:5}  n{node.node_id} is {text}")

    def send_request(self, source: SimNode, send: Send) -> None:
        self._note_role(source)
        target = send.endpoint.port
        text = describe_request(send.request)
        if text:
            lost = "" if self._passes(source.node_id, target) else "   (lost)"
            self.lines.append(f"{self.now_ms:5}  n{source.node_id} -> n{target}  {text}{lost}")
        super().send_request(source, send)

    def send_response(
        self,
        source: SimNode,
        target_id: int,
        correlation_id: int,
        incarnation: int,
        response: m.Response,
    ) -> None:
        self._note_role(source)
        text = describe_response(response)
        if target_id == ADMIN:
            self.lines.append(f"{self.now_ms:5}  n{source.node_id} answers: {text}")
        elif text:
            lost = "" if self._passes(source.node_id, target_id) else "   (lost)"
            self.lines.append(f"{self.now_ms:5}  n{target_id} <- n{source.node_id}  {text}{lost}")
        super().send_response(source, target_id, correlation_id, incarnation, response)


def describe_request(request: m.Request) -> str:
    """Returns a request in words; empty for a plain fetch."""
    match request:
        case m.VoteRequest():
            kind = "PreVote" if request.pre_vote else "Vote"
            log = f"(epoch {request.last_offset_epoch}, end {request.last_offset})"
            return f"{kind} for epoch {request.epoch}, my log {log}?"
        case m.BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch {request.epoch}"
        case m.EndQuorumEpochRequest():
            best = ", ".join(f"n{key.replica_id}" for key in request.preferred_candidates)
            return f"EndQuorumEpoch {request.epoch}, next better [{best}]"
        case m.FetchSnapshotRequest():
            return f"FetchSnapshot {tuple(request.snapshot_id)} from byte {request.position}"
        case m.FetchRequest():
            return ""
        case m.UpdateVoterRequest():
            return f"UpdateVoter n{request.voter.replica_id} at {request.endpoint.address}"
        case m.AddVoterRequest() | m.RemoveVoterRequest():
            return f"{type(request).__name__} n{request.voter.replica_id}"


def describe_response(response: m.Response) -> str:
    """Returns a response in words; empty if it has no news."""
    error = response.header.error
    match response:
        case m.VoteResponse():
            refusal = "no" if error == ErrorCode.NONE else error.name
            return "granted" if response.vote_granted else refusal
        case m.FetchResponse() if response.diverging_epoch is not None:
            epoch, end_offset = response.diverging_epoch
            return f"Fetch: diverging, my epoch {epoch} ends at {end_offset}"
        case m.FetchResponse() if response.snapshot_id is not None:
            return f"Fetch: first take checkpoint {tuple(response.snapshot_id)}"
        case m.FetchResponse() if response.records:
            return f"Fetch: {len(response.records)} bytes, high watermark {response.high_watermark}"
        case m.FetchResponse():
            asked_around = error == ErrorCode.NOT_LEADER_OR_FOLLOWER  # the search for a leader
            return "" if error == ErrorCode.NONE or asked_around else f"Fetch: {error.name}"
        case m.FetchSnapshotResponse() if error == ErrorCode.NONE:
            return f"{len(response.data)} of {response.size} bytes"
        case m.VoterChangeResponse():
            return "done" if error == ErrorCode.NONE else f"{error.name}: {response.message}"
        case _:
            return "" if error == ErrorCode.NONE else error.name
