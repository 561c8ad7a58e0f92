"""Runs that go on after another one, when a topic or a file system changed: without Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.spark.jobs.test_journal import WORDS, MemoryFiles
from tidemark.errors import ConfigError
from tidemark.spark.jobs import copying, export, reading, stats
from tidemark.spark.jobs.batches import JobBatch, Tallies, Tally
from tidemark.spark.jobs.copying import Copy
from tidemark.spark.jobs.files import FileError, HadoopFiles
from tidemark.spark.jobs.importing import Import, are_records
from tidemark.spark.jobs.journal import OF_OFFSETS, JobFencedError, Journal
from tidemark.spark.jobs.reading import Source
from tidemark.spark.jobs.running import CountMismatchError
from tidemark.spark.jobs.target import Marks, Target, check_same_target, keep_marks, kept_marks
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.planning import Known
from tidemark.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER = UUID(int=7), UUID(int=8)
BATCH = JobBatch(0, {A: OffsetRange("t", 0, 0, 10, ID, 3), B: OffsetRange("t", 1, 0, 5, ID, 3)})
ALL = {A: Tally(10, 45, 0, 9), B: Tally(5, 10, 0, 4)}
LESS = {A: Tally(4, 30, 6, 9), B: Tally(5, 10, 0, 4)}  # compaction or retention took some of A
SOURCE = Source("h:1", ("t",))


class Directory(MemoryFiles):
    """The directory of a job: files, and for an export the counts of its directories."""

    root = "/out"

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, Tallies] = {}

    def exists(self, name: str) -> bool:
        return name in self.counts

    def delete(self, name: str) -> None:
        self.counts.pop(name, None)

    def rename(self, name: str, new_name: str) -> None:
        self.counts[new_name] = self.counts.pop(name)


class Killed(BaseException):
    """The end of the driver."""


def begun(files: Directory) -> Journal[JobBatch]:
    journal: Journal[JobBatch] = Journal(files, "/out", OF_OFFSETS)
    journal.begin(WORDS)
    if journal.last is None:
        journal.plan(BATCH)
    return journal


def is_owner() -> None:
    """As the check of a journal that no other run took."""


class Topic:
    """The records that a topic has now, in place of Spark's reads and writes of an export."""

    def __init__(self, patch: pytest.MonkeyPatch, files: Directory) -> None:
        self.has: Tallies = ALL
        self.staged: list[str] = []
        patch.setattr(export, "tallies_of_topic", lambda *_: self.has)
        patch.setattr(export, "_tallies_at", lambda _, files, name: files.counts[name])
        patch.setattr(export, "known_of", lambda _: SimpleNamespace(topic_ids={A: ID, B: ID}))

        def stage(place: str) -> None:
            self.staged.append(place.removeprefix("/out/"))
            files.counts[self.staged[-1]] = self.has

        writer = SimpleNamespace(mode=lambda _: SimpleNamespace(parquet=stage))
        patch.setattr(export, "rows_of", lambda *_: SimpleNamespace(write=writer))


def written(files: Directory) -> Tallies:
    return export._write(None, SOURCE, files, begun(files), BATCH)  # type: ignore[arg-type]


def die_after_rename(files: Directory, patch: pytest.MonkeyPatch) -> None:
    def die(name: str, new_name: str) -> None:
        Directory.rename(files, name, new_name)
        raise Killed

    patch.setattr(files, "rename", die)
    with pytest.raises(Killed):
        written(files)
    patch.undo()


def test_a_published_batch_stays_when_the_topic_lost_its_records_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the last copy of them; and the topic is not even asked."""
    files = Directory()
    with monkeypatch.context() as patch:
        Topic(patch, files)
        die_after_rename(files, patch)
    topic = Topic(monkeypatch, files)
    topic.has = LESS
    assert written(files) == ALL
    assert (files.counts, topic.staged) == ({"batch=0": ALL}, [])


def test_a_part_of_a_batch_is_made_anew_unless_it_has_what_the_topic_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An object store renames file by file."""
    files = Directory()
    topic = Topic(monkeypatch, files)
    files.counts["batch=0"] = {A: ALL[A]}
    assert written(files) == ALL == files.counts["batch=0"]
    files.counts["batch=0"], topic.has = {A: ALL[A]}, LESS
    with pytest.raises(CountMismatchError, match="batch=0 is not whole, and has records that the"):
        written(files)
    assert files.counts["batch=0"] == {A: ALL[A]}


def test_each_run_stages_in_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what an earlier run still writes never comes into the batch of a later one."""
    files = Directory()
    topic = Topic(monkeypatch, files)
    for _ in range(2):
        written(files)
        del files.counts["batch=0"]
    assert len(set(topic.staged)) == 2


class Copying:
    """A mirror to a topic that counts what is written to it, in place of Spark and a cluster."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.source: Tallies = ALL
        self.target: Tallies = {}
        self.reads = 0
        self.is_decided = False
        self.dies = False
        self.files = Directory()
        patch.setattr(copying, "tallies_of_topic", self._count)
        patch.setattr(copying, "tallies_of", lambda *_: self.target)
        patch.setattr(copying, "added", lambda *_: [])
        patch.setattr(copying, "_rows", lambda *_: None)
        patch.setattr(copying, "write", self._write)
        patch.setattr(copying, "known_of", lambda _: SimpleNamespace(topic_ids={A: ID, B: ID}))
        patch.setattr(Target, "known", lambda _: None)
        patch.setattr(Target, "settled", lambda _: None)
        keep_marks(self.files, 0, Marks(ID, {0: 0, 1: 0}), is_owner)  # type: ignore[arg-type]

    def _count(self, *_: Any) -> Tallies:
        self.reads += 1
        return self.source

    def _write(self, *_: Any) -> None:
        """As the sink: the first attempt that is decided counts, and later ones are dropped."""
        if not self.is_decided:
            self.target, self.is_decided = self.source, True
        if self.dies:
            raise Killed

    def run(self) -> None:
        job = Copy("mirror", SOURCE, Target("h:2", "t"), True, 100)
        copying._copy_batch(None, job, self.files, begun(self.files), BATCH)  # type: ignore[arg-type]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files.texts["done-00000000.json"])
        return found


def test_a_copied_batch_counts_when_the_source_lost_its_records_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The killed run noted what it copied: else the job could never go on."""
    mirror = Copying(monkeypatch)
    mirror.dies = True
    with pytest.raises(Killed):
        mirror.run()
    mirror.dies, mirror.source = False, LESS
    mirror.run()
    assert (mirror.result()["records"], mirror.reads) == (15, 1)


def test_the_attempt_that_the_sink_decided_on_is_the_one_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not visible yet when the next run looks, so that it writes the batch again, with less."""
    mirror = Copying(monkeypatch)
    mirror.dies = True
    with pytest.raises(Killed):
        mirror.run()
    mirror.dies, mirror.source, mirror.target = False, LESS, {}

    def write(*_: Any) -> None:
        mirror.target = ALL

    monkeypatch.setattr(copying, "write", write)
    mirror.run()
    assert mirror.result()["records"] == 15
    assert mirror.result()["map"]["0"]["records"] == 10


def test_other_counts_than_those_of_an_attempt_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = Copying(monkeypatch)
    mirror.target, mirror.is_decided = {A: Tally(1, 0, 0, 0)}, True
    with pytest.raises(CountMismatchError, match="Did somebody else write"):
        mirror.run()
    assert "done-00000000.json" not in mirror.files.texts


def test_a_target_that_was_made_anew_between_batches_does_not_get_the_rest() -> None:
    """Nor does the topic of that name in another cluster."""
    files: Any = Directory()
    keep_marks(files, 0, Marks(ID, {0: 0}), is_owner)
    keep_marks(files, 1, Marks(ID, {0: 10}), is_owner)
    with pytest.raises(DataLossError, match="not the one that batch 1 was written to"):
        keep_marks(files, 2, Marks(OTHER, {0: 0}), is_owner)
    assert "target-00000002.json" not in files.texts
    check_same_target(files, 1, Marks(ID, {}))
    with pytest.raises(DataLossError, match="another cluster"):
        check_same_target(files, 1, Marks(OTHER, {}))


def test_the_start_of_a_job_is_not_asked_for_when_it_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention may have deleted all records behind startingTimestamp by then: an error."""
    asked: list[str] = []
    monkeypatch.setattr(reading, "Lookups", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(reading, "look_around", lambda *_: None)
    monkeypatch.setattr(reading, "offsets_of", lambda *given: asked.append(given[2].option))
    reading.look(SOURCE)
    reading.look(SOURCE, has_begun=True)
    assert asked == ["startingOffsets", "endingOffsets", "endingOffsets"]


def test_a_run_that_was_overtaken_leaves_the_marks_of_the_later_one() -> None:
    files: Any = Directory()
    slow, quick = begun(files), begun(files)
    keep_marks(files, 0, Marks(ID, {0: 5}), quick.check)
    with pytest.raises(JobFencedError):
        keep_marks(files, 0, Marks(ID, {0: 9}), slow.check)
    assert kept_marks(files, 0) == Marks(ID, {0: 5})


def test_a_topic_without_records_has_statistics_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error, and no job of Spark is needed."""
    known = Known({A: ID, B: ID}, {A: 7, B: 0}, {A: 7, B: 0}, {A: 3, B: 3})
    bounds = reading.Bounds(known, known.earliest, known.latest)
    monkeypatch.setattr(stats, "look", lambda _: bounds)
    batch = stats.plan(SOURCE)
    assert batch.size == 0
    rows, wrong = stats.stats(None, SOURCE, batch)
    assert ([row["partition"] for row in rows], wrong) == ([0, 1, None], [])
    assert {row["records"] for row in rows} == {row["offsets"] for row in rows} == {0}
    assert {row["last_offset"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("columns", "are"),
    [
        (("value",), True),
        (("key", "value", "topic", "partition", "offset", "timestamp", "batch"), True),
        (("sensor", "time", "value"), False),
        (("key",), False),
    ],
)
def test_rows_with_columns_that_a_record_has_not_are_no_records(
    columns: Sequence[str], are: bool
) -> None:
    assert are_records(dict.fromkeys(columns, "string")) is are


def test_files_of_a_batch_are_taken_by_their_names_and_the_schema_of_all() -> None:
    """Not as patterns: a[1].json would be a1.json, a second time."""
    said: dict[str, Any] = {}

    class Reader:
        def __getattr__(self, name: str) -> Any:
            def call(*given: Any, **_: Any) -> Reader:
                said[name] = given
                return self

            return call

    job = Import("/d", "json", Target("h:2", "t"), options={"basePath": "/d"})
    names = ["file:/d/a[1].json", "file:/d/{b}*?.json", "file:/d/c\\d, e.json"]
    job.part(SimpleNamespace(read=Reader()), names, "of all")
    assert said["schema"] == ("of all",)
    assert said["load"] == (
        [r"file:/d/a\[1\].json", r"file:/d/\{b\}\*\?.json", r"file:/d/c\\d, e.json"],
    )


class StorePath(str):
    def getFileSystem(self, _: Any) -> Store:
        return STORE

    def getParent(self) -> StorePath:
        return StorePath(self.rpartition("/")[0])


class Store:
    """A file system whose rename does not replace: it says so by an error, or by its answer."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.raises = True
        self.meanwhile: Callable[[], None] = lambda: None

    def exists(self, path: str) -> bool:
        return path in self.files

    def create(self, path: str, _: bool) -> Any:
        def write(content: bytearray) -> None:
            self.files[path] = bytes(content)

        return SimpleNamespace(write=write, hsync=lambda: None, close=lambda: None)

    def mkdirs(self, _: str) -> None:
        self.meanwhile()

    def rename(self, path: str, new_path: str) -> bool:
        if self.files.get(new_path) == b"directory":
            new_path = f"{new_path}/{path.rpartition('/')[2]}"
        if new_path in self.files:
            if self.raises:
                raise RuntimeError(f"FileAlreadyExistsException: {new_path}")
            return False
        self.files[new_path] = self.files.pop(path)
        return True

    def delete(self, path: str, _: bool) -> None:
        self.files.pop(path, None)


STORE = Store()


def on_store(root: str) -> HadoopFiles:
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=StorePath))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    jsc = SimpleNamespace(hadoopConfiguration=lambda: None)
    return HadoopFiles(SimpleNamespace(_jvm=jvm, _jsc=jsc), root)


def test_a_directory_without_a_name_is_not_the_root() -> None:
    with pytest.raises(ConfigError, match="is empty"):
        on_store(" ")


def test_a_batch_never_lands_within_that_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop moves a directory into one that is there, and readers would see each record twice."""
    monkeypatch.setattr(STORE, "files", {"/out/staged/x-0": b"directory"})
    monkeypatch.setattr(
        STORE, "meanwhile", lambda: STORE.files.update({"/out/batch=0": b"directory"})
    )
    with pytest.raises(FileError, match="batch=0 exists, by another run"):
        on_store("/out").rename("staged/x-0", "batch=0")
    assert STORE.files == {"/out/batch=0": b"directory"}


@pytest.mark.parametrize("raises", [False, True])
def test_a_file_is_replaced_where_a_rename_does_not_do_that(raises: bool) -> None:
    """HDFS answers false, s3a raises: the second run of a job replaces the file `owner`."""
    STORE.files, STORE.raises = {}, raises
    files = on_store("s3a://bucket/job")
    for text in ("one", "two"):
        files.write("owner", text)
        assert STORE.files == {"s3a://bucket/job/owner": text.encode()}
