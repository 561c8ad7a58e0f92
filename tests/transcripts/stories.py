"""The stories. Each scripts a RaftCluster, and its transcript is the file of the same name. A
transcript begins with the docstring of its story.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.transcripts.cluster import RaftCluster
from tests.transcripts.coordinators import COORDINATOR_STORIES


def election() -> str:
    """Three voters elect a leader, an observer finds it, records are committed."""
    cluster = RaftCluster(observers=1)
    cluster.tell("three voters and an observer start with empty logs")
    leader = cluster.run_until_leader()
    cluster.tell("the leader takes records; they are committed when a majority has synced them")
    cluster.append(leader, b"a=1", b"b=2")
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def leader_lost() -> str:
    """The leader dies; the voters that fetched from it wait for their fetch timeout, then elect."""
    cluster = RaftCluster()
    first = cluster.run_until_leader()
    cluster.append(first, b"a=1")
    cluster.run_until_equal()
    cluster.lines.clear()
    cluster.tell("the leader dies")
    cluster.crash(first)
    second = cluster.run_until_leader(other_than=first)
    cluster.append(second, b"b=2")
    cluster.run_for(100)
    cluster.tell("it comes back: Resigned in its old epoch, it never writes in it again")
    cluster.start(first)
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def divergence() -> str:
    """An old leader holds records nobody else has: they are cut when it follows the new one."""
    cluster = RaftCluster()
    old = cluster.run_until_leader()
    cluster.append(old, b"a=1")
    cluster.run_until_equal()
    cluster.lines.clear()
    cluster.tell("the leader is cut off, and takes records that it can not commit")
    cluster.isolate(old)
    cluster.append(old, b"lost=1", b"lost=2")
    new = cluster.run_until_leader(other_than=old)
    cluster.append(new, b"b=2")
    cluster.run_for(100)
    cluster.tell("both sides meet again")
    cluster.heal()
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def one_way_partition() -> str:
    """A voter that hears nothing disturbs nobody: pre-votes are refused while the leader lives."""
    cluster = RaftCluster()
    leader = cluster.run_until_leader()
    cluster.run_for(50)
    deaf = next(n for n in cluster.voters if n != leader)
    cluster.lines.clear()
    cluster.tell("the leader's words do not reach one voter; the other way is open")
    cluster.lines.append(f"{cluster.now_ms:5}  n{deaf} does not hear n{leader} any more")
    cluster.cut.add((leader, deaf))
    cluster.run_for(1500)
    cluster.tell("the epoch is still the same; healed, the voter just goes on")
    cluster.heal()
    cluster.append(leader, b"a=1")
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def check_quorum() -> str:
    """A leader that no majority fetches from gives up by itself."""
    cluster = RaftCluster()
    leader = cluster.run_until_leader()
    cluster.run_for(50)
    cluster.lines.clear()
    cluster.tell("nobody hears the leader, nor it them")
    cluster.isolate(leader)
    cluster.run_for(1000)
    cluster.show()
    return cluster.story()


def graceful_shutdown() -> str:
    """A leader that shuts down tells the voters who had best follow it."""
    cluster = RaftCluster()
    leader = cluster.run_until_leader()
    cluster.append(leader, b"a=1")
    cluster.run_until_equal()
    cluster.lines.clear()
    cluster.tell("the leader shuts down: no timeout has to pass before the next one stands")
    cluster.shut_down(leader)
    cluster.run_until_leader(other_than=leader)
    cluster.show()
    return cluster.story()


def snapshot_bootstrap() -> str:
    """A new observer, and a voter that was away: both load a checkpoint, then fetch the rest."""
    cluster = RaftCluster(observers=1, start=False)
    for node_id in cluster.voters:
        cluster.start(node_id)
    leader = cluster.run_until_leader()
    away = next(n for n in cluster.voters if n != leader)
    rest = [n for n in cluster.voters if n != away]
    cluster.crash(away)
    for round_number in range(12):
        cluster.append(leader, *(b"key%d=%d" % (k, round_number) for k in range(8)))
        cluster.run_until_equal(*rest)
        if round_number % 5 == 4:
            for node_id in rest:
                cluster.nodes[node_id].make_snapshot()
    cluster.lines.clear()
    cluster.tell("the log was cleaned up to a checkpoint while one voter was away")
    cluster.snapshot(leader)
    cluster.tell("the voter returns, and a new observer joins")
    cluster.start(away)
    cluster.start(11)
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def voters_added() -> str:
    """A standalone controller gets a second voter: an observer first, probed, then counted."""
    cluster = RaftCluster(voters=1, spares=1, dynamic=True)
    cluster.tell("formatted with --standalone: the first leader writes the voters into the log")
    leader = cluster.run_until_leader()
    cluster.append(leader, b"a=1")
    cluster.run_until_equal()
    cluster.tell("the observer has caught up; the new set counts as soon as it is appended")
    cluster.add_voter(6, by=leader)
    cluster.run_until(lambda: cluster.nodes[leader].replica.role.change is None)
    cluster.run_until_equal()
    cluster.tell("it is a voter now: what the operator asks twice is refused")
    cluster.add_voter(6, by=leader)
    cluster.show()
    return cluster.story()


def static_voters_into_the_log() -> str:
    """kraft.version 1: the voters of the settings become voters of the log, while it runs."""
    cluster = RaftCluster(start=False)
    absent = 3
    for node_id in (1, 2):
        cluster.start(node_id)
    leader = cluster.run_until_leader()
    cluster.run_for(100)
    cluster.lines.clear()
    cluster.tell("one voter has never fetched: its directory id is not known")
    cluster.make_dynamic(by=leader)
    cluster.tell("it starts, and fetches")
    cluster.start(absent)
    cluster.run_until_equal()
    cluster.tell("now all are known; the set in the log counts as soon as it is appended")
    cluster.make_dynamic(by=leader)
    cluster.run_until_equal()
    cluster.tell("from now on voters can be changed")
    cluster.remove_voter(absent, by=leader)
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def leader_removed() -> str:
    """The leader is removed: it leads until that is committed, without counting itself."""
    cluster = RaftCluster(dynamic=True)
    leader = cluster.run_until_leader()
    cluster.run_until_equal()
    cluster.lines.clear()
    cluster.tell("the leader is to go")
    cluster.remove_voter(leader, by=leader)
    cluster.run_until_leader(other_than=leader)
    cluster.tell("it goes on as an observer")
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def voter_change_taken_back() -> str:
    """A change that was appended, but not committed, is gone with the truncation of its record."""
    cluster = RaftCluster(spares=1, dynamic=True)
    old = cluster.run_until_leader()
    cluster.run_until_equal()
    gone = next(n for n in cluster.voters if n != old)
    cluster.lines.clear()
    cluster.tell("a leader that is cut off is asked to remove a voter")
    cluster.isolate(old)
    cluster.remove_voter(gone, by=old)
    cluster.run_until_leader(other_than=old)
    cluster.tell("the others never heard of it: the old leader takes it back")
    cluster.heal()
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def voter_with_new_disk() -> str:
    """A voter that lost its disk is another replica: the old one is removed, the new one added."""
    cluster = RaftCluster(dynamic=True)
    leader = cluster.run_until_leader()
    cluster.append(leader, b"a=1")
    cluster.run_until_equal()
    lost = next(n for n in cluster.voters if n != leader)
    cluster.lines.clear()
    cluster.tell("a voter loses its disk")
    cluster.crash(lost)
    cluster.lose_disk(lost)
    cluster.start(lost)
    cluster.run_until_equal()
    cluster.tell("it has everything, but no vote: its directory id is unknown")
    cluster.add_voter(lost, by=leader)
    cluster.remove_voter(lost, by=leader)
    cluster.run_until(lambda: cluster.nodes[leader].replica.role.change is None)
    cluster.add_voter(lost, by=leader)
    cluster.run_until(lambda: cluster.nodes[leader].replica.role.change is None)
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


def voter_moved() -> str:
    """A voter comes back at another address, and tells the leader."""
    cluster = RaftCluster(dynamic=True)
    leader = cluster.run_until_leader()
    cluster.run_until_equal()
    moved = next(n for n in cluster.voters if n != leader)
    cluster.crash(moved)
    cluster.lines.clear()
    cluster.tell("a voter comes back at another address")
    cluster.move(moved)
    cluster.start(moved)
    endpoint = cluster.nodes[moved].config.endpoint
    cluster.run_until(
        lambda: all(n.replica.voters.endpoint(moved) == endpoint for n in cluster.nodes.values())
    )
    cluster.run_until_equal()
    cluster.show()
    return cluster.story()


STORIES: dict[str, Callable[[], str]] = {
    story.__name__: story
    for story in (
        election,
        leader_lost,
        divergence,
        one_way_partition,
        check_quorum,
        graceful_shutdown,
        snapshot_bootstrap,
        voters_added,
        static_voters_into_the_log,
        leader_removed,
        voter_change_taken_back,
        voter_with_new_disk,
        voter_moved,
    )
} | COORDINATOR_STORIES
