"""The upgrade that turns static voters into voters of the log (kraft.version 1), on one leader."""

from __future__ import annotations

import pytest

from quorum.raft import messages as m
from quorum.raft.roles import Leader
from quorum.raft.voters import VoterSet
from tests.quorum.raft.test_voter_change_rules import ENDPOINTS, KEYS, ScriptedLeader, VotersLog
from tidemark.errors import ErrorCode


class StaticLeader(ScriptedLeader):
    """A leader of static voters 1, 2 and 3, none of which has told its directory id."""

    def __init__(self) -> None:
        super().__init__(1, 2, 3)

    def _carry_out(self, effects):  # type: ignore[no-untyped-def]
        if effects.append_voters is not None:
            self.log.kraft_version = 1
        super()._carry_out(effects)


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> StaticLeader:
    def begin(self: VotersLog, *nodes: int) -> None:
        super(VotersLog, self).__init__([(4, 0)], 2)
        self.sets = [(0, VoterSet.static({n: ENDPOINTS[n] for n in nodes}))]
        self.kraft_version = 0

    monkeypatch.setattr(VotersLog, "__init__", begin)
    return StaticLeader()


def upgrade(version: int = 1, **more: bool) -> m.UpgradeVersionRequest:
    return m.UpgradeVersionRequest("c", version, **more)


def test_static_voters_become_voters_of_the_log_with_the_directories_they_fetched_with(
    leader: StaticLeader,
) -> None:
    leader.commit(2, 3)
    assert leader.change(upgrade()) is None
    keys = [leader.replica.voters.key(node) for node in (1, 2, 3)]
    assert keys == [KEYS[1], KEYS[2], KEYS[3]]
    leader.commit(2, 3)
    assert leader.outcome() == (ErrorCode.NONE, "")
    assert leader.change(upgrade()) == (ErrorCode.NONE, "nothing to change")


def test_no_upgrade_begins_before_each_other_voter_has_fetched(leader: StaticLeader) -> None:
    leader.commit(2)
    refusal = leader.change(upgrade())
    assert refusal is not None
    assert refusal[0] == ErrorCode.INVALID_UPDATE_VERSION
    assert "voters 3 have not fetched" in refusal[1]
    assert len(leader.log.sets) == 1


def test_an_upgrade_that_is_only_checked_changes_nothing(leader: StaticLeader) -> None:
    leader.commit(2)
    checked = leader.change(upgrade(validate_only=True))
    assert checked is not None
    assert checked[0] == ErrorCode.INVALID_UPDATE_VERSION
    leader.fetch(3)
    assert leader.change(upgrade(validate_only=True)) == (ErrorCode.NONE, "it could begin")
    assert isinstance(leader.replica.role, Leader)
    assert leader.replica.role.change is None
    assert len(leader.log.sets) == 1


@pytest.mark.parametrize("version", [-1, 2])
def test_there_is_no_other_version(leader: StaticLeader, version: int) -> None:
    leader.commit(2, 3)
    refusal = leader.change(upgrade(version))
    assert refusal is not None
    assert refusal[0] == ErrorCode.INVALID_UPDATE_VERSION
    assert f"not from 0 to {version}" in refusal[1]
