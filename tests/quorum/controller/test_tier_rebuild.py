"""Creation of a topic with its old id, whose records are in the tier alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorum.image import LeaderRecoveryState
from tests.quorum.controller.scenario import Scenario, controller_config
from tests.quorum.controller.test_elect_leaders import Request, elect
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2

OLD = UUID(int=0xABCDEF << 96)
OLD_CONFIGS = {"remote_storage_enable": "true", "unclean_leader_election_enable": "false"}


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario(config=controller_config(remote_log_storage_system_enable="true"))
    scenario.start_brokers(1, 2, 3)
    return scenario


def rebuild(
    s: Scenario,
    name: str,
    *assignment: tuple[int, ...],
    topic_id: UUID = OLD,
    epochs: tuple[int, ...] = (7, 0),
    configs: dict[str, str] | None = None,
) -> admin_pb2.CreateTopicsResponse.Topic:
    wanted = admin_pb2.CreateTopicsRequest.TierRebuild(
        topic_id=topic_id.bytes, leader_epochs=epochs
    )
    chosen = OLD_CONFIGS if configs is None else configs
    return s.try_create(name, *assignment, rebuild=wanted, **chosen)


def test_a_rebuilt_topic_has_its_old_id_and_no_leader_until_an_unclean_election(
    s: Scenario,
) -> None:
    answer = rebuild(s, "old", (2, 1), (3, 1))
    assert (answer.error_code, answer.topic_id) == (0, OLD.bytes)
    for index, epoch in enumerate((7, 0)):
        partition = s.partition("old", index)
        assert (partition.leader, partition.isr, partition.leader_epoch) == (None, (), epoch)
        assert (partition.elr, partition.last_known_elr) == ((), ())
    s.keep_alive(60_000, 2, 3)  # broker 1 is fenced, and comes back: nobody is elected by itself
    s.heartbeat(1)
    s.keep_alive(60_000, 1, 2, 3)
    assert s.partition("old").leader is None
    assert elect(s, Request.PREFERRED, "old") == {"old": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}

    assert elect(s, Request.UNCLEAN, "old") == {"old": 0}
    elected = s.partition("old")
    assert (elected.leader, elected.isr, elected.leader_epoch) == (2, (2,), 8)
    assert elected.leader_recovery_state is LeaderRecoveryState.RECOVERING


@pytest.mark.parametrize(
    ("topic_id", "epochs", "configs"),
    [
        (UUID(int=0), (1,), OLD_CONFIGS),
        (UUID(int=100), (1,), OLD_CONFIGS),
        (OLD, (), OLD_CONFIGS),
        (OLD, (1, 2), OLD_CONFIGS),
        (OLD, (-1,), OLD_CONFIGS),
        (OLD, (1,), {"remote_storage_enable": "true"}),
        (OLD, (1,), {**OLD_CONFIGS, "unclean_leader_election_enable": "true"}),
        (OLD, (1,), {"unclean_leader_election_enable": "false"}),
    ],
)
def test_a_rebuild_that_is_not_whole_is_refused(
    s: Scenario, topic_id: UUID, epochs: tuple[int, ...], configs: dict[str, str]
) -> None:
    answer = rebuild(s, "old", (1, 2), topic_id=topic_id, epochs=epochs, configs=configs)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert s.image.topics.get("old") is None


def test_an_id_in_use_is_refused(s: Scenario) -> None:
    assert rebuild(s, "old", (1,), epochs=(1,)).error_code == 0
    again = rebuild(s, "other", (1,), epochs=(1,))
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "'old'" in again.error_message
    assert rebuild(s, "old", (1,), epochs=(1,)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_one_request_gives_an_id_once(s: Scenario) -> None:
    request = admin_pb2.CreateTopicsRequest()
    for name in ("one", "two"):
        topic = request.topics.add(name=name, num_partitions=1, replication_factor=1)
        topic.configs.update({k.replace("_", "."): v for k, v in OLD_CONFIGS.items()})
        topic.rebuild.topic_id, topic.rebuild.leader_epochs[:] = OLD.bytes, [0]
    codes = [topic.error_code for topic in s.ask(request).topics]
    assert codes == [0, ErrorCode.TOPIC_ALREADY_EXISTS]
