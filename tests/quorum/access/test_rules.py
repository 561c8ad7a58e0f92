"""Each RPC of proto/ declares what it needs, and requests and answers are held to that."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from quorum.access import rules
from quorum.access.verdicts import judged, refused
from tidemark.errors import ApiError, ErrorCode
from tidemark.security import acls
from tidemark.v1 import admin_pb2, group_pb2, log_pb2, transaction_pb2
from tidemark.wire.rpcs import every_rpc


class User(NamedTuple):
    """May do what `may` has: operations by type of resource and name."""

    may: frozenset[tuple[int, int, str]]
    is_node: bool = False

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        return (operation, resource_type, name) in self.may


def asked(path: str, request: Any, *may: tuple[int, int, str], is_node: bool = False) -> Any:
    """The request that goes to the handler (None: none), and a function of the final answer."""
    row = rules.row_of(path)
    assert row is not None
    found = {bytes(16): "known"}
    try:
        return judged(
            row.rules,
            rules.CheckedRequest(request, found.get),
            User(frozenset(may), is_node),
        )
    except ApiError as error:
        return refused(error)


def test_every_rpc_declares_what_it_needs() -> None:
    paths = {rpc.path for rpc in every_rpc()}
    assert [path for path in sorted(paths) if rules.row_of(path) is None] == []
    assert set(rules.ROWS) <= paths, "rows of methods that are gone"
    assert rules.row_of("/some.Service/Method") is None


def test_services_of_nodes_are_for_nodes() -> None:
    for path in ("Raft/Vote", "Controller/AlterPartition", "Replication/FetchStream"):
        row = rules.row_of(f"/tidemark.v1.{path}")
        assert row is not None
        assert row.is_for_nodes


def test_the_fields_that_rules_name_are_there() -> None:
    rpcs = {rpc.path: rpc for rpc in every_rpc()}
    for path, row in rules.ROWS.items():
        for rule in row.rules:
            if isinstance(rule, rules.Each):
                request = rpcs[path].request()
                for name in rule.items.split("."):
                    request = getattr(request, name)
                entry = getattr(rpcs[path].response(), rule.answers).add()
                assert not rule.key or hasattr(entry, rule.key)
                nested = getattr(entry, "partitions", None)
                fields = entry.DESCRIPTOR.fields_by_name
                assert "error_code" in fields or nested is not None, path
            elif isinstance(rule, rules.Shown):
                assert hasattr(getattr(rpcs[path].response(), rule.answers).add(), rule.name)
            elif isinstance(rule, rules.Whole):
                assert "error_code" in rpcs[path].response.DESCRIPTOR.fields_by_name, path


def test_denied_topics_are_taken_out_and_have_errors() -> None:
    request = admin_pb2.DeleteTopicsRequest(topic_names=["a", "b", "c"])
    verdict = asked("/tidemark.v1.Admin/DeleteTopics", request, (acls.DELETE, acls.TOPIC, "b"))
    assert list(verdict.request.topic_names) == ["b"]
    assert list(request.topic_names) == ["a", "b", "c"], "the caller's request stays as it was"
    answer = admin_pb2.DeleteTopicsResponse()
    answer.topics.add(name="b")
    told = {t.name: int(t.error_code) for t in verdict.answered(answer).topics}
    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert told == {"a": denied, "b": 0, "c": denied}


def test_a_request_of_which_nothing_is_left_does_not_become_one_for_everything() -> None:
    request = admin_pb2.DescribeTopicsRequest(topic_names=["a"])
    verdict = asked("/tidemark.v1.Admin/DescribeTopics", request)
    assert verdict.request is None
    answer = verdict.answered(admin_pb2.DescribeTopicsResponse())
    assert [(t.name, int(t.error_code)) for t in answer.topics] == [("a", 29)]


def test_a_list_shows_what_may_be_described() -> None:
    allowed = (acls.DESCRIBE, acls.TOPIC, "a")
    verdict = asked("/tidemark.v1.Log/Metadata", log_pb2.MetadataRequest(all_topics=True), allowed)
    answer = log_pb2.MetadataResponse()
    for name in ("x", "a", "y"):
        answer.topics.add(name=name)
    assert [t.name for t in verdict.answered(answer).topics] == ["a"]


def test_answers_about_partitions_name_them_as_the_request_does() -> None:
    request = log_pb2.ListOffsetsRequest()
    request.partitions.add(topic="a", partition_index=3)
    verdict = asked("/tidemark.v1.Log/ListOffsets", request)
    (entry,) = verdict.answered(log_pb2.ListOffsetsResponse()).partitions
    assert (entry.topic, entry.partition_index, int(entry.error_code)) == ("a", 3, 29)
    assert asked("/tidemark.v1.Log/ListOffsets", request, is_node=True).request is not None


def test_offsets_of_topics_that_may_not_be_described_are_not_told() -> None:
    request = group_pb2.OffsetFetchRequest()
    request.groups.add(group_id="named").topics.add(name="secret", partition_indexes=[7])
    request.groups.add(group_id="all", all_topics=True)
    group = [(acls.DESCRIBE, acls.GROUP, name) for name in ("named", "all")]
    topic = (acls.DESCRIBE, acls.TOPIC, "known")
    verdict = asked("/tidemark.v1.Groups/OffsetFetch", request, *group, topic)
    answer = group_pb2.OffsetFetchResponse()
    for group_id, names in (("named", ["secret"]), ("all", ["secret", "known"])):
        entry = answer.groups.add(group_id=group_id)
        for name in names:
            entry.topics.add(name=name).partitions.add(partition_index=7, committed_offset=42)
    named, every = verdict.answered(answer).groups
    [told] = named.topics[0].partitions
    assert (told.partition_index, told.committed_offset, int(told.error_code)) == (7, -1, 29)
    assert [(t.name, t.partitions[0].committed_offset) for t in every.topics] == [("known", 42)]


def test_offsets_of_denied_topics_have_an_error_for_each_partition() -> None:
    request = group_pb2.OffsetCommitRequest(group_id="g")
    for name in ("a", "b"):
        request.topics.add(name=name).partitions.add(partition_index=7)
    path = "/tidemark.v1.Groups/OffsetCommit"
    group, topic = (acls.READ, acls.GROUP, "g"), (acls.READ, acls.TOPIC, "b")
    verdict = asked(path, request, group, topic)
    assert [t.name for t in verdict.request.topics] == ["b"]
    (denied,) = verdict.answered(group_pb2.OffsetCommitResponse()).topics
    assert denied.name == "a"
    assert [(p.partition_index, int(p.error_code)) for p in denied.partitions] == [(7, 29)]
    whole = asked(path, request, topic).answered(group_pb2.OffsetCommitResponse())
    assert int(whole.error_code) == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_topic_named_by_its_id_needs_the_same_and_an_unknown_id_nothing() -> None:
    path = "/tidemark.v1.Log/PlanRead"
    known = log_pb2.PlanReadRequest(topic_id=bytes(16))
    assert asked(path, known).request is None
    assert asked(path, known, (acls.READ, acls.TOPIC, "known")).request is not None
    assert asked(path, log_pb2.PlanReadRequest(topic_id=b"?" * 16)).request is not None


@pytest.mark.parametrize("kind", [group_pb2.GROUP, group_pb2.TRANSACTION])
def test_a_coordinator_is_told_to_who_may_describe_what_it_coordinates(kind: Any) -> None:
    request = group_pb2.FindCoordinatorRequest(key_type=kind, coordinator_keys=["k"])
    resource = acls.GROUP if kind == group_pb2.GROUP else acls.TRANSACTIONAL_ID
    path = "/tidemark.v1.Groups/FindCoordinator"
    assert asked(path, request, (acls.DESCRIBE, resource, "k")).request is not None
    (told,) = asked(path, request).answered(group_pb2.FindCoordinatorResponse()).coordinators
    assert (told.key, int(told.error_code)) == ("k", int(rules.DENIED[resource]))


def test_preparing_a_transaction_needs_both_rights() -> None:
    request = transaction_pb2.PrepareTxnRequest(transactional_id="t")
    path = "/tidemark.v1.Transactions/PrepareTxn"
    write = (acls.WRITE, acls.TRANSACTIONAL_ID, "t")
    assert asked(path, request, write).request is None
    both = (write, (acls.TWO_PHASE_COMMIT, acls.TRANSACTIONAL_ID, "t"))
    assert asked(path, request, *both).request is not None


def test_topics_are_created_by_a_right_on_the_cluster_or_on_the_name() -> None:
    request = admin_pb2.CreateTopicsRequest()
    request.topics.add(name="a")
    path = "/tidemark.v1.Admin/CreateTopics"
    for right in ((acls.CREATE, acls.TOPIC, "a"), (acls.CREATE, acls.CLUSTER, "kafka-cluster")):
        assert asked(path, request, right).request is not None
    (told,) = asked(path, request).answered(admin_pb2.CreateTopicsResponse()).topics
    assert (told.name, int(told.error_code)) == ("a", 29)


def test_a_group_is_told_to_whoever_may_describe_all_its_topics() -> None:
    request = group_pb2.ConsumerGroupDescribeRequest(group_ids=["g"])
    group, named = (acls.DESCRIBE, acls.GROUP, "g"), (acls.DESCRIBE, acls.TOPIC, "named")
    known = (acls.DESCRIBE, acls.TOPIC, "known")

    def told(*may: tuple[int, int, str]) -> Any:
        answer = group_pb2.ConsumerGroupDescribeResponse()
        described = answer.groups.add(group_id="g", group_state="Stable", group_epoch=7)
        described.members.add(member_id="m", subscribed_topic_names=["named"])
        by_pattern = described.members.add(member_id="n", subscribed_topic_regex=".*")
        by_pattern.assignment.topic_partitions.add(topic_id=bytes(16), partitions=[0])
        by_pattern.target_assignment.topic_partitions.add(topic_id=b"x" * 16, partitions=[0])
        path = "/tidemark.v1.Groups/ConsumerGroupDescribe"
        asked(path, request, group, *may).answered(answer)
        return answer.groups[0]

    whole = told(named, known)
    assert (whole.error_code, len(whole.members), whole.group_state) == (0, 2, "Stable")
    for may in ((named,), (known,)):
        hidden = told(*may)
        assert hidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (hidden.group_id, len(hidden.members), hidden.group_state) == ("g", 0, "")
        assert "known" not in hidden.error_message
        assert "named" not in hidden.error_message


def test_of_a_transaction_the_topics_are_told_that_may_be_described() -> None:
    request = transaction_pb2.DescribeTransactionsRequest(transactional_ids=["t"])
    answer = transaction_pb2.DescribeTransactionsResponse()
    transaction = answer.transactions.add(transactional_id="t")
    for name in ("a", "b", "c"):
        transaction.topics.add(name=name, partitions=[0])
    may = ((acls.DESCRIBE, acls.TRANSACTIONAL_ID, "t"), (acls.DESCRIBE, acls.TOPIC, "b"))
    asked("/tidemark.v1.Transactions/DescribeTransactions", request, *may).answered(answer)
    assert [topic.name for topic in answer.transactions[0].topics] == ["b"]


def test_a_nodes_log_is_for_who_may_set_the_levels_of_its_loggers() -> None:
    path, request = "/tidemark.v1.Admin/DescribeNodeLog", admin_pb2.DescribeNodeLogRequest()
    cluster = (acls.CLUSTER, acls.CLUSTER_NAME)
    assert asked(path, request, (acls.DESCRIBE, *cluster)).request is None
    assert asked(path, request, (acls.ALTER_CONFIGS, *cluster)).request is request
    levels = admin_pb2.IncrementalAlterConfigsRequest()
    levels.resources.add().resource.resource_type = 8  # type: ignore[assignment]
    name = "/tidemark.v1.Admin/IncrementalAlterConfigs"
    assert asked(name, levels, (acls.ALTER_CONFIGS, *cluster)).request is not None
    state = "/tidemark.v1.Admin/DescribeNode"
    assert asked(state, admin_pb2.DescribeNodeRequest()).request is None
    assert (
        asked(state, admin_pb2.DescribeNodeRequest(), (acls.DESCRIBE, *cluster)).request is not None
    )
