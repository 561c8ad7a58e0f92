"""Each rule is broken by a history written by hand, and the finding shows the right lines. The same
history without the fault passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.testing.story import Story, told
from tidemark.testing.checker import judge
from tidemark.testing.history import REFUSED, Outcome
from tidemark.testing.rules import RULES


def written(acks: int = -1, *, idempotent: bool = True) -> Story:
    """Two records at 0 and 1: lines 2 to 5."""
    story = Story()
    story.producer("p", acks, idempotent=idempotent)
    story.send("p", 1)
    story.acked("p", 1, 0)
    story.send("p", 2)
    story.acked("p", 2, 1)
    return story


def test_a_history_of_a_correct_cluster_passes_and_every_rule_examines_something() -> None:
    story = written()
    story.producer("one", 1, idempotent=False)
    story.consumer("c")
    story.seek("c", 0)
    story.read("c", (0, "p/1"), watermark=2)
    story.cancelled("c")
    story.fault("broker 4 is killed")
    story.send("p", 3)
    story.send("one", 1)
    story.unknown("p", 3)
    story.acked("one", 1, 2)  # its leader is lost with it
    story.calm()
    story.send("one", 2)
    story.acked("one", 2, 2)
    story.read("c", (1, "p/2"), (2, "one/2"))
    story.end_seen("c", 3)
    story.log("p/1", "p/2", "one/2")
    assert story.broken() == []
    assert [v.rule for v in judge(story.entries) if not v.examined] == []


def test_every_rule_has_a_history_that_breaks_it() -> None:
    source = " ".join(map(str, globals()))
    for rule in RULES.values():
        assert f"test_{rule.__name__}" in source


# Acknowledged records.


def test_acknowledged_record_that_is_gone() -> None:
    story = written()
    story.log("p/1", "-")
    assert story.broken() == ["acknowledged"]
    assert story.shown("acknowledged") == [(4, 5)]


def test_acknowledged_record_with_another_one_in_its_place() -> None:
    story = written()
    story.producer("q")
    story.send("q", 1)
    log = story.log("p/1", "q/1", "p/2")
    assert story.shown("acknowledged") == [(4, 5, log)]


def test_acknowledged_record_beyond_the_end() -> None:
    story = written()
    story.log("p/1")
    assert story.shown("acknowledged") == [(4, 5)]


def test_acknowledged_record_in_another_partition_than_it_was_sent_to() -> None:
    story = Story()
    story.producer("p")
    story.send("p", 1, partition=0)
    story.acked("p", 1, 0, partition=1)
    story.log("p/1", partition=1)
    assert "acknowledged" in story.broken()


def test_acknowledged_record_without_an_offset_is_somewhere() -> None:
    story = written()
    story.send("p", 3)
    story.acked("p", 3, -1)
    assert story.broken() == []
    story.log("p/1", "p/2")
    assert story.shown("acknowledged") == [(6, 7)]
    story.log("p/3", start=2)
    assert story.broken() == []


def test_acknowledged_record_that_was_deleted_is_not_missed() -> None:
    story = written()
    story.log("p/2", start=1)
    assert story.broken() == []


def test_acknowledged_by_one_is_kept_when_the_faults_are_over() -> None:
    story = Story()
    story.producer("p", 1, idempotent=False)
    story.send("p", 1)
    story.acked("p", 1, 0)
    story.calm()
    sent = story.send("p", 2)
    story.acked("p", 2, 0)
    story.log("-")
    assert story.broken() == ["acknowledged by one"]
    assert story.shown("acknowledged by one") == [(sent, sent + 1)]


def test_acknowledged_by_one_among_faults_may_be_lost() -> None:
    story = written(1, idempotent=False)
    story.log("p/1")
    assert story.broken() == []


def test_acknowledged_record_at_another_offset_than_0() -> None:
    story = Story()
    story.producer("p", idempotent=False)
    story.producer("q")
    story.send("q", 1)
    story.unknown("q", 1)
    sent = story.send("p", 1)
    story.acked("p", 1, 0)
    log = story.log("q/1", "p/1")
    assert story.shown("acknowledged") == [(sent, sent + 1, log)]


# Phantoms and duplicates.


def test_no_phantom_that_nobody_sent() -> None:
    story = written()
    read = story.read("c", (0, "p/1"), (1, "damaged, key None, value b'?'"))
    assert story.broken() == ["no phantom"]
    assert story.shown("no phantom") == [(read,)]


def test_no_phantom_that_was_refused() -> None:
    story = written()
    story.send("p", 3)
    story.refused("p", 3)
    read = story.read("c", (2, "p/3"))
    assert story.broken() == ["no phantom"]
    assert story.shown("no phantom") == [(6, 7, read)]


def test_no_phantom_before_its_send() -> None:
    story = written()
    read = story.read("c", (2, "p/3"))
    sent = story.send("p", 3)
    story.unknown("p", 3)
    assert story.shown("no phantom") == [(read, sent)]


def test_no_phantom_of_another_partition() -> None:
    story = Story()
    story.producer("p")
    story.send("p", 1, partition=1)
    story.acked("p", 1, 0, partition=1)
    story.log("p/1", partition=0)
    assert story.broken() == ["no phantom"]


def test_no_duplicate_of_an_idempotent_producer() -> None:
    story = written()
    log = story.log("p/1", "p/2", "p/1")
    assert "no duplicate" in story.broken()
    assert story.shown("no duplicate") == [(log,)]


def test_no_duplicate_is_promised_to_a_plain_producer() -> None:
    story = written(idempotent=False)
    story.log("p/1", "p/2", "p/1", "p/2")
    assert story.broken() == []


# Order.


def test_in_order_of_an_idempotent_producer() -> None:
    story = Story()
    story.producer("p")
    story.send("p", 1)
    story.send("p", 2)
    story.unknown("p", 1)
    story.unknown("p", 2)
    log = story.log("p/2", "p/1")
    assert story.broken() == ["order"]
    assert story.shown("order") == [(log,)]


def test_in_order_of_a_plain_producer_as_acknowledged() -> None:
    story = Story()
    story.producer("p", idempotent=False)
    story.send("p", 1)
    story.send("p", 2)
    second = story.acked("p", 2, 0)
    first = story.acked("p", 1, 1)
    story.log("p/2", "p/1")
    assert story.broken() == ["order"]
    assert story.shown("order") == [(second, first)]


def test_in_order_of_a_plain_producer_leaves_lost_answers_out() -> None:
    story = Story()
    story.producer("p", idempotent=False)
    story.send("p", 1)
    story.unknown("p", 1)
    story.send("p", 2)
    story.acked("p", 2, 0)
    story.log("p/2", "p/1")
    assert story.broken() == []


def test_in_order_with_acks_1_where_both_were_kept() -> None:
    story = Story()
    story.producer("p", 1, idempotent=False)
    story.send("p", 1)
    story.send("p", 2)
    story.acked("p", 2, 0)
    story.acked("p", 1, 1)
    assert story.broken() == []
    story.log("p/2", "p/1")
    assert story.broken() == ["order"]


def test_in_order_with_acks_1_leaves_copies_out() -> None:
    story = Story()
    story.producer("p", 1, idempotent=False)
    story.send("p", 1)
    story.send("p", 2)
    story.acked("p", 2, 0)
    story.acked("p", 1, 1)
    story.log("p/2", "p/1", "p/1")
    assert story.broken() == []


def test_in_order_is_no_offset_for_two_and_none_that_is_unknown() -> None:
    story = written()
    story.send("p", 3)
    story.acked("p", 3, -1)
    assert story.broken() == []
    story.send("p", 4)
    story.acked("p", 4, 1)
    assert story.broken() == ["order"]


def test_behind_committed_records_that_were_acknowledged_before() -> None:
    story = Story()
    story.producer("p")
    story.producer("q")
    story.send("p", 1)
    acked = story.acked("p", 1, 1)
    sent = story.send("q", 1)
    story.unknown("q", 1)
    log = story.log("q/1", "p/1")
    assert story.broken() == ["behind committed"]
    assert story.shown("behind committed") == [(acked, sent, log)]


def test_behind_committed_ends_and_records_that_consumers_saw() -> None:
    looks: tuple[Callable[[Story], int], ...] = (
        lambda story: story.end_seen("c", 2),
        lambda story: story.read("c", (0, "p/1"), (1, "p/2")),
        lambda story: story.read("c", (0, "p/1"), watermark=2),
    )
    for look in looks:
        story = Story()
        story.producer("p", 0, idempotent=False)
        story.send("p", 1)
        story.send("p", 2)
        story.acked("p", 1, -1)
        story.acked("p", 2, -1)
        shown = look(story)
        sent = story.send("p", 3)
        story.acked("p", 3, -1)
        log = story.log("p/1", "p/3")
        assert (shown, sent, log) in story.shown("behind committed")


# Stability.


def test_never_changes_an_offset_that_was_seen() -> None:
    story = written(1, idempotent=False)
    read = story.read("c", (0, "p/2"))
    log = story.log("p/1", "p/2")
    assert story.broken() == ["never changes"]
    assert story.shown("never changes") == [(read, log)]


def test_never_changes_into_nothing() -> None:
    story = written(1, idempotent=False)
    read = story.read("c", (0, "p/1"), (1, "p/2"))
    story.log("p/1")
    assert story.broken() == ["never changes"]
    assert story.shown("never changes") == [(read,)]


def test_never_changes_an_end_that_was_seen() -> None:
    story = written(1, idempotent=False)
    end = story.end_seen("c", 2)
    read = story.read("c", (0, "p/1"), watermark=2)
    story.log("p/1")
    assert story.broken() == ["never changes"]
    assert story.shown("never changes") == [(read,), (end,)]


def test_never_changes_what_is_deleted_from_the_start_on() -> None:
    story = written(1, idempotent=False)
    read = story.read("c", (0, "p/1"), (1, "p/2"))
    story.log("-", start=1)
    assert story.shown("never changes") == [(read,)]
    assert "p:2:k was read" in told(story, "never changes")


# Positions.


def test_positions_go_forward() -> None:
    story = written()
    story.seek("c", 0)
    first = story.read("c", (0, "p/1"), (1, "p/2"))
    again = story.read("c", (1, "p/2"))
    assert story.broken() == ["positions"]
    assert story.shown("positions") == [(first, again)]


def test_positions_go_forward_within_a_read() -> None:
    story = written()
    read = story.read("c", (1, "p/2"), (0, "p/1"))
    assert story.shown("positions") == [(read,)]
    other = written()
    behind = other.read("c", (0, "p/1"), (1, "p/2"), to=1)
    assert other.shown("positions") == [(behind,)]


def test_positions_go_forward_and_skip_nothing_that_anybody_saw() -> None:
    story = written()
    sought = story.seek("c", 0)
    read = story.read("c", (1, "p/2"))
    assert story.broken() == []  # nobody saw a record at 0
    log = story.log("p/1", "p/2")
    assert story.broken() == ["positions"]
    assert story.shown("positions") == [(sought, read, log)]


def test_positions_go_forward_and_a_cancelled_poll_moves_none() -> None:
    story = written()
    first = story.read("c", (0, "p/1"))
    story.cancelled("c")
    moved = story.read("c", to=2)
    log = story.log("p/1", "p/2")
    assert story.shown("positions") == [(first, moved, log)]


def test_positions_go_forward_over_what_is_deleted() -> None:
    story = written()
    story.read("d", (0, "p/1"))
    story.seek("c", 0)
    story.read("c", (1, "p/2"))
    assert story.broken() == ["positions"]
    assert "c went from 0 to 2 of t-0 and did not get 0" in told(story, "positions")
    story.log("p/2", start=1)
    assert story.broken() == []


def test_positions_go_anywhere_by_a_seek() -> None:
    story = written()
    story.read("c", (0, "p/1"), (1, "p/2"))
    story.seek("c", 0)
    story.read("c", (0, "p/1"))
    story.seek("c", None)
    story.read("c", (1, "p/2"))
    story.log("p/1", "p/2")
    assert story.broken() == []


# Liveness.


def test_every_delivery_ends() -> None:
    story = written()
    sent = story.send("p", 3)
    assert story.broken() == ["every delivery ends"]
    assert story.shown("every delivery ends") == [(sent,)]


def test_every_delivery_ends_in_its_time() -> None:
    story = written()
    story.entries[4] = replace(story.entries[4], at_ms=1003.0)
    assert story.broken() == []
    story.entries[4] = replace(story.entries[4], at_ms=1003.1)
    assert story.shown("every delivery ends") == [(4, 5)]


def test_every_delivery_ends_once_with_a_place_for_each_record() -> None:
    story = written()
    twice = story.acked("p", 2, 1)
    assert story.shown("every delivery ends") == [(5, twice)]
    other = written()
    other.entries[4] = replace(other.entries[4], places=())  # type: ignore[call-arg]
    assert other.shown("every delivery ends") == [(4, 5)]
    third = written()
    nobody = third.acked("q", 1, 2)
    assert third.shown("every delivery ends") == [(nobody,)]


def test_every_delivery_ends_well_after_the_faults() -> None:
    story = written()
    story.send("p", 3)
    story.unknown("p", 3)
    assert story.broken() == []
    story.calm()
    sent = story.send("p", 4)
    end = story.unknown("p", 4)
    story.log("p/1", "p/2")
    assert story.broken() == ["every delivery ends"]
    assert story.shown("every delivery ends") == [(sent, end)]
    story.entries[end - 1] = Outcome(float(end), "p/4", REFUSED, (), "MessageTooLargeError")
    assert story.broken() == []


def test_consumers_reach_the_end() -> None:
    story = written()
    made = story.consumer("c")
    story.read("c", (0, "p/1"), (1, "p/2"))
    calm = story.calm()
    story.log("p/1", "p/2")
    assert story.broken() == ["the end is reached"]  # not after the faults
    assert story.shown("the end is reached") == [(made, calm)]
    story.read("c", to=2)
    assert story.broken() == []


def test_consumers_reach_the_end_of_every_log_that_has_records() -> None:
    story = written()
    calm = story.calm()
    assert story.broken() == ["the end is reached"]
    assert story.shown("the end is reached") == [(calm,)]
    story.send("p", 1_000, partition=1_000)  # there is no such log
    story.refused("p", 1_000)
    assert story.shown("the end is reached") == [(calm,)]


def test_consumers_reach_the_end_and_not_only_a_place_before_it() -> None:
    story = written()
    story.consumer("c")
    calm = story.calm()
    read = story.read("c", (0, "p/1"))
    story.log("p/1", "p/2")
    assert story.shown("the end is reached") == [(calm, read)]


def test_consumers_reach_the_end_or_it_is_told_where_they_are() -> None:
    story = written()
    story.consumer("c")
    story.consumer("d", 1)
    calm = story.calm()
    assert story.shown("the end is reached") == [(calm,), (calm,)]  # neither log was read
    story.log("p/1", "p/2")
    assert "it was at nowhere of 2" in told(story, "the end is reached")
    story.read("c", (0, "p/1"))
    assert "it was at 1 of 2" in told(story, "the end is reached")


def test_a_history_without_its_beginning_or_its_end_is_judged() -> None:
    story = written()
    story.producer("q", 1, idempotent=False)
    story.consumer("c")
    story.send("q", 1)
    story.acked("q", 1, 2)
    story.seek("c", 0)
    story.read("c", (0, "p/1"), (1, "p/2"), (2, "q/1"), watermark=3)
    story.calm()
    story.end_seen("c", 3)
    story.log("p/1", "p/2", "q/1")
    assert story.broken() == ["the end is reached"]
    for begin in range(len(story.entries)):
        for end in range(begin, len(story.entries)):
            judge(story.entries[begin:end])


def test_nothing_unforeseen_happens_to_a_client() -> None:
    story = written()
    line = story.misbehaved("p", "close did not return")
    assert story.broken() == ["nothing unforeseen"]
    assert story.shown("nothing unforeseen") == [(line,)]
