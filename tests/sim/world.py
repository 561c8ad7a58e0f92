"""The simulated world: virtual time, a faulty network, and the schedule of faults.

The network loses, repeats, reorders and delays messages, and cuts links one way. A run begins with
a time of faults. Then everything is healed and liveness is required: a leader, every pending write
answered, all replicas equal. All randomness comes from one seed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from quorum.raft import messages as m
from quorum.raft.effects import RequestFailed, RequestReceived, Send
from quorum.raft.roles import Leader
from tests.sim.canaries import Canary
from tests.sim.checks import Checks, Violation
from tests.sim.disk_faults import (
    break_disk,
    kind_of_disk_fault,
    make_slow,
)
from tests.sim.faults import ADMIN, Administrator
from tests.sim.node import SimNode
from tests.sim.restarts import Restarts
from tests.sim.rivals import Rivals
from tests.sim.rot import rot_while_running
from tests.sim.strangers import EPOCH_MAX, STRANGER, Stranger, damaged
from tidemark.errors import CorruptMessageError

FAULT_TIME_MS = 8_000
HEAL_TIME_MS = 12_000
PEACE_TIME_MS = 3_000
MAX_EVENTS = 200_000


@dataclass
class Outcome:
    """The result of one seed; `seen` counts every kind of fault and every role transition."""

    seed: int
    events: int
    trace_hash: str
    elections: int
    committed: int
    seen: Counter[str]


class World:
    """Nodes, network and clock of one seed."""

    def __init__(self, seed: int, canary: Canary | None = None, *, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.verbose = verbose
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._tokens = 0
        self._hash = hashlib.sha256()
        self.events = 0
        self.seen: Counter[str] = Counter()
        voters = list(range(1, self.rng.choice([3, 3, 3, 5, 1, 2, 4]) + 1))
        observers = list(range(11, 11 + self.rng.choice([0, 1, 2])))
        self.dynamic = self.rng.random() < 0.6
        self.auto_join = self.dynamic and self.rng.random() < 0.2
        spares = range(6, 6 + self.rng.choice([1, 2])) if self.dynamic else ()
        self.checks = Checks()
        chosen = canary or Canary()
        self.nodes = {
            n: SimNode(
                self,
                n,
                voters=voters,
                canary=chosen,
                dynamic=self.dynamic,
                auto_join=self.auto_join,
            )
            for n in (*voters, *spares, *observers)
        }
        for node in self.nodes.values():
            node.clock_rate = self.rng.choice([1.0, 1.0, 0.96, 1.04])
            node.clock_skew_ms = self.rng.randrange(100_000)
            node.wall_skew_ms = self.rng.choice([0, 0, -86_400_000, 86_400_000])
            if self.rng.random() < 0.25:
                make_slow(node, self.rng)
            self.seen["clock runs wrong"] += node.clock_rate != 1.0
            self.seen["wall clock is days off"] += node.wall_skew_ms != 0
        self.administrator = Administrator(self)
        self.restarts = Restarts(self)
        self.rivals = Rivals(self)
        self.stranger = Stranger(self)
        self.damage_rate = self.rng.choice([0.0, 0.005, 0.05])
        self.drop_rate = self.rng.choice([0.0, 0.02, 0.1])
        self.duplicate_rate = self.rng.choice([0.0, 0.02, 0.1])
        self.delay_max_ms = self.rng.choice([5, 30, 150])
        self.cut: set[tuple[int, int]] = set()  # one-way: (source, target)
        self.faulty = True
        self._next_value = 0
        self._ticks: dict[int, int] = {}
        self._latest_arrival: dict[tuple[int, int], int] = {}
        self._sent = 0
        self.quiet = False

    # --- time -----------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.faulty and self.rng.random() < probability

    def at(self, moment_ms: int, work: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (moment_ms, self._sequence, work))

    def after(self, delay_ms: int, node: SimNode, work: Callable[[], None]) -> None:
        """Runs `work` after a delay unless the node crashes first; a paused node runs it on
        resuming.
        """
        incarnation = node.incarnation

        def alive() -> None:
            if node.alive and node.incarnation == incarnation:
                if node.is_paused:
                    self.at(node.paused_until_ms, alive)
                else:
                    work()

        self.at(self.now_ms + delay_ms, alive)

    def schedule_tick(self, node: SimNode) -> None:
        deadline_ms = node.replica.next_deadline_ms()
        if deadline_ms is None:
            return
        moment_ms = max(node.world_time_ms(deadline_ms), self.now_ms + 1)
        moment_ms = max(moment_ms, node.paused_until_ms)
        planned_ms = self._ticks.get(node.node_id)
        if planned_ms is not None and self.now_ms < planned_ms <= moment_ms:
            return  # a tick is already scheduled before that
        self._ticks[node.node_id] = moment_ms
        self.at(moment_ms, lambda: self._tick(node, moment_ms))

    def _tick(self, node: SimNode, moment_ms: int) -> None:
        if self._ticks.get(node.node_id) == moment_ms:
            del self._ticks[node.node_id]
            if node.alive:
                node.tick(node.incarnation)
                self.schedule_tick(node)

    def trace(self, node: SimNode, what: str) -> None:
        self.events += 1
        replica, log = node.replica, node.log
        line = (
            f"{self.now_ms:6} n{node.node_id} {what:24} {type(replica.role).__name__:11}"
            f" e{replica.epoch} [{log.start_offset},{log.end_offset}) hw={replica.high_watermark}"
        )
        self._hash.update(line.encode())
        if self.verbose:
            print(line)

    # --- network --------------------------------------------------------------------------------

    def _passes(self, source: int, target: int) -> bool:
        if (source, target) in self.cut:
            one_way = (target, source) not in self.cut
            self.seen["cut one way" if one_way else "cut both ways"] += 1
            return False
        if self.chance(self.drop_rate):
            self.seen["message dropped"] += 1
            return False
        return True

    def _delay_ms(self) -> int:
        return 1 + self.rng.randrange(self.delay_max_ms if self.faulty else 3)

    def _carry(self, source: int, target: int, work: Callable[[], None]) -> None:
        if not self._passes(source, target):
            return
        self._sent += 1
        number, link = self._sent, (source, target)

        def arrive() -> None:
            if number < self._latest_arrival.get(link, 0):
                self.seen["message overtaken"] += 1
            else:
                self._latest_arrival[link] = number
            work()

        self.at(self.now_ms + self._delay_ms(), arrive)
        if self.chance(self.duplicate_rate):
            self.seen["message repeated"] += 1
            self.at(self.now_ms + 3 * self._delay_ms(), work)

    def send_request(self, source: SimNode, send: Send) -> None:
        target = self.nodes[send.endpoint.port]
        incarnation, correlation_id = source.incarnation, send.correlation_id

        def arrive() -> None:
            reached = send.endpoint == target.config.endpoint and not target.is_suspended
            if not target.alive or not reached:
                self.seen["nobody answers there"] += 1
                # the connection is refused, or the request is lost
                if not target.is_suspended and self.rng.random() < 0.5:
                    self.after_of(source, incarnation, lambda: RequestFailed(correlation_id))
                return
            token = self.next_token()
            target.tokens[token] = (source.node_id, correlation_id, incarnation)
            target.step(RequestReceived(token, send.request))

        self._carry(source.node_id, target.node_id, arrive)

    def after_of(self, node: SimNode, incarnation: int, event: Callable[[], RequestFailed]) -> None:
        if node.alive and node.incarnation == incarnation:
            node.step(event())

    def send_response(
        self,
        source: SimNode,
        target_id: int,
        correlation_id: int,
        incarnation: int,
        response: m.Response,
    ) -> None:
        if target_id == ADMIN:
            self.administrator.answered(response)
            return
        if target_id == STRANGER:
            self.stranger.answered(response)
            return
        if isinstance(response, m.FetchResponse) and self.chance(self.damage_rate):
            self.seen["answer damaged on the way"] += 1
            response = damaged(response, self.rng)
        target = self.nodes[target_id]
        if isinstance(response, m.VoteResponse) and response.vote_granted:
            pending = target.incarnation == incarnation and target.alive
            asked = (
                target.replica.state.requests.pending_request(correlation_id) if pending else None
            )
            if isinstance(asked, m.VoteRequest) and not asked.pre_vote:
                self.checks.on_vote_granted(source, asked.epoch, asked.candidate)

        def arrive() -> None:
            listens = target.alive and not target.is_suspended
            if listens and target.incarnation == incarnation:
                target.answered(correlation_id, response)

        self._carry(source.node_id, target_id, arrive)

    # --- faults ---------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        rng = self.rng
        verbs: list[tuple[int, Callable[[], None]]] = [
            (rng.choice([400, 1500, 6000]), self._crash_one),
            (rng.choice([500, 2000, 9000]), self._cut_some),
            (rng.choice([300, 1000]), self._snapshot_one),
            (rng.choice([2000, 9000]), self._trouble_leader),
            (rng.choice([1500, 6000]), self._pause_one),
            (rng.choice([2500, 9000]), self._break_a_disk),
            (rng.choice([200, 2000]), self.stranger.send_some),
            (rng.choice([400, 3000]), self._rot_one),
        ]
        if self.dynamic:
            mean_ms = rng.choice([250, 700, 2500])
            if self.administrator.is_impatient:
                mean_ms = 60
            verbs.append((mean_ms, self.administrator.change_some))
        else:
            verbs.append((rng.choice([1500, 6000]), self.administrator.make_dynamic))
        for mean_ms, verb in verbs:
            moment_ms = 0
            while (moment_ms := moment_ms + 1 + rng.randrange(2 * mean_ms)) < FAULT_TIME_MS:
                self.at(moment_ms, verb)
        self.rivals.plan()
        moment_ms = 0
        while (moment_ms := moment_ms + 1 + rng.randrange(80)) < FAULT_TIME_MS:
            self.at(moment_ms, self._append_some)

    def any_node(self) -> SimNode:
        return self.nodes[self.rng.choice(sorted(self.nodes))]

    def _crash_one(self) -> None:
        everybody = self.rng.random() < 0.1
        victims = list(self.nodes.values()) if everybody else [self.any_node()]
        self.seen["all crash at once"] += everybody
        for node in victims:
            node.crash()
        for node in victims:
            self.restart_later(node)

    def restart_later(self, node: SimNode) -> None:
        self.restarts.later(node)

    def _break_a_disk(self) -> None:
        """Makes a sync fail or fills the disk of one node, until the node restarts."""
        node = self.any_node()
        if node.alive:
            break_disk(node, self.rng)
            self.at(self.now_ms + 2500, node.make_room)

    def is_planned(self, node: SimNode, error: Exception) -> bool:
        """Whether the error is a planned disk fault; counts its kind."""
        kind = kind_of_disk_fault(node, error)
        if kind is None and node.wounds.is_open and isinstance(error, CorruptMessageError):
            kind = "own records found damaged"
        if kind is not None:
            self.seen[kind] += 1
            self.trace(node, kind)
        return kind is not None

    def _restart(self, node: SimNode) -> None:
        self.restarts.restart(node)

    def _rot_one(self) -> None:
        """Flips a bit of a running node's log or checkpoint: of a leader, or of any node."""
        leaders = self.leaders()
        node = leaders[0] if leaders and self.rng.random() < 0.7 else self.any_node()
        if not node.alive or not self.administrator.may_rot(node):
            return
        damage = rot_while_running(node, self.rng, self.checks.committed_end)
        if damage is not None:
            node.wounds.running = damage
            self.seen[f"damaged while it runs: {damage.kind}"] += 1
            self.trace(node, f"damaged {damage.name} at {damage.position}")

    def _pause_one(self) -> None:
        """Stops a process (SIGSTOP) or suspends a whole machine, within the timeouts or beyond
        them. A resumed leader is a zombie for a moment: longer after a suspension, since its own
        clock stood still."""
        leaders = self.leaders()
        node = leaders[0] if leaders and self.rng.random() < 0.5 else self.any_node()
        if node.alive and not node.is_paused:
            self._wake(node)
            node.paused_until_ms = self.now_ms + 1 + self.rng.randrange(3000)
            suspended = self.rng.random() < 0.4
            if suspended:
                node.suspend()
                self.at(node.paused_until_ms, lambda: self._wake(node))
            kind = "machine suspended" if suspended else "paused"
            self.seen[kind] += 1
            self.trace(node, kind)

    def _wake(self, node: SimNode) -> None:
        """Wakes a suspended node, unless it was suspended again meanwhile."""
        if node.is_suspended and not node.is_paused:
            node.wake()
            self.schedule_tick(node)

    def controllers(self) -> list[SimNode]:
        return [n for n in self.nodes.values() if not n.is_mere_broker]

    def next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _cut_some(self) -> None:
        """Cuts links one way or both, around one node or between halves; heals them later."""
        ids = sorted(self.nodes)
        side = set(self.rng.sample(ids, self.rng.randrange(1, len(ids) + 1)))
        ways = {(a, b) for a in side for b in ids if b not in side}
        kind = self.rng.random()
        if kind < 0.4:
            ways |= {(b, a) for a, b in ways}
        elif kind < 0.7:
            ways = {(b, a) for a, b in ways}
        self.cut |= ways
        self.at(
            self.now_ms + 1 + self.rng.randrange(2500), lambda: self.cut.difference_update(ways)
        )

    def cut_off(self, node: SimNode) -> None:
        """Cuts a node off in both directions, and heals that later."""
        others = [n for n in self.nodes if n != node.node_id]
        ways = {(node.node_id, n) for n in others} | {(n, node.node_id) for n in others}
        self.cut |= ways
        self.at(
            self.now_ms + 1 + self.rng.randrange(2500), lambda: self.cut.difference_update(ways)
        )

    def _snapshot_one(self) -> None:
        self.any_node().make_snapshot()

    def _trouble_leader(self) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        leader = leaders[0]
        kind = self.rng.random()
        if kind < 0.3:
            self.seen["leader resigns"] += 1
            leader.resign()
        elif kind < 0.6:
            self.seen["leader shut down in order"] += 1
            leader.shut_down()
            self.at(self.now_ms + 200, leader.crash)
            self.at(self.now_ms + 700, lambda: self._restart(leader))
        else:
            leader.crash()
            self.at(self.now_ms + 400, lambda: self._restart(leader))

    def leaders(self) -> list[SimNode]:
        return [n for n in self.nodes.values() if n.alive and isinstance(n.replica.role, Leader)]

    def _append_some(self) -> None:
        for leader in self.leaders():  # maybe several: an old leader may not know of its successor
            count = 1 + self.rng.randrange(4)
            values = []
            for _ in range(count):
                self._next_value += 1
                key = self.rng.randrange(20)
                values.append(b"key%d=value%d" % (key, self._next_value))
            leader.propose(values)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Runs the faults, then healing and liveness. A Violation or any other exception is the
        finding of the seed.
        """
        for node_id in self.nodes:
            self.at(self.rng.randrange(100), lambda n=node_id: self._restart(self.nodes[n]))
        self._plan_faults()
        self._run_until(FAULT_TIME_MS)
        highest = max(node.replica.epoch for node in self.nodes.values())
        if highest > EPOCH_MAX:
            raise Violation(f"epoch {highest} does not come from elections")
        self._heal()
        self._run_until(FAULT_TIME_MS + HEAL_TIME_MS)
        self._require_liveness()
        self._require_peace()
        checks = self.checks
        return Outcome(
            self.seed,
            self.events,
            self._hash.hexdigest(),
            checks.elections,
            checks.committed_end,
            self.seen,
        )

    def _run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms and not self.quiet:
            self.now_ms, _, work = heapq.heappop(self._queue)
            work()
            if self.events > MAX_EVENTS:
                raise Violation(f"more than {MAX_EVENTS} events: somebody is busy for nothing")

    def _heal(self) -> None:
        self.faulty = False
        self.cut.clear()
        for node in self.nodes.values():
            self.at(self.now_ms + 1, lambda n=node: self._revive(n))
        self.administrator.correct_bootstrap_servers()
        for node in self.nodes.values():
            node.paused_until_ms = min(node.paused_until_ms, self.now_ms)
            self._wake(node)
            node.mend_disk()
        for moment_ms in range(self.now_ms + 500, FAULT_TIME_MS + HEAL_TIME_MS, 50):
            self.at(moment_ms, self._look)

    def _look(self) -> None:
        self.administrator.mend()
        self.quiet = self._is_quiet()

    def _revive(self, node: SimNode) -> None:
        if node.alive and node.replica.state.shutting_down:
            node.crash()
        self._restart(node)

    def _is_quiet(self) -> bool:
        """Whether a record written after the healing is committed, and all replicas have it."""
        leaders = self.leaders()
        if len(leaders) != 1:
            return False
        leader = leaders[0]
        role, end_offset = leader.replica.role, leader.log.end_offset
        assert isinstance(role, Leader)
        if role.change is not None or not leader.replica.state.is_voter:
            return False
        everywhere = all(
            n.alive and n.log.end_offset == end_offset and n.replica.high_watermark == end_offset
            for n in self.nodes.values()
        )
        if everywhere and b"probe" not in leader.image.values:
            leader.propose([b"probe=written after the healing"])
            return False
        return everywhere

    def _require_peace(self) -> None:
        """Requires that the leader of a healthy, idle cluster does not change."""
        epochs = {n.replica.epoch for n in self.nodes.values()}
        self.quiet = False
        self._queue = [entry for entry in self._queue if entry[2] != self._look]
        heapq.heapify(self._queue)
        self._run_until(self.now_ms + PEACE_TIME_MS)
        now = {n.replica.epoch for n in self.nodes.values()}
        if now != epochs:
            raise Violation(f"liveness: an idle cluster went from epochs {epochs} to {now}")

    def _require_liveness(self) -> None:
        if not self.quiet:
            states = {
                n.node_id: (
                    type(n.replica.role).__name__,
                    n.replica.epoch,
                    n.log.end_offset,
                    n.replica.high_watermark,
                )
                for n in self.nodes.values()
            }
            raise Violation(f"liveness: {HEAL_TIME_MS} ms after healing still {states}")
        digests = {n.image.digest() for n in self.nodes.values()}
        if len(digests) != 1:
            raise Violation(f"I8 the images differ at the end: {digests}")


def run_seed(seed: int, canary: Canary | None = None, *, verbose: bool = False) -> Outcome:
    """Runs one seed to its end."""
    return World(seed, canary, verbose=verbose).run()
