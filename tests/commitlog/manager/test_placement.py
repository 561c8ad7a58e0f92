"""Placement from values: where a new log is made, and which of two logs of a partition stays."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from commitlog.disk.log_directory import LogDirectoryOfflineError
from commitlog.manager.placement import Found, current_of, emptiest, home_of_new, online
from tests.commitlog.builders import TP
from tidemark.errors import StorageError

A, B, AWAY = UUID(int=1), UUID(int=2), UUID(int=3)
TOPIC, NAMESAKE = UUID(int=100), UUID(int=101)


@dataclass(frozen=True, eq=False)
class Disk:
    """A log directory that is only its state."""

    path: str
    directory_id: UUID | None
    failure: str = ""


def home(
    *directories: Disk,
    preferred: Disk | None = None,
    assigned: UUID | None = None,
    may_hold_data: bool = False,
    homes: tuple[Disk, ...] = (),
) -> Disk:
    return home_of_new(
        TP,
        directories,
        preferred=preferred,
        assigned=assigned,
        may_hold_data=may_hold_data,
        logs_in=homes.count,
    )


# --- the directory of a new log


def test_a_log_is_made_where_the_metadata_assigns_it() -> None:
    a, b = Disk("a", A), Disk("b", B)
    assert home(a, b, assigned=B, homes=(b, b)) is b


@pytest.mark.parametrize("assigned", [None, B])
def test_no_log_is_made_anew_that_the_metadata_counts_on(assigned: UUID | None) -> None:
    """All directories are there: the log itself is missing, or one of them is a new disk."""
    a, b = Disk("a", A), Disk("b", B)
    for directories in ((b,), (a, b)):
        with pytest.raises(StorageError, match="is in no log directory of this node") as refused:
            home(*directories, assigned=assigned, may_hold_data=True, preferred=b)
        assert not isinstance(refused.value, LogDirectoryOfflineError), "the controller is told"


def test_what_an_operator_prefers_goes_before_what_is_assigned() -> None:
    a, b = Disk("a", A), Disk("b", B)
    assert home(a, b, assigned=B, preferred=a) is a
    assert home(a, b, preferred=b, homes=(b,)) is b


def test_a_preferred_directory_that_failed_is_passed_over() -> None:
    a, b = Disk("a", A, "pulled out"), Disk("b", B)
    assert home(a, b, assigned=B, preferred=a) is b


def test_without_an_assignment_the_directory_with_the_fewest_logs_is_taken() -> None:
    a, b = Disk("a", A), Disk("b", B)
    assert home(a, b, homes=(a, a, b)) is b
    assert home(a, b, homes=(a, b)) is a, "the first of log.dirs"


def test_the_fewest_logs_are_counted_among_online_directories() -> None:
    a, b, c = Disk("a", A, "pulled out"), Disk("b", B), Disk("c", AWAY)
    assert online((a, b, c)) == [b, c]
    assert emptiest((a, b, c), (b, a).count) is c
    with pytest.raises(LogDirectoryOfflineError, match="no log directory is online"):
        emptiest((a,), ().count)


@pytest.mark.parametrize("preferred", [False, True])
@pytest.mark.parametrize("may_hold_data", [False, True])
def test_no_log_is_made_anew_while_its_directory_is_offline(
    may_hold_data: bool, preferred: bool
) -> None:
    a, b = Disk("a", A, "pulled out"), Disk("b", B)
    with pytest.raises(LogDirectoryOfflineError, match="a is offline: pulled out"):
        home(a, b, assigned=A, may_hold_data=may_hold_data, preferred=b if preferred else None)


def test_an_offline_directory_of_unknown_id_may_be_the_assigned_one() -> None:
    unknown, b = Disk("a", None, "pulled out"), Disk("b", B)
    with pytest.raises(LogDirectoryOfflineError, match="may be in a directory that is offline"):
        home(unknown, b, assigned=AWAY)


def test_an_offline_directory_of_unknown_id_is_not_the_assigned_one_that_is_online() -> None:
    unknown, b = Disk("a", None, "pulled out"), Disk("b", B)
    assert home(unknown, b, assigned=B) is b


def test_an_unassigned_log_waits_for_offline_directories_only_where_it_may_hold_data() -> None:
    a, b = Disk("a", A, "pulled out"), Disk("b", B)
    assert home(a, b) is b
    with pytest.raises(LogDirectoryOfflineError, match="may be in a directory that is offline"):
        home(a, b, may_hold_data=True)


def test_a_log_of_a_directory_that_is_no_longer_here_is_made_anew_unless_it_may_hold_data() -> None:
    a, b = Disk("a", A), Disk("b", B)
    assert home(a, b, assigned=AWAY, homes=(a,)) is b
    with pytest.raises(LogDirectoryOfflineError, match="does not have any more"):
        home(a, b, assigned=AWAY, may_hold_data=True)


# --- which of two logs stays


def test_of_two_logs_the_one_of_the_topic_stays_wherever_it_is() -> None:
    a, b = Disk("a", A), Disk("b", B)
    old, new = Found(a, NAMESAKE), Found(b, TOPIC)
    assert current_of(old, new, (TOPIC, A)) is b
    assert current_of(new, old, (TOPIC, None)) is b


def test_of_two_logs_of_one_topic_the_one_in_the_known_directory_stays() -> None:
    a, b = Disk("a", A), Disk("b", B)
    assert current_of(Found(a, TOPIC), Found(b, TOPIC), (TOPIC, A)) is a
    assert current_of(Found(a, TOPIC), Found(b, TOPIC), (TOPIC, B)) is b


@pytest.mark.parametrize("known", [None, (TOPIC, None), (TOPIC, AWAY), (NAMESAKE, A)])
def test_none_of_two_logs_stays_where_the_metadata_tells_neither(
    known: tuple[UUID, UUID | None] | None,
) -> None:
    assert current_of(Found(Disk("a", A), TOPIC), Found(Disk("b", B), TOPIC), known) is None


def test_none_of_two_logs_of_an_unknown_topic_stays_because_the_other_tells_no_topic() -> None:
    """An empty directory, say: what has no topic is not what the metadata do not know."""
    a, b = Found(Disk("a", A), TOPIC), Found(Disk("b", B), None)
    assert current_of(a, b, None) is None
    assert current_of(b, a, None) is None


def test_none_of_two_logs_stays_where_no_directory_has_an_id() -> None:
    a, b = Found(Disk("a", None), TOPIC), Found(Disk("b", None), TOPIC)
    assert current_of(a, b, (TOPIC, None)) is None
