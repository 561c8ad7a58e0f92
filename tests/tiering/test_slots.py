"""Shares of keys in slots: who takes one, and whose turn is next."""

from __future__ import annotations

import random

from tiering.slots import FairSlots


def test_a_key_takes_half_of_what_is_free_and_another_finds_a_slot() -> None:
    slots: FairSlots[str, int] = FairSlots(64)
    held = [sum(slots.take(key) for _ in range(100)) for key in "abcdefgh"]
    assert held == [32, 16, 8, 4, 2, 1, 1, 0]


def test_one_slot_is_enough_for_each_key_in_its_turn() -> None:
    slots: FairSlots[str, int] = FairSlots(1)
    assert slots.take("a") and not slots.take("b")
    for number, key in enumerate("aab"):
        slots.wait(key, number)
    turns, key = [], "a"
    for _ in range(3):
        slots.release(key)
        found = slots.next()
        assert found is not None and slots.next() is None
        turns.append(found)
        key = found[0]
    assert turns == [("a", 0), ("b", 2), ("a", 1)]


def test_no_history_leaves_a_free_slot_while_a_key_without_one_waits() -> None:
    rng = random.Random(1)
    slots: FairSlots[int, object] = FairSlots(7)
    held: list[int] = []
    waiting = 0
    for _ in range(5_000):
        key = rng.randrange(5)
        if held and rng.random() < 0.5:
            slots.release(held.pop(rng.randrange(len(held))))
        elif slots.take(key):
            held.append(key)
        else:
            slots.wait(key, object())
            waiting += 1
        while (found := slots.next()) is not None:
            held.append(found[0])
            waiting -= 1
        assert len(held) <= 7
        assert slots.waiting == waiting
        if len(held) < 7:
            assert not any(slots.waiting_of(other) for other in range(5) if other not in held)
    while held:
        slots.release(held.pop())
        while (found := slots.next()) is not None:
            held.append(found[0])
    assert slots.waiting == 0
