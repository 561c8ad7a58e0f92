"""Problems that nodes tell of themselves in `cluster health`."""

from __future__ import annotations

from tidemark.cli.node_health import node_problems
from tidemark.client.models import FailedTask, ListenerCertificate, NodeState
from tidemark.errors import ApiError, NetworkError, UnsupportedVersionError
from tidemark.types import TopicPartition

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


def told(state: NodeState | ApiError, node_id: int = 4) -> list[tuple[str, str, str, str]]:
    found = node_problems({node_id: state}, {4}, NOW_MS, 14)
    return [(p.severity, p.kind, p.where, p.detail) for p in found]


def certified(left_ms: int, error: str = "") -> NodeState:
    certificate = ListenerCertificate("USERS", "CN=node", NOW_MS + left_ms, error)
    return NodeState(4, "1", (certificate,), ())


def failing(failures: int) -> NodeState:
    task = FailedTask("delete", TopicPartition("tale", 3), failures, NOW_MS, "AccessDenied")
    return NodeState(4, "1", (), (task,))


def test_a_certificate_is_told_from_its_last_days_on() -> None:
    assert told(certified(14 * DAY_MS)) == []
    ((severity, kind, where, detail),) = told(certified(14 * DAY_MS - 1))
    assert (severity, kind) == ("warning", "certificate ends soon")
    assert where == "node 4: listener USERS"
    assert detail == "CN=node: 2024-10-17 23:59 UTC, in 13 days"


def test_a_certificate_past_its_end_is_critical() -> None:
    ((severity, kind, _, detail),) = told(certified(0))
    assert (severity, kind) == ("critical", "certificate ended")
    assert detail.startswith("CN=node: 2024-10-04 00:00 UTC")
    assert told(certified(1))[0][0] == "warning"


def test_a_certificate_that_can_not_be_read_is_told_with_the_reason() -> None:
    ((severity, kind, _, detail),) = told(certified(-NOW_MS, "no such file"))
    assert (severity, kind) == ("warning", "certificate unreadable")
    assert detail == "no such file: the former certificate stays in use"


def test_a_task_of_the_tier_is_told_when_it_fails_again_and_again() -> None:
    assert told(failing(2)) == []
    assert told(failing(3)) == [
        (
            "warning",
            "tier task fails",
            "broker 4: tale-3",
            "delete failed 3 times since 2024-10-04 00:00 UTC: AccessDenied",
        )
    ]


def test_an_active_broker_that_does_not_answer_is_told_and_no_other_node() -> None:
    silent = NetworkError("it is silent")
    assert [one[1:3] for one in told(silent)] == [("node unknown", "broker 4")]
    assert told(silent, 5) == []
    assert told(UnsupportedVersionError("an older node")) == []
