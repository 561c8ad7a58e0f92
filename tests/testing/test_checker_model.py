"""Histories of a correct cluster pass. With one corruption they fail, by the rule that is meant.

Under hypothesis' seeds; the model and the corruptions are in `tests/testing/model.py`.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testing.model import CORRUPTIONS, Model
from tidemark.testing.checker import broken, judge, report
from tidemark.testing.history import FaultNoted, from_line, read_history, to_line


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_histories_of_a_correct_cluster_pass_and_one_corruption_fails(seed: int) -> None:
    entries = Model(seed).run()
    verdicts = judge(entries)
    assert broken(verdicts) == [], report(entries, verdicts)
    rng = random.Random(seed)
    for corrupt, rules in CORRUPTIONS.items():
        corrupted = corrupt(entries, rng)
        if corrupted is not None:
            verdicts = judge(corrupted)
            assert rules <= set(broken(verdicts)), (
                f"{corrupt.__name__}: {report(corrupted, verdicts)}"
            )


def test_the_model_reaches_every_rule_and_every_corruption() -> None:
    examined: Counter[str] = Counter()
    applied: Counter[str] = Counter()
    for seed in range(20):
        entries = Model(seed).run()
        for verdict in judge(entries):
            examined[verdict.rule] += verdict.examined > 0
        rng = random.Random(seed)
        for corrupt in CORRUPTIONS:
            applied[corrupt.__name__] += corrupt(entries, rng) is not None
    assert min(examined.values()) >= 15, examined
    assert len(applied) == len(CORRUPTIONS) and min(applied.values()) >= 10, applied


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_history_is_the_same_when_it_is_read_again(seed: int) -> None:
    entries = [*Model(seed).run(), FaultNoted(1.5, 'a "quoted" Käfer\n')]
    lines = [to_line(entry) + "\n" for entry in entries]
    assert read_history(lines) == entries
    assert [from_line(line) for line in lines] == entries
