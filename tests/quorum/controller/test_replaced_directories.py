"""Log directories that a broker has no more when it registers again, and ids that it may not have.

A replica that the partition counts on is noted in the directory that is gone, so that an empty log
is never elected. It leads again when the directory is back.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.image.image import ELR_VERSION
from quorum.image.types import LOST_DIRECTORY
from tests.quorum.controller.scenario import Scenario
from tests.quorum.controller.test_directories import assign
from tests.quorum.controller.test_elect_leaders import Request, elect
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    ErrorCode,
    InvalidRegistrationError,
)

OLD, NEW, SECOND, OTHER = (UUID(int=n, version=4) for n in (1, 2, 3, 4))
SESSION_MS = 9_000


def cluster(*, elr: bool = False, log_dirs: tuple[UUID, ...] = (OLD,)) -> Scenario:
    """Broker 1 leads `t`, and 2 follows."""
    s = Scenario()
    if elr:
        assert s.set_feature(ELR_VERSION, 1) == 0, s.message
    s.register(1, log_dirs=log_dirs)
    s.heartbeat(1)
    s.register(2, log_dirs=(OTHER,))
    s.heartbeat(2)
    s.create("t", (1, 2), min_insync_replicas="1")
    return s


def only_broker_1_has_the_records(s: Scenario) -> None:
    """Broker 2 is gone first, then broker 1."""
    s.keep_alive(2 * SESSION_MS, 1)
    assert s.partition("t").isr == (1,)
    s.advance(2 * SESSION_MS)
    assert s.partition("t").leader is None


def come_back(s: Scenario, *log_dirs: UUID, incarnation: int = 2, clean: bool = False) -> None:
    """Broker 1 registers as another process, and is unfenced."""
    previous_epoch = s.epochs[1] if clean else -1
    s.register(1, incarnation=incarnation, log_dirs=log_dirs, previous_epoch=previous_epoch)
    assert not s.heartbeat(1).is_fenced


@pytest.mark.parametrize("elr", [False, True])
def test_a_replaced_single_directory_is_not_elected_and_leads_when_it_is_back(elr: bool) -> None:
    s = cluster(elr=elr)
    only_broker_1_has_the_records(s)
    come_back(s, NEW)
    epoch = s.partition("t").partition_epoch
    s.keep_alive(600_000, 1)
    p = s.partition("t")
    assert (p.leader, p.directory_of(1)) == (None, OLD)
    assert p.partition_epoch == epoch, "a pass over leaderless partitions changes nothing"
    assert p.isr == (() if elr else (1,))
    s.advance(2 * SESSION_MS)
    come_back(s, OLD, incarnation=3)
    assert s.partition("t").leader == 1


@pytest.mark.parametrize("elr", [False, True])
def test_a_restart_with_the_same_directory_notes_nothing(elr: bool) -> None:
    s = cluster(elr=elr)
    only_broker_1_has_the_records(s)
    come_back(s, OLD)
    p = s.partition("t")
    assert (p.leader, p.directories) == (1, ())


@pytest.mark.parametrize("elr", [False, True])
def test_a_replica_that_others_replace_needs_no_note(elr: bool) -> None:
    s = cluster(elr=elr)
    s.keep_alive(2 * SESSION_MS, 2)
    come_back(s, NEW)
    p = s.partition("t")
    assert (p.leader, p.isr, p.elr, p.directories) == (2, (2,), (), ())


def test_a_replica_that_is_still_in_an_isr_with_others_needs_no_note() -> None:
    s = cluster()
    s.now_ms += SESSION_MS  # no pass has fenced it yet
    come_back(s, NEW)
    p = s.partition("t")
    assert (p.leader, p.isr, p.directories) == (2, (2,), ())


def test_an_empty_last_known_leader_is_not_elected() -> None:
    """First it stops uncleanly, so that it is not eligible any more; then its disk is replaced."""
    s = cluster(elr=True)
    only_broker_1_has_the_records(s)
    s.register(1, incarnation=2, log_dirs=(OLD,))
    p = s.partition("t")
    assert (p.isr, p.elr, p.last_known_elr) == ((), (), (1,))
    s.advance(2 * SESSION_MS)
    come_back(s, NEW, incarnation=3)
    p = s.partition("t")
    assert (p.leader, p.last_known_elr, p.directory_of(1)) == (None, (1,), OLD)


def test_after_a_clean_stop_replicas_in_directories_that_are_there_stay_eligible() -> None:
    s = cluster(elr=True, log_dirs=(OLD, SECOND))
    for name, directory in (("a", OLD), ("b", SECOND)):
        s.create(name, (1, 2), min_insync_replicas="2")
        assert assign(s, directory, name) == 0
    s.keep_alive(2 * SESSION_MS, 2)
    come_back(s, SECOND, clean=True)
    assert (s.partition("a").isr, s.partition("a").elr) == ((2,), ())
    assert (s.partition("b").isr, s.partition("b").elr) == ((2,), (1,))


def test_an_eligible_replica_whose_only_directory_is_gone_is_eligible_no_more() -> None:
    """Broker 2 leads, below min.insync.replicas; broker 1 stopped cleanly, and comes back empty."""
    s = cluster(elr=True)
    s.create("u", (1, 2), min_insync_replicas="2")
    s.keep_alive(2 * SESSION_MS, 2)
    assert (s.partition("u").isr, s.partition("u").elr) == ((2,), (1,))
    come_back(s, NEW, clean=True)
    assert (s.partition("u").leader, s.partition("u").elr) == (2, ())
    s.keep_alive(2 * SESSION_MS, 1)  # broker 2 stops
    assert (s.partition("u").leader, s.partition("u").elr) == (None, (2,))


def test_one_of_several_directories_takes_only_its_replicas_along() -> None:
    s = cluster(log_dirs=(OLD, SECOND))
    for name, directory in (("a", OLD), ("b", SECOND)):
        s.create(name, (1,))
        assert assign(s, directory, name) == 0
    s.create("unknown", (1,))
    only_broker_1_has_the_records(s)
    come_back(s, NEW, SECOND)
    assert (s.partition("a").leader, s.partition("a").directory_of(1)) == (None, OLD)
    assert (s.partition("b").leader, s.partition("b").directory_of(1)) == (1, SECOND)
    unknown = s.partition("unknown")
    assert (unknown.leader, unknown.directory_of(1)) == (None, LOST_DIRECTORY)
    assert assign(s, SECOND, "unknown") == 0
    assert s.partition("unknown").leader == 1, "its log was in the other one"


def test_a_broker_that_was_unregistered_may_come_back_with_another_disk() -> None:
    s = cluster()
    only_broker_1_has_the_records(s)
    s.unregister(1)
    come_back(s, NEW)
    assert s.partition("t").leader is None
    s.advance(2 * SESSION_MS)
    come_back(s, OLD, incarnation=3)
    assert s.partition("t").leader == 1


def test_a_registration_without_directories_tells_nothing() -> None:
    """One of a version that did not name them."""
    s = cluster(log_dirs=())
    only_broker_1_has_the_records(s)
    come_back(s, NEW)
    assert (s.partition("t").leader, s.partition("t").directories) == (1, ())


@pytest.mark.parametrize("number", [0, 1, 2, 99])
def test_a_reserved_directory_id_is_refused(number: int) -> None:
    s = Scenario()
    with pytest.raises(InvalidRegistrationError, match="is reserved"):
        s.register(1, log_dirs=(NEW, UUID(int=number)))
    s.register(1, log_dirs=(NEW, UUID(int=100)))


def test_a_directory_of_another_broker_is_refused_until_that_is_unregistered() -> None:
    s = cluster()
    with pytest.raises(InvalidRegistrationError, match="broker 2 is registered with"):
        s.register(3, log_dirs=(NEW, OTHER))
    assert 3 not in s.image.brokers
    s.register(3, log_dirs=(NEW,))
    s.advance(2 * SESSION_MS)
    with pytest.raises(InvalidRegistrationError, match="unregister it"):
        s.register(3, incarnation=2, log_dirs=(OTHER,))
    s.unregister(2)
    s.register(3, incarnation=2, log_dirs=(OTHER,))


def test_a_broker_that_may_stop_comes_back_without_waiting_for_its_session() -> None:
    s = cluster()
    with pytest.raises(DuplicateBrokerRegistrationError):
        s.register(1, incarnation=2, log_dirs=(OLD,))
    assert not s.heartbeat(1, want_shut_down=True).should_shut_down
    with pytest.raises(DuplicateBrokerRegistrationError):
        s.register(1, incarnation=2, log_dirs=(OLD,))
    s.heartbeat(2)
    assert s.heartbeat(1, want_shut_down=True).should_shut_down
    s.register(1, incarnation=2, log_dirs=(OLD,), previous_epoch=s.epochs[1])
    assert not s.heartbeat(1).is_fenced


@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("log_dirs", [(OLD,), (OLD, SECOND)])
def test_a_replica_without_its_directory_leads_only_if_its_partition_is_named(
    elr: bool, log_dirs: tuple[UUID, ...]
) -> None:
    """All others are away. The leader is RECOVERING, so a tiered log comes back from the tier."""
    s = cluster(elr=elr, log_dirs=log_dirs)
    only_broker_1_has_the_records(s)
    come_back(s, NEW)
    assert elect(s, Request.UNCLEAN, everything=True) == {
        "t": ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }
    assert s.partition("t").leader is None
    assert elect(s, Request.PREFERRED, "t") == {"t": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    epoch = s.partition("t").leader_epoch
    assert elect(s, Request.UNCLEAN, "t") == {"t": 0}
    p = s.partition("t")
    assert (p.leader, p.isr, p.elr, p.last_known_elr) == (1, (1,), (), ())
    assert (p.leader_epoch, p.leader_recovery_state) == (epoch + 1, 1)
    assert p.directory_of(1) is None


@pytest.mark.parametrize("elr", [False, True])
def test_a_replica_without_its_directory_leads_only_if_no_other_one_can(elr: bool) -> None:
    s = cluster(elr=elr)
    only_broker_1_has_the_records(s)
    come_back(s, NEW)
    s.heartbeat(2)
    assert elect(s, Request.UNCLEAN, "t") == {"t": 0}
    assert (s.partition("t").leader, s.partition("t").directory_of(1)) == (2, OLD)
