"""The timeline of the quorum: changes alone, a bounded number, on a clock that may go back."""

from __future__ import annotations

from tidemark.console.timeline import CHANGES_MAX, QuorumSight, QuorumTimeline


def test_looks_that_see_the_same_are_one_change() -> None:
    timeline = QuorumTimeline()
    assert timeline.view() == {"forgotten": 0, "changes": []}
    timeline.see(1_000, QuorumSight(None, 1, None, (1, 2, 3)))
    timeline.see(2_000, QuorumSight(2, 1, 10, (1, 2, 3)))
    timeline.see(3_000, QuorumSight(2, 1, 20, (1, 2, 3)))
    timeline.see(4_000, QuorumSight(2, 1, 30, (1, 2)))
    timeline.see(5_000, QuorumSight(3, 2, 40, (1, 2)))
    timeline.see(5_500, QuorumSight(3, 2, 50, (1, 2)))
    changes = timeline.view()["changes"]
    assert [(c["began_ms"], c["ended_ms"], c["leader"], c["epoch"]) for c in changes] == [
        (1_000, 2_000, None, 1),
        (2_000, 4_000, 2, 1),
        (4_000, 5_000, 2, 1),
        (5_000, 5_500, 3, 2),
    ]
    assert [change["high_watermark"] for change in changes] == [None, 10, 30, 40]
    assert changes[2]["voters"] == [1, 2]


def test_a_clock_that_is_set_back_makes_no_negative_time() -> None:
    timeline = QuorumTimeline()
    timeline.see(5_000, QuorumSight(1, 1, 0, (1,)))
    timeline.see(1_000, QuorumSight(2, 2, 0, (1,)))
    assert all(c["ended_ms"] >= c["began_ms"] >= 5_000 for c in timeline.view()["changes"])


def test_old_changes_are_forgotten_and_counted() -> None:
    timeline = QuorumTimeline()
    for epoch in range(CHANGES_MAX + 3):
        timeline.see(epoch, QuorumSight(1, epoch, 0, (1,)))
    view = timeline.view()
    assert len(view["changes"]) == CHANGES_MAX and view["forgotten"] == 3
    assert view["changes"][0]["epoch"] == 3
