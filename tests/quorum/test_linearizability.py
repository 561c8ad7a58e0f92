"""The checker itself: it accepts every possible history, and no other."""

from __future__ import annotations

import random

from tests.quorum.linearizability import Operation, explain, set_if


def op(name, outcome, called, returned):
    return Operation(name, outcome, called, returned)


def ok(*history):
    return explain(history, "absent", set_if) is not None


def test_one_after_the_other():
    assert ok(op("create", "done", 0, 1), op("delete", "done", 2, 3), op("create", "done", 4, 5))
    assert not ok(op("create", "done", 0, 1), op("create", "done", 2, 3))
    assert not ok(op("delete", "done", 0, 1))


def test_at_the_same_time_either_order_will_do():
    assert ok(op("create", "done", 0, 5), op("create", "refused", 1, 2))
    assert not ok(op("create", "done", 3, 5), op("create", "refused", 1, 2))


def test_what_was_not_answered_may_have_happened_late_or_never():
    lost = Operation("create", None, 0)
    assert ok(lost, op("create", "done", 1, 2))
    assert ok(
        lost,
        op("create", "done", 1, 2),
        op("delete", "done", 3, 4),
        op("read", "read present", 5, 6),
    )
    assert ok(lost, op("create", "refused", 1, 2))
    assert not ok(
        op("create", "refused", 1, 2), op("create", "done", 3, 4), Operation("create", None, 5)
    )


def test_a_lost_acknowledged_change_is_found():
    assert not ok(op("create", "done", 0, 1), op("read", "read absent", 2, 3))


def test_histories_of_a_real_register_are_explained_and_a_wrong_answer_is_not():
    rng = random.Random(7)
    for _ in range(60):
        history, state, now = [], "absent", 0.0
        for _ in range(40):
            now += rng.random()
            name = rng.choice(["create", "delete"])
            applies = (state == "absent") == (name == "create")
            if applies:
                state = "present" if name == "create" else "absent"
            spread = rng.random() * 3
            outcome = "done" if applies else "refused"
            if rng.random() < 0.1:
                history.append(Operation(name, None, now - spread))
            else:
                history.append(op(name, outcome, now - spread, now + rng.random() * 3))
        assert explain(history, "absent", set_if) is not None
        wrong = "read absent" if state == "present" else "read present"
        if not any(o.outcome is None for o in history):
            late = op("read", wrong, now + 10, now + 11)
            assert explain([*history, late], "absent", set_if) is None
