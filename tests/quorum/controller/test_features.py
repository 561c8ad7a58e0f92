"""Feature levels: registrations, settable levels, nodes that are too old."""

from __future__ import annotations

import random

import pytest

from quorum.controller.core import ControllerCore
from quorum.controller.result import ControllerResult
from quorum.image import features
from quorum.image.features import SUPPORTED, LevelRange, check_supported, first_levels
from quorum.image.image import ELR_VERSION, METADATA_VERSION
from quorum.image.records import feature_record
from quorum.services import admin_answers
from tests.quorum.controller.scenario import CLUSTER_ID, Scenario
from tidemark.errors import (
    BrokerIdNotRegisteredError,
    ConfigError,
    ErrorCode,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from tidemark.v1 import admin_pb2, controller_pb2

Request = admin_pb2.UpdateFeaturesRequest
OLD = {METADATA_VERSION: (1, 1)}


def test_a_level_is_set_and_told() -> None:
    s = Scenario()
    s.start_brokers(1)
    assert s.set_feature(ELR_VERSION, 1) == 0
    answer = admin_answers.describe_features(s.image)
    told = {f.name: (f.level, f.supported_min, f.supported_max) for f in answer.features}
    assert told[ELR_VERSION] == (1, 0, 1)
    assert told[METADATA_VERSION] == (4, 1, 4)
    assert answer.finalized_features_epoch == s.image.offset


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [
        ("new.version", 1, Request.UPGRADE),
        (ELR_VERSION, 2, Request.UPGRADE),
        (METADATA_VERSION, 5, Request.UPGRADE),
        (METADATA_VERSION, 0, Request.UNSAFE_DOWNGRADE),
        (METADATA_VERSION, 1, Request.UPGRADE),
        (ELR_VERSION, 0, Request.UPGRADE),
    ],
    ids=str,
)
def test_levels_that_can_not_be_are_refused(name: str, level: int, kind: int) -> None:
    s = Scenario()
    s.set_feature(ELR_VERSION, 1)
    assert s.set_feature(name, level, kind) == ErrorCode.INVALID_UPDATE_VERSION
    assert s.written == []


def test_all_updates_or_none() -> None:
    s = Scenario()
    request = Request()
    request.updates.add(feature=ELR_VERSION, level=1)
    request.updates.add(feature="new.version", level=1)
    answers = s.ask(request).results
    assert [a.error_code for a in answers] == [0, ErrorCode.INVALID_UPDATE_VERSION]
    assert s.written == []


def test_a_level_that_a_registered_broker_does_not_support_is_refused() -> None:
    s = Scenario(level=1)
    s.start_brokers(1)
    s.register(2, features=OLD)
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert s.set_feature(METADATA_VERSION, 2) == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 2 supports levels 1 to 1" in s.message
    assert "broker 1" not in s.message


def test_a_cluster_of_the_first_level_is_upgraded_and_then_controllers_register() -> None:
    s = Scenario(level=1)
    s.start_brokers(1)
    assert dict(s.image.features) == {METADATA_VERSION: 1}
    with pytest.raises(UnsupportedVersionError, match=r"metadata.version 2 on, 1 is in effect"):
        s.register_controller(1)
    assert s.set_feature(METADATA_VERSION, 2) == 0
    s.register_controller(1)
    assert s.image.controllers[1].feature_ranges["kraft.version"] == (0, 1)
    written = len(s.log)
    s.register_controller(1)
    assert len(s.log) == written, "the same registration is not written twice"
    s.register_controller(1, incarnation=2)
    assert len(s.log) == written + 1, "a new process is"


def test_a_level_that_a_registered_controller_does_not_support_is_refused() -> None:
    s = Scenario(voters=(1, 2))
    s.register_controller(1)
    s.register_controller(2, features={METADATA_VERSION: (1, 4)})
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller 2 supports no level" in s.message
    s.register_controller(2, incarnation=2)
    assert s.set_feature(ELR_VERSION, 1) == 0


def test_a_voter_that_never_registered_blocks_an_upgrade() -> None:
    s = Scenario(voters=(1, 2, 3))
    s.register_controller(1)
    s.register_controller(3)
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller 2 is not registered: start it, or remove it" in s.message
    s.register_controller(2)
    assert s.set_feature(ELR_VERSION, 1) == 0


def test_before_controllers_register_voters_do_not_block_the_upgrade_that_lets_them() -> None:
    s = Scenario(level=1, voters=(1, 2, 3))
    assert s.set_feature(METADATA_VERSION, 2) == 0


def test_a_controller_that_left_blocks_until_it_is_unregistered() -> None:
    s = Scenario(voters=(1,))
    s.register_controller(1)
    s.register_controller(4, features={METADATA_VERSION: (1, 4)})
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller (no voter) 4" in s.message
    with pytest.raises(InvalidRequestError, match="remove it from the voters first"):
        s.unregister(1)
    with pytest.raises(BrokerIdNotRegisteredError):
        s.unregister(7)
    s.unregister(4)
    assert sorted(s.image.controllers) == [1]
    assert s.set_feature(ELR_VERSION, 1) == 0


def test_a_downgrade_that_forgets_something_must_be_unsafe() -> None:
    s = Scenario(voters=(1,))
    s.register_controller(1)
    assert s.set_feature(METADATA_VERSION, 1, Request.SAFE_DOWNGRADE) != 0
    assert "registrations of controllers 1" in s.message
    assert s.set_feature(METADATA_VERSION, 1, Request.UNSAFE_DOWNGRADE) == 0
    assert dict(s.image.controllers) == {}
    assert dict(s.image.features) == {METADATA_VERSION: 1}
    assert s.set_feature(METADATA_VERSION, 2) == 0, "and up again"


def test_a_downgrade_that_loses_nothing_is_safe() -> None:
    s = Scenario()
    s.start_brokers(1)
    assert s.set_feature(METADATA_VERSION, 1, Request.SAFE_DOWNGRADE) == 0
    s.register(2, features=OLD)


def test_a_downgrade_below_what_a_registered_broker_supports_is_refused() -> None:
    s = Scenario()
    s.register(2, features={METADATA_VERSION: (2, 4)})
    assert s.set_feature(METADATA_VERSION, 1, Request.SAFE_DOWNGRADE) != 0
    assert "broker 2 supports levels 2 to 4" in s.message


def test_a_broker_too_old_for_the_cluster_is_not_registered() -> None:
    s = Scenario()
    with pytest.raises(UnsupportedVersionError, match="install a version"):
        s.register(1, features=OLD)
    with pytest.raises(UnsupportedVersionError):
        s.register(1, features={})
    s.set_feature(ELR_VERSION, 1)
    with pytest.raises(UnsupportedVersionError, match=r"eligible.leader.replicas.version at level"):
        s.register(1, features={METADATA_VERSION: (1, 4)})
    with pytest.raises(UnsupportedVersionError):
        s.register(1, features={METADATA_VERSION: (5, 5), ELR_VERSION: (0, 1)})


def test_a_controller_too_old_for_the_cluster_or_of_another_one_is_not_registered() -> None:
    s = Scenario()
    with pytest.raises(UnsupportedVersionError, match=r"at level 4, controller 2 supports levels"):
        s.register_controller(2, features=OLD)
    with pytest.raises(InconsistentClusterIdError):
        s.register_controller(2, cluster_id="another")
    with pytest.raises(InvalidRegistrationError, match="16 bytes"):
        s.register_controller(2, incarnation_id=b"short")
    assert dict(s.image.controllers) == {}


def test_a_node_too_old_for_its_log_says_so() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"levels 1 to 4.*install"):
        check_supported({METADATA_VERSION: 5}, SUPPORTED, "this node")
    check_supported({METADATA_VERSION: 1, ELR_VERSION: None}, SUPPORTED, "this node")


def test_formatting_takes_a_release_or_levels() -> None:
    assert first_levels(None, {}) == {METADATA_VERSION: 4, ELR_VERSION: 1}
    assert first_levels("0.1", {}) == {METADATA_VERSION: 4, ELR_VERSION: 1}
    assert first_levels("0.1-IV1", {ELR_VERSION: 0}) == {METADATA_VERSION: 2}
    assert first_levels("0.1-IV0", {}) == {METADATA_VERSION: 1}
    assert first_levels("0.1-IV0", {ELR_VERSION: 1}) == {METADATA_VERSION: 1, ELR_VERSION: 1}
    assert first_levels(None, {METADATA_VERSION: 1, ELR_VERSION: 0}) == {METADATA_VERSION: 1}
    for release, levels in (
        ("9.9", {}),
        (None, {METADATA_VERSION: 5}),
        (None, {METADATA_VERSION: 0}),
        (None, {"new.version": 1}),
        ("0.1", {METADATA_VERSION: 1}),
    ):
        with pytest.raises(ConfigError):
            first_levels(release, levels)


def test_every_level_of_metadata_version_has_the_name_of_a_release() -> None:
    lowest, highest = SUPPORTED[METADATA_VERSION]
    assert sorted(features.METADATA_RELEASES) == list(range(lowest, highest + 1))
    assert features.release_levels("0.1") == features.FIRST_LEVELS
    assert features.FIRST_LEVELS[METADATA_VERSION] == highest


def test_eligible_replicas_are_kept_in_new_clusters_and_an_existing_one_keeps_its_level() -> None:
    new = Scenario(level=None)
    assert dict(new.image.features) == features.FIRST_LEVELS
    assert new.image.elr_enabled
    old = Scenario(level=2)
    assert not old.image.elr_enabled
    core = ControllerCore(old.config, CLUSTER_ID, random.Random(1))
    assert core.activate(old.image, 2, old.now_ms).records == []


def test_a_range_holds_both_its_ends() -> None:
    assert [LevelRange(1, 2).supports(level) for level in range(4)] == [False, True, True, False]


def test_a_feature_named_twice_is_refused_each_time() -> None:
    s = Scenario()
    request = Request()
    for _ in range(2):
        request.updates.add(feature=ELR_VERSION, level=1)
    answers = s.ask(request).results
    assert [a.error_code for a in answers] == [ErrorCode.INVALID_REQUEST] * 2
    assert s.written == []


def test_an_update_that_is_only_checked_writes_nothing() -> None:
    s = Scenario()
    request = Request(validate_only=True)
    request.updates.add(feature=ELR_VERSION, level=1)
    assert s.ask(request).results[0].error_code == 0
    assert s.written == []
    request.validate_only = False
    assert s.ask(request).results[0].error_code == 0
    assert s.image.elr_enabled


def test_the_minimum_of_the_cluster_is_written_by_eligible_replicas_switched_on_alone() -> None:
    s = Scenario(level=1)
    assert s.set_feature(METADATA_VERSION, 2) == 0
    assert [r.WhichOneof("record") for r in s.written] == ["feature_level"]
    s.apply(ControllerResult.atomic([feature_record(ELR_VERSION, 1)], None))
    assert s.set_feature(ELR_VERSION, 0, Request.SAFE_DOWNGRADE) == 0
    assert [r.WhichOneof("record") for r in s.written] == ["feature_level"]
    assert s.set_feature(ELR_VERSION, 1) == 0
    assert [r.WhichOneof("record") for r in s.written] == ["feature_level", "config"]


def test_the_level_in_effect_can_be_set_whoever_stands_in_the_way_of_others() -> None:
    s = Scenario(voters=(1, 2))
    assert s.set_feature(METADATA_VERSION, 4) == 0
    assert s.written == []
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(("nodes", "told"), [(5, "5 is not"), (6, "and 1 more")])
def test_a_refusal_names_five_nodes_and_counts_the_others(nodes: int, told: str) -> None:
    s = Scenario(voters=tuple(range(1, nodes + 1)))
    s.register_controller(9)
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert told in s.message
    assert ("more" in s.message) == (nodes > 5)
    assert s.message.count("not registered") == 5


def test_a_level_that_has_records_for_controllers_forgets_none() -> None:
    s = Scenario(voters=(1,))
    s.register_controller(1, features={METADATA_VERSION: (1, 4)})
    assert s.set_feature(METADATA_VERSION, 2, Request.SAFE_DOWNGRADE) == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(SUPPORTED, METADATA_VERSION, LevelRange(1, 4))  # type: ignore[index]
        assert s.set_feature(METADATA_VERSION, 4) == 0
        assert s.set_feature(METADATA_VERSION, 2, Request.SAFE_DOWNGRADE) == 0
    assert sorted(s.image.controllers) == [1]


def test_a_controller_registers_with_a_listener_and_an_id_from_0_on() -> None:
    s = Scenario()
    s.register_controller(0)
    assert sorted(s.image.controllers) == [0]
    request = controller_pb2.RegisterControllerRequest(
        controller_id=1, cluster_id=CLUSTER_ID, incarnation_id=b"i" * 16
    )
    request.features.extend(features.ranges_to_wire())
    with pytest.raises(InvalidRegistrationError, match="no listeners"):
        s.ask(request)
    request.controller_id = -1
    with pytest.raises(InvalidRegistrationError, match="negative"):
        s.ask(request)
