"""KeyedDeadlines, and the partition of a key."""

from __future__ import annotations

import random

import pytest

from coordinator.runtime.deadlines import KeyedDeadlines
from coordinator.runtime.hashing import java_hash, partition_for


def test_deadlines_are_those_of_a_plain_dictionary() -> None:
    for seed in range(50):
        draw, deadlines = random.Random(seed), KeyedDeadlines[str]()
        model: dict[str, int] = {}
        for _ in range(200):
            key, at_ms = draw.choice("abcde"), draw.randrange(100)
            match draw.randrange(4):
                case 0 | 1:
                    deadlines.set(key, at_ms)
                    model[key] = at_ms
                case 2:
                    deadlines.clear(key)
                    model.pop(key, None)
                case 3:
                    found = deadlines.take_due(at_ms)
                    due = {k for k, v in model.items() if v == min(model.values()) and v <= at_ms}
                    assert found in due if due else found is None
                    if found is not None:
                        del model[found]
            assert deadlines.next_ms() == min(model.values(), default=None)
            assert len(deadlines) == len(model)


def test_a_deadline_that_is_always_moved_takes_no_room() -> None:
    deadlines = KeyedDeadlines[int]()
    for at_ms in range(10_000):
        deadlines.set(1, at_ms)
    assert len(deadlines._heap) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),  # the one that has no absolute value
        ("grüppe-1", 243490808),
        ("\U0001f600", 1772899),
    ],
)
def test_hashes_are_those_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert 0 <= partition_for(text, 50) < 50


def test_the_hash_without_an_absolute_value_is_of_partition_zero() -> None:
    assert partition_for("polygenelubricants", 50) == 0
