"""Offsets of a stream in a consumer group: the newest ones, and nothing waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidemark.client import OffsetAndMetadata
from tidemark.spark.reporting import GroupReport
from tidemark.types import TopicPartition

T0 = TopicPartition("t", 0)


class Groups:
    """Groups of a cluster whose commits wait for `answers`; the first `failures` fail."""

    def __init__(self, failures: int = 0) -> None:
        self.groups = self
        self.asked, self.answers = threading.Semaphore(0), threading.Semaphore(0)
        self.committed: list[tuple[str, dict[TopicPartition, OffsetAndMetadata]]] = []
        self.failures = failures

    @contextmanager
    def made(self, servers: str, *, security: Any = None) -> Iterator[Groups]:
        yield self

    def alter_offsets(self, group_id: str, offsets: Any) -> None:
        self.asked.release()
        assert self.answers.acquire(timeout=30)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no coordinator")
        self.committed.append((group_id, offsets))


def at(offset: int) -> tuple[str, dict[TopicPartition, OffsetAndMetadata]]:
    return "g", {T0: OffsetAndMetadata(offset)}


def test_a_slow_coordinator_gets_the_newest_offsets_and_nobody_waits_for_it() -> None:
    groups = Groups()
    report = GroupReport("h:1", "g", groups.made)
    report.report({T0: 1})
    assert groups.asked.acquire(timeout=30)
    for offset in (2, 3, 4):
        report.report({T0: offset})
    groups.answers.release(9)
    report.wait(30)
    assert groups.committed == [at(1), at(4)]
    report.report({T0: 4})
    report.wait(30)
    assert groups.committed == [at(1), at(4)], "offsets that the group has already"
    report.report({T0: 5})
    report.wait(30)
    assert groups.committed[2:] == [at(5)], "a thread that ended has a successor"


def test_a_commit_that_fails_is_left_and_the_next_one_is_made() -> None:
    groups = Groups(failures=1)
    groups.answers.release(9)
    report = GroupReport("h:1", "g", groups.made)
    report.report({T0: 1})
    report.wait(30)
    assert groups.committed == []
    report.report({T0: 2})
    report.wait(30)
    assert groups.committed == [at(2)]
