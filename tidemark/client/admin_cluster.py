"""Changes of a running cluster: settings, partitions, replicas, leaders, features, quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tidemark.client import decoding
from tidemark.client.admin_calls import AdminCalls, Final
from tidemark.client.models import (
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    FeatureDescription,
    NodeFeatures,
    PartitionReassignment,
)
from tidemark.errors import ApiError, ErrorCode, InvalidRequestError, error_for
from tidemark.quotas.entities import (
    DEFAULT,
    QuotaEntity,
    QuotaFilter,
    entity_from_wire,
    parts_to_wire,
)
from tidemark.types import Endpoint, TopicPartition
from tidemark.v1 import admin_pb2, log_pb2

_LOGGER = ConfigResourceType.BROKER_LOGGER
_OPS = ("SET", "DELETE", "APPEND", "SUBTRACT")


class ClusterAdmin(AdminCalls):
    """Part of AsyncAdmin beyond topics: changes and descriptions of a running cluster."""

    async def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[AlterConfigOp]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Changes settings, those of each resource atomically (KIP-339).

        Raises the first resource's error: InvalidConfigError, UnknownTopicOrPartitionError,
        BrokerIdNotRegisteredError. Levels of a node's loggers are altered at that node.
        """
        of_loggers = {r: ops for r, ops in changes.items() if r.type == _LOGGER}
        for resource, ops in of_loggers.items():
            await self._alter_loggers(resource, ops, validate_only, timeout_ms)
        changes = {r: ops for r, ops in changes.items() if r not in of_loggers}
        if not changes:
            return
        request = admin_pb2.IncrementalAlterConfigsRequest(
            validate_only=validate_only, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        _add_changes(request, changes)
        answer = await self._ask(request, admin_pb2.IncrementalAlterConfigsResponse, timeout_ms)
        for result in answer.responses:
            kind = "topic" if result.resource.resource_type == 2 else "broker"
            _check(result, f"{kind} {result.resource.resource_name!r}")

    async def _alter_loggers(
        self,
        resource: ConfigResource,
        ops: Sequence[AlterConfigOp],
        validate_only: bool,
        timeout_ms: int | None,
    ) -> None:
        await self._refresh_metadata()
        request = admin_pb2.IncrementalAlterConfigsRequest(validate_only=validate_only)
        _add_changes(request, {resource: ops})

        async def attempt(address: str) -> None:
            to = self._address_of(resource) or address
            answer = await self._send(to, request, admin_pb2.IncrementalAlterConfigsResponse)
            try:
                _check(answer.responses[0], f"the loggers of node {resource.name}")
            except ApiError as error:
                raise Final(error) from None

        await self._with_retries(attempt, timeout_ms)

    async def describe_configs(
        self,
        resources: Collection[ConfigResource],
        names: Sequence[str] = (),
        *,
        include_synonyms: bool = True,
        include_documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Settings by name for each resource; all of them if `names` is empty.

        A broker's own settings are read from that broker. Raises the first resource's error.
        """
        if any(r.type != ConfigResourceType.TOPIC and r.name for r in resources):
            await self._refresh_metadata()

        async def describe(resource: ConfigResource) -> dict[str, ConfigEntry]:
            request = admin_pb2.DescribeConfigsRequest(
                include_synonyms=include_synonyms, include_documentation=include_documentation
            )
            request.resources.add(resource=_resource(resource), names=names)
            response = admin_pb2.DescribeConfigsResponse

            async def attempt(address: str) -> dict[str, ConfigEntry]:
                to = self._address_of(resource) or address
                [result] = (await self._send(to, request, response)).results
                try:
                    _check(result, f"{resource.kind} {resource.name!r}")
                except ApiError as error:
                    raise Final(error) from None
                return {entry.name: decoding.config_entry(entry) for entry in result.configs}

            return await self._with_retries(attempt)

        found = await asyncio.gather(*map(describe, resources))
        return dict(zip(resources, found, strict=True))

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Grows topics to the given numbers of partitions; waits until every live broker has them.

        `assignments` places the new partitions of a topic manually: for each its broker ids,
        preferred leader first. Raises the first topic's error: InvalidPartitionsError,
        InvalidReplicaAssignmentError, UnknownTopicOrPartitionError.
        """
        request = admin_pb2.CreatePartitionsRequest(
            timeout_ms=timeout_ms or self._retry.timeout_ms, validate_only=validate_only
        )
        for name, count in counts.items():
            topic = request.topics.add(name=name, count=count)
            for replicas in (assignments or {}).get(name, ()):
                topic.assignments.add(broker_ids=replicas)
        answer = await self._ask(request, admin_pb2.CreatePartitionsResponse, timeout_ms)
        for result in answer.results:
            _check(result, f"topic {result.name!r}")
        if not validate_only:

            def grown(metadata: log_pb2.MetadataResponse, names: list[str]) -> bool:
                led = {
                    topic.name: sum(p.leader_id >= 0 for p in topic.partitions)
                    for topic in metadata.topics
                }
                return all(led.get(name, 0) >= counts[name] for name in names)

            await self._wait_on_all_brokers(list(counts), grown, timeout_ms)

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Begins to move partitions to other brokers, preferred leader first; None cancels
        (KIP-455).

        Returns when the moves are decided, not when they are done. Raises the first partition's
        error: InvalidReplicaAssignmentError, NoReassignmentInProgressError,
        UnknownTopicOrPartitionError.
        """
        request = admin_pb2.AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        for partition, replicas in reassignments.items():
            asked = request.partitions.add(
                topic=partition.topic, partition_index=partition.partition
            )
            if replicas is not None:
                asked.replicas.broker_ids.extend(replicas)
                asked.replicas.SetInParent()
        answer = await self._ask(request, admin_pb2.AlterPartitionReassignmentsResponse, timeout_ms)
        for result in answer.responses:
            _check(result, f"{result.topic}-{result.partition_index}")

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Reassignments in progress, of these partitions or of all (None)."""
        request = admin_pb2.ListPartitionReassignmentsRequest()
        for name, indexes in _by_topic(partitions or ()).items():
            request.topics.add(topic=name, partition_indexes=indexes)
        if partitions is not None and not partitions:
            return {}
        answer = await self._ask(request, admin_pb2.ListPartitionReassignmentsResponse)
        return {
            TopicPartition(p.topic, p.partition_index): PartitionReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for p in answer.partitions
        }

    async def wait_until_reassigned(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int]],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Waits until the partitions have exactly these replicas on every live broker.

        Their moves are done then. Raises RequestTimedOutError.
        """

        def moved(metadata: log_pb2.MetadataResponse, names: list[str]) -> bool:
            replicas = {
                TopicPartition(topic.name, p.partition_index): list(p.replica_nodes)
                for topic in metadata.topics
                for p in topic.partitions
            }
            return all(replicas.get(p) == list(wanted) for p, wanted in reassignments.items())

        names = sorted({partition.topic for partition in reassignments})
        await self._wait_on_all_brokers(names, moved, timeout_ms)

    async def elect_leaders(
        self,
        election_type: str = "PREFERRED",
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ApiError | None]:
        """Elects leaders of these partitions, or of all that need it (None).

        `election_type` is PREFERRED or UNCLEAN; the latter may lose records. Returns the outcome of
        each partition: None, or ElectionNotNeededError, PreferredLeaderNotAvailableError,
        EligibleLeadersNotAvailableError.
        """
        if election_type not in ("PREFERRED", "UNCLEAN"):
            raise InvalidRequestError(f"{election_type!r} is no election: PREFERRED or UNCLEAN")
        request = admin_pb2.ElectLeadersRequest(
            election_type=admin_pb2.ElectLeadersRequest.Type.Value(election_type),
            all_partitions=partitions is None,
            timeout_ms=timeout_ms or self._retry.timeout_ms,
        )
        for partition in partitions or ():
            request.partitions.add(topic=partition.topic, partition_index=partition.partition)
        answer = await self._ask(request, admin_pb2.ElectLeadersResponse, timeout_ms)
        return {
            TopicPartition(r.topic, r.partition_index): error_for(r.error_code, r.error_message)
            if r.error_code
            else None
            for r in answer.results
        }

    async def describe_features(self) -> dict[str, FeatureDescription]:
        """Features by name."""
        return {
            f.name: FeatureDescription(f.name, f.level, f.supported_min, f.supported_max, f.release)
            for f in (await self._features()).features
        }

    async def describe_node_features(self) -> list[NodeFeatures]:
        """Supported ranges of each registered node.

        Controllers (from metadata.version 2 on) come before brokers.
        """
        return [
            NodeFeatures(
                node.node_id,
                "controller" if node.is_controller else "broker",
                {f.name: (f.min_level, f.max_level) for f in node.features},
                {e.name: Endpoint(e.host, e.port) for e in node.listeners},
            )
            for node in (await self._features()).nodes
        ]

    async def _features(self) -> admin_pb2.DescribeFeaturesResponse:
        request = admin_pb2.DescribeFeaturesRequest()
        return await self._ask(request, admin_pb2.DescribeFeaturesResponse)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: str | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Sets levels of features atomically; `downgrade` SAFE or UNSAFE allows lower ones.

        Raises FeatureUpdateFailedError, InvalidUpdateVersionError.
        """
        kinds = {None: "UPGRADE", "SAFE": "SAFE_DOWNGRADE", "UNSAFE": "UNSAFE_DOWNGRADE"}
        if downgrade not in kinds:
            raise InvalidRequestError(f"{downgrade!r} is no downgrade: SAFE or UNSAFE")
        kind = admin_pb2.UpdateFeaturesRequest.Type.Value(kinds[downgrade])
        request = admin_pb2.UpdateFeaturesRequest(
            validate_only=validate_only, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        for name, level in levels.items():
            request.updates.add(feature=name, level=level, type=kind)
        answer = await self._ask(request, admin_pb2.UpdateFeaturesResponse, timeout_ms)
        for result in answer.results:
            _check(result, f"feature {result.feature!r}")

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Sets quotas by key, and removes those that are None; an entity changes as a whole.

        Raises the first entity's error, an InvalidRequestError. Raises UnsupportedVersionError
        while metadata.version is too low.
        """
        request = admin_pb2.AlterClientQuotasRequest(
            validate_only=validate_only, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        for entity, quotas in changes.items():
            entry = request.entries.add(entity=parts_to_wire(entity))
            for key, value in quotas.items():
                entry.ops.add(key=key, value=value or 0.0, remove=value is None)
        answer = await self._ask(request, admin_pb2.AlterClientQuotasResponse, timeout_ms)
        for entity, result in zip(changes, answer.entries, strict=True):
            _check(result, str(entity))

    async def describe_client_quotas(
        self, filters: Sequence[QuotaFilter] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Quotas by key, of the entities that match all filters; without filters, of all.

        With `strict`, without entities of types that no filter names. The node that answers may not
        have applied the last change yet.
        """
        match = admin_pb2.DescribeClientQuotasRequest
        request = match(strict=strict)
        for kind, name in filters:
            if name is None:
                request.components.add(entity_type=kind, match_type=match.ANY)
            elif name == DEFAULT:
                request.components.add(entity_type=kind, match_type=match.DEFAULT)
            else:
                request.components.add(entity_type=kind, match_type=match.EXACT, match=name)
        answer = await self._ask(request, admin_pb2.DescribeClientQuotasResponse)
        return {entity_from_wire(e.entity): dict(e.values) for e in answer.entries}

    async def unregister_broker(self, broker_id: int, *, timeout_ms: int | None = None) -> None:
        """Unregisters a broker that will not come back; raises BrokerIdNotRegisteredError.

        Its replicas stay assigned until they are moved.
        """
        request = admin_pb2.UnregisterBrokerRequest(
            broker_id=broker_id, timeout_ms=timeout_ms or self._retry.timeout_ms
        )
        await self._ask(request, admin_pb2.UnregisterBrokerResponse, timeout_ms)

    def _address_of(self, resource: ConfigResource) -> str | None:
        """Address of the only node that can answer for the resource.

        None if any node can, or if the address is unknown.
        """
        if resource.type == ConfigResourceType.TOPIC or not resource.name.isdigit():
            return None
        node_id = int(resource.name)
        return self._metadata.address(node_id) or self.nodes.controllers.get(node_id)


def _resource(resource: ConfigResource) -> admin_pb2.ConfigResource:
    return admin_pb2.ConfigResource(resource_type=resource.type, resource_name=resource.name)


def _add_changes(
    request: admin_pb2.IncrementalAlterConfigsRequest,
    changes: Mapping[ConfigResource, Sequence[AlterConfigOp]],
) -> None:
    for resource, ops in changes.items():
        asked = request.resources.add(resource=_resource(resource))
        for op in ops:
            asked.ops.add(name=op.name, type=_op_type(op.op), value=op.value)


def _op_type(op: str) -> Any:
    if op not in _OPS:
        raise InvalidRequestError(f"{op!r} is no operation on settings: {', '.join(_OPS)}")
    return admin_pb2.IncrementalAlterConfigsRequest.Type.Value(op)


def _check(result: Any, what: str) -> None:
    """Raises the error of one item of an answer."""
    if result.error_code != ErrorCode.NONE:
        message = result.error_message
        raise error_for(result.error_code, f"{what}: {message}" if message else what)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return by_topic
