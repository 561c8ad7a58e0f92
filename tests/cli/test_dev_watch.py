"""Nodes that end while `tidemark dev` runs, on a clock of the test."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.cli.dev_watch import Watch


@dataclass
class FakeNode:
    node_id: int
    role: str = "broker"
    exit_status: int | None = None
    said: str = ""

    def output_tail(self) -> str:
        return self.said


@dataclass
class World:
    now_s: float = 0.0
    nodes: list[FakeNode] = field(default_factory=lambda: [FakeNode(1, "controller"), FakeNode(2)])
    told: list[str] = field(default_factory=list)

    def restart(self, node_id: int) -> None:
        self.nodes[node_id - 1].exit_status = None

    def watch(self, *, restart: bool = True) -> Watch:
        again = self.restart if restart else None
        return Watch(self.nodes, self.told.append, again, lambda: self.now_s)


def test_a_node_that_ended_is_told_with_its_output_and_starts_again() -> None:
    world = World()
    watch = world.watch()
    watch.look()
    assert not world.told
    world.nodes[1].exit_status, world.nodes[1].said = -9, "one\ntwo"
    watch.look()
    watch.look()
    assert world.told == [
        "broker 2 ended by signal 9; its output ends with:\n  one\n  two",
        "broker 2 starts again",
    ]


def test_a_node_that_ends_again_and_again_stays_down_and_is_told_once() -> None:
    world = World()
    watch = world.watch()
    for _ in range(6):
        world.nodes[0].exit_status = 1
        watch.look()
        world.now_s += 1
    assert world.told.count("controller 1 starts again") == 3
    assert world.told[6:] == [
        "controller 1 ended with exit status 1",
        "controller 1 stays down after 3 restarts within a minute",
    ]


def test_restarts_of_a_minute_ago_do_not_count() -> None:
    world = World()
    watch = world.watch()
    for _ in range(9):
        world.nodes[0].exit_status = 1
        watch.look()
        world.now_s += 20
    assert world.told.count("controller 1 starts again") == 9


def test_without_restarts_a_node_stays_down() -> None:
    world = World()
    watch = world.watch(restart=False)
    world.nodes[1].exit_status = -15
    watch.look()
    watch.look()
    assert world.told == ["broker 2 ended by signal 15", "broker 2 stays down"]
