"""Checks whether some order of the operations on one object explains their history. Each operation
takes effect between its call and its answer (Wing & Gong 1993, with Lowe's memory of visited
states).

Small on purpose: histories are short, and each object is checked alone (locality). An operation
without an answer may take effect at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True)
class Operation:
    """An operation with its outcome; None if it got no answer (then `returned` is FOREVER)."""

    name: str
    outcome: str | None
    called: float
    returned: float = FOREVER


Model = Callable[[Hashable, Operation], list[Hashable]]
"""Returns the states an operation may lead to; empty if its outcome is impossible."""


def explain(history: Sequence[Operation], start: Hashable, model: Model) -> list[Operation] | None:
    """Returns an order that explains the history; None if there is none."""
    operations = sorted(history, key=lambda op: op.called)
    answered = sum(1 << i for i, op in enumerate(operations) if op.outcome is not None)
    seen: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Hashable, tuple[int, ...]]] = [(0, start, ())]
    while stack:
        done, state, order = stack.pop()
        if done & answered == answered:
            return [operations[i] for i in order]
        if (done, state) in seen:
            continue
        seen.add((done, state))
        waiting = [i for i in range(len(operations)) if not done >> i & 1]
        first_return = min(operations[i].returned for i in waiting)
        for i in reversed(waiting):
            if operations[i].called <= first_return:
                for after in model(state, operations[i]):
                    stack.append((done | 1 << i, after, (*order, i)))
    return None


def set_if(state: Hashable, operation: Operation) -> list[Hashable]:
    """Models a topic as a compare-and-set register: `create` succeeds only if it is absent,
    `delete` only if it is present. The outcome says whether it did.
    """
    absent = state == "absent"
    outcome = operation.outcome
    if outcome == "read absent":
        return [state] if absent else []
    if outcome == "read present":
        return [] if absent else [state]
    applies, after = (absent, "present") if operation.name == "create" else (not absent, "absent")
    if outcome is None:
        return [after] if applies else [state]
    return ([after] if applies else []) if outcome == "done" else ([] if applies else [state])
