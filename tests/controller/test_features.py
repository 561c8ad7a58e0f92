"""Feature levels: who may join, what may be set, what a node that is too old does."""

from __future__ import annotations

import pytest

from quorum import admin_answers
from quorum.features import SUPPORTED, check_supported
from quorum.image.image import ELR_VERSION, METADATA_VERSION
from tests.controller.scenario import Scenario
from tidemark.errors import ErrorCode, UnsupportedVersionError
from tidemark.v1 import admin_pb2

Request = admin_pb2.UpdateFeaturesRequest


def test_a_level_is_set_and_told() -> None:
    s = Scenario()
    s.start_brokers(1)
    assert s.set_feature(ELR_VERSION, 1) == 0
    answer = admin_answers.describe_features(s.image)
    told = {f.name: (f.level, f.supported_min, f.supported_max) for f in answer.features}
    assert told == {ELR_VERSION: (1, 0, 1), METADATA_VERSION: (1, 1, 1)}
    assert answer.finalized_features_epoch == s.image.offset


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [
        ("new.version", 1, Request.UPGRADE),
        (ELR_VERSION, 2, Request.UPGRADE),
        (METADATA_VERSION, 2, Request.UPGRADE),
        (METADATA_VERSION, 0, Request.UNSAFE_DOWNGRADE),
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
    answers = s.apply(s.core.update_features(request)).results
    assert [a.error_code for a in answers] == [0, ErrorCode.INVALID_UPDATE_VERSION]
    assert s.written == []


def test_a_level_that_a_registered_broker_does_not_support_is_refused() -> None:
    s = Scenario()
    s.start_brokers(1)
    s.register(2, features={METADATA_VERSION: (1, 1)})
    assert s.set_feature(ELR_VERSION, 1) == ErrorCode.INVALID_UPDATE_VERSION


def test_a_broker_too_old_for_the_cluster_is_not_registered() -> None:
    s = Scenario()
    s.set_feature(ELR_VERSION, 1)
    with pytest.raises(UnsupportedVersionError, match="install a version"):
        s.register(1, features={METADATA_VERSION: (1, 1)})
    with pytest.raises(UnsupportedVersionError):
        s.register(1, features={METADATA_VERSION: (2, 3), ELR_VERSION: (0, 1)})


def test_a_node_too_old_for_its_log_says_so() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"levels 1 to 1.*install"):
        check_supported({METADATA_VERSION: 2}, SUPPORTED, "this node")
    check_supported({METADATA_VERSION: 1, ELR_VERSION: None}, SUPPORTED, "this node")
