"""Levels of loggers change at run time, at the node that is meant and at no other."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidemark import Admin
from tidemark.client.models import AlterConfigOp, ConfigResource
from tidemark.errors import InvalidConfigError, InvalidRequestError
from tidemark.testing import Cluster

NAME = "quorum.controller.quorum_controller"


@pytest.fixture
def admin() -> Iterator[tuple[Admin, int]]:
    """An admin client, and the id of a broker."""
    logger = logging.getLogger(NAME)
    before = logger.level
    with Cluster(seed=2, controllers=1, brokers=2) as cluster, cluster.admin() as made:
        yield made, cluster.brokers[1].node_id
    logger.setLevel(before)


def test_a_level_is_set_told_and_taken_back(admin: tuple[Admin, int]) -> None:
    client, broker = admin
    loggers = ConfigResource.broker_logger(broker)
    client.incremental_alter_configs({loggers: [AlterConfigOp(NAME, "TRACE", "SET")]})
    assert logging.getLogger(NAME).getEffectiveLevel() == 5
    found = client.describe_configs([loggers])[loggers]
    assert (found[NAME].value, found[NAME].source) == ("TRACE", "DYNAMIC_BROKER_LOGGER_CONFIG")
    assert "root" in found
    client.incremental_alter_configs({loggers: [AlterConfigOp(NAME, None, "DELETE")]})
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_a_dry_run_changes_nothing(admin: tuple[Admin, int]) -> None:
    client, broker = admin
    ops = [AlterConfigOp(NAME, "ERROR", "SET")]
    loggers = ConfigResource.broker_logger(broker)
    client.incremental_alter_configs({loggers: ops}, validate_only=True)
    assert logging.getLogger(NAME).level != logging.ERROR


def test_one_wrong_level_of_a_request_changes_none(admin: tuple[Admin, int]) -> None:
    client, broker = admin
    ops = [AlterConfigOp(NAME, "ERROR", "SET"), AlterConfigOp("root", "LOUD", "SET")]
    with pytest.raises(InvalidConfigError, match="none of TRACE, DEBUG"):
        client.incremental_alter_configs({ConfigResource.broker_logger(broker): ops})
    assert logging.getLogger(NAME).level != logging.ERROR


def test_lists_and_strange_nodes_are_refused(admin: tuple[Admin, int]) -> None:
    client, broker = admin
    appended = [AlterConfigOp(NAME, "ERROR", "APPEND")]
    with pytest.raises(InvalidConfigError, match="no list"):
        client.incremental_alter_configs({ConfigResource.broker_logger(broker): appended})
    strange = ConfigResource.broker_logger(4711)
    with pytest.raises(InvalidRequestError, match="ask the node whose loggers"):
        client.describe_configs([strange])
