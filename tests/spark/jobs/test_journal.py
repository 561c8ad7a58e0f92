"""The journal and the batches of a job, over files in memory: every step can be the last one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from tidemark.errors import ConfigError
from tidemark.spark.jobs.batches import (
    JobBatch,
    Tally,
    check_topic_ids,
    counted,
    differences,
    from_json,
    next_batch,
    to_json,
)
from tidemark.spark.jobs.journal import OF_OFFSETS, JobDamagedError, JobFencedError, Journal
from tidemark.spark.offsets import DataLossError
from tidemark.spark.planning import Known
from tidemark.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER = UUID(int=7), UUID(int=8)
WORDS = {"job": "export", "topics": ["t"]}


class Crash(BaseException):
    """The end of a run, in the middle of a step."""


class MemoryFiles:
    """Files that outlive a run; a write may be the last thing that a run does, or not happen."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.before_write: Callable[[str], None] = lambda name: None

    def names(self) -> list[str]:
        return sorted(self.texts)

    def read(self, name: str) -> str | None:
        return self.texts.get(name)

    def write(self, name: str, text: str) -> None:
        self.before_write(name)
        self.texts[name] = text


def known(a: tuple[int, int] = (0, 10), b: tuple[int, int] = (0, 4), topic_id: UUID = ID) -> Known:
    return Known({A: topic_id, B: topic_id}, {A: a[0], B: b[0]}, {A: a[1], B: b[1]}, {A: 3, B: 3})


def following(
    last: JobBatch | None, place: Known, limit: int | None = None, **more: bool
) -> JobBatch:
    options = {"limit": limit, "fail_on_data_loss": True} | more
    found = next_batch(last, {}, place.latest, place, **options)
    assert found is not None
    return found


def spans(batch: JobBatch) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in batch.parts()]


def test_batches_split_the_limit_by_lag_and_end_at_the_ends_of_the_run() -> None:
    place = known()
    first = following(None, place, 7)
    second = following(first, place, 7)
    assert spans(first) == [(0, 0, 5), (1, 0, 2)]
    assert spans(second) == [(0, 5, 10), (1, 2, 4)]
    done = next_batch(second, {}, place.latest, place, limit=7, fail_on_data_loss=True)
    assert done is None


def test_a_first_batch_begins_at_the_starts_and_a_new_partition_at_its_first_record() -> None:
    old = Known({A: ID}, {A: 0}, {A: 10}, {A: 3})
    first = next_batch(None, {A: 6}, old.latest, old, limit=None, fail_on_data_loss=True)
    assert first is not None
    assert spans(first) == [(0, 6, 10)]
    assert spans(following(first, known((0, 12), (1, 4)))) == [(0, 10, 12), (1, 1, 4)]


@pytest.mark.parametrize(
    ("place", "rest"),
    [
        (known((12, 15)), [(0, 12, 15)]),  # retention passed over records that were not read
        (known((0, 9), (0, 6)), [(1, 4, 6)]),  # the log of 0 was truncated
    ],
)
def test_records_that_are_gone_are_data_loss_unless_tolerated(
    place: Known, rest: list[tuple[int, int, int]]
) -> None:
    first = following(None, known())
    with pytest.raises(DataLossError, match="t-0: the next record to read is 10"):
        following(first, place)
    assert spans(following(first, place, fail_on_data_loss=False)) == rest


def test_a_topic_made_anew_is_refused_even_where_losses_are_tolerated() -> None:
    first = following(None, known())
    with pytest.raises(DataLossError, match="made anew"):
        following(first, known((0, 20), topic_id=OTHER), fail_on_data_loss=False)
    check_topic_ids(first, known())
    with pytest.raises(DataLossError, match="made anew after batch 0"):
        check_topic_ids(first, known(topic_id=OTHER))


def test_a_plan_is_the_same_after_its_way_through_the_journal() -> None:
    first = following(None, known(), 3)
    assert from_json(to_json(first)) == first
    with pytest.raises(ConfigError, match="no plan"):
        from_json({"number": 1, "topics": {"t": {"id": "x", "partitions": {"0": {}}}}})


def test_counts_differ_by_partition_number_and_sum() -> None:
    one, other = Tally(3, 6, 1, 3), Tally(3, 7, 1, 4)
    assert differences({A: one}, {A: one}) == []
    assert differences({A: one}, {A: other}) == [
        "t-0: read 3 records (1 to 3, sum 6), written 3 records (1 to 4, sum 7)"
    ]
    assert differences({A: one}, {}) == ["t-0: read 3 records (1 to 3, sum 6), written nothing"]


def run(files: MemoryFiles, sink: dict[int, list[tuple[int, int, int]]]) -> Journal:
    """A job that copies batches of up to five offsets to `sink`, by their numbers."""
    journal = Journal(files, "/out", OF_OFFSETS)
    journal.begin(WORDS)
    place = known()
    while True:
        if journal.is_last_done:
            batch = next_batch(
                *(journal.last, {}, place.latest, place), limit=5, fail_on_data_loss=True
            )
            if batch is None:
                return journal
            journal.plan(batch)
        assert journal.last is not None
        files.before_write("work")
        sink[journal.last.number] = spans(journal.last)
        journal.finish(
            *counted({e.topic_partition: Tally(e.size, 0, 0, 0) for e in journal.last.parts()})
        )


def test_a_run_killed_at_any_step_leaves_a_journal_from_which_the_next_does_the_same() -> None:
    whole: dict[int, list[tuple[int, int, int]]] = {}
    journal = run(MemoryFiles(), whole)
    assert (journal.records, len(whole)) == (14, 3)
    crashes = 0
    for step in itertools.count():
        files, left = MemoryFiles(), iter(range(step))
        sink: dict[int, list[tuple[int, int, int]]] = {}

        def die(name: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Crash(name)

        files.before_write = die
        try:
            run(files, sink)
        except Crash:
            crashes += 1
        else:
            break
        files.before_write = lambda name: None
        again = run(files, sink)
        assert (again.records, sink) == (14, whole), step
        assert sum(result["records"] for result in again.results()) == 14
    assert crashes == 2 + 3 * len(whole)  # owner, job.json; plan, work, done of each batch


def test_a_later_run_fences_an_earlier_one() -> None:
    files = MemoryFiles()
    zombie, batch = Journal(files, "/out", OF_OFFSETS), following(None, known())
    zombie.begin(WORDS)
    zombie.plan(batch)
    later = Journal(files, "/out", OF_OFFSETS)
    later.begin(WORDS)
    assert (later.last, later.is_last_done, later.job_id) == (batch, False, zombie.job_id)
    with pytest.raises(JobFencedError, match="another run took over /out"):
        zombie.finish(0)
    later.finish(0)
    with pytest.raises(JobFencedError):
        zombie.check()


def test_the_journal_of_another_job_is_refused_and_says_what_differs() -> None:
    files = MemoryFiles()
    assert not Journal(files, "/out", OF_OFFSETS).load(WORDS)
    Journal(files, "/out", OF_OFFSETS).begin(WORDS)
    with pytest.raises(ConfigError, match=r"topics was \['t'\] and is \['u'\]; give another"):
        Journal(files, "/out", OF_OFFSETS).load(WORDS | {"topics": ["u"]})


@pytest.mark.parametrize("gone", ["job.json", "plan-00000001.json", "done-00000001.json"])
def test_a_journal_that_lost_a_file_is_not_taken_for_a_new_one(gone: str) -> None:
    files = MemoryFiles()
    run(files, {})
    del files.texts[gone]
    with pytest.raises(JobDamagedError, match="/out"):
        Journal(files, "/out", OF_OFFSETS).begin(WORDS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan-00000002.json", "{"),
        ("plan-00000002.json", "{}"),
        ("done-00000002.json", '{"records": 4}'),
        ("job.json", '{"job": "export", "topics": ["t"]}'),
    ],
)
def test_a_file_that_can_not_be_read_is_named(name: str, text: str) -> None:
    files = MemoryFiles()
    run(files, {})
    files.texts[name] = text
    with pytest.raises(JobDamagedError, match=f"/out/{name}"):
        Journal(files, "/out", OF_OFFSETS).load(WORDS)


def test_a_plan_under_the_name_of_another_is_damage() -> None:
    files = MemoryFiles()
    run(files, {})
    files.texts["plan-00000002.json"] = files.texts["plan-00000001.json"]
    with pytest.raises(JobDamagedError, match="plan 2 is that of batch 1"):
        Journal(files, "/out", OF_OFFSETS).load(WORDS)


def test_a_run_that_is_refused_stops_no_other_one() -> None:
    files = MemoryFiles()
    right = Journal(files, "/out", OF_OFFSETS)
    right.begin(WORDS)
    before = dict(files.texts)
    with pytest.raises(ConfigError, match="is of another job"):
        Journal(files, "/out", OF_OFFSETS).begin(WORDS | {"topics": ["u"]})
    assert files.texts == before
    right.plan(following(None, known()))


def test_of_two_runs_that_begin_at_once_only_one_makes_the_job() -> None:
    class Overtaken(MemoryFiles):
        def read(self, name: str) -> str | None:
            if name == "job.json" and self.texts.get("owner") == slow.run and turn:
                turn.pop().begin(WORDS)
                return None
            return super().read(name)

    files = Overtaken()
    slow, quick = (Journal(files, "/out", OF_OFFSETS) for _ in range(2))
    turn = [quick]
    with pytest.raises(JobFencedError):
        slow.begin(WORDS)
    again = Journal(files, "/out", OF_OFFSETS)
    assert again.load(WORDS)
    assert again.job_id == quick.job_id


def test_counts_that_were_noted_outlive_the_run_and_belong_to_their_batch() -> None:
    files, journal = MemoryFiles(), Journal(MemoryFiles(), "/out", OF_OFFSETS)
    for counts in ({A: Tally(3, 6, 1, 3)}, {A: Tally(2, None, 1, 3), B: Tally(1, 9, 9, 9)}):
        journal = Journal(files, "/out", OF_OFFSETS)
        journal.begin(WORDS)
        if journal.last is None:
            journal.plan(following(None, known(), 3))
        journal.note(counts)
    assert journal.noted() == [
        {A: Tally(3, 6, 1, 3)},
        {A: Tally(2, None, 1, 3), B: Tally(1, 9, 9, 9)},
    ]
    Journal(files, "/out", OF_OFFSETS).begin(WORDS)
    with pytest.raises(JobFencedError):
        journal.note({})
    for text in ("[]", "{}", '{"attempts": [[1]]}', '{"attempts": [[["t", 0, 1, 2]]]}'):
        files.texts["counts-00000000.json"] = text
        with pytest.raises(JobDamagedError, match=r"/out/counts-00000000\.json"):
            journal.noted()


def test_a_plan_ends_with_the_log_though_the_options_name_a_later_end() -> None:
    """Else the batch after it would begin behind records that come later."""
    place = known()
    ends = {A: 100, B: 4}
    with pytest.raises(DataLossError, match="t-0: asked up to 100, but the log ends at 10"):
        next_batch(None, {}, ends, place, limit=None, fail_on_data_loss=True)
    found = next_batch(None, {}, ends, place, limit=None, fail_on_data_loss=False)
    assert found is not None
    assert spans(found) == [(0, 0, 10), (1, 0, 4)]
