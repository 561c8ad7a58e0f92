"""Directories of partitions are counted as they change, in whatever way that is."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

from commitlog.disk.homes import Homes
from tidemark.types import TopicPartition


def test_counts_are_those_of_the_dictionary_after_any_change() -> None:
    rng, homes = Random(1), Homes()
    directories: list[Any] = [object(), object(), object()]
    for _ in range(2_000):
        key, change = TopicPartition("t", rng.randrange(20)), rng.randrange(4)
        if change < 2:
            homes[key] = rng.choice(directories)
        elif change == 2:
            homes.pop(key, None)
        elif key in homes:
            del homes[key]
        for directory in directories:
            assert homes.count(directory) == list(homes.values()).count(directory)
        assert homes.count(object()) == 0  # type: ignore[arg-type]


def test_threads_that_add_at_once_lose_no_count() -> None:
    homes, directory = Homes(), object()

    def add(topic: str) -> None:
        for number in range(2_000):
            homes[TopicPartition(topic, number)] = directory  # type: ignore[assignment]

    threads = [threading.Thread(target=add, args=(f"t{each}",)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert homes.count(directory) == len(homes) == 8_000  # type: ignore[arg-type]
