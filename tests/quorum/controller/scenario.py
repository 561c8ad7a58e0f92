"""Verbs for controller scenarios: a pure core, its log, and a manual clock."""

from __future__ import annotations

import random
from typing import Any, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from quorum.controller.core import ControllerCore
from quorum.controller.result import ControllerResult
from quorum.image import EMPTY_IMAGE, MetadataImage, PartitionRegistration
from quorum.image.features import FIRST_LEVELS, ranges_to_wire
from quorum.image.image import METADATA_VERSION
from tidemark.config import parse_server_config
from tidemark.config.server import ServerConfig
from tidemark.v1 import admin_pb2, controller_pb2
from tidemark.v1 import metadata_pb2 as pb

R = TypeVar("R")
CLUSTER_ID = "tidemark-test-cluster-"


def controller_config(**changes: str) -> ServerConfig:
    """A controller's settings; names with '_' for '.'."""
    values = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    values.update({key.replace("_", "."): value for key, value in changes.items()})
    return parse_server_config(values)


class Scenario:
    """An active controller without a log: its records are committed at once.

    `level` is the metadata.version to begin with, and other features are off; None means the levels
    of a new cluster.
    """

    def __init__(
        self,
        seed: int = 1,
        config: ServerConfig | None = None,
        *,
        level: int | None = FIRST_LEVELS[METADATA_VERSION],
        voters: tuple[int, ...] = (),
    ) -> None:
        self.config = config or controller_config()
        self.core = ControllerCore(
            self.config,
            CLUSTER_ID,
            random.Random(seed),
            first_levels=FIRST_LEVELS if level is None else {METADATA_VERSION: level},
            voters=lambda: voters,
        )
        self.message = ""
        self.now_ms = 1_000_000
        self.offset = 0
        self.log: list[pb.MetadataRecord] = []
        self.epochs: dict[int, int] = {}
        self.written: list[pb.MetadataRecord] = []
        self.apply(self.core.activate(EMPTY_IMAGE, 1, self.now_ms))

    def set_feature(self, name: str, level: int, kind: int = 0) -> int:
        """Sets a feature's level; returns the error code, and `message` has the text."""
        request = admin_pb2.UpdateFeaturesRequest()
        request.updates.add(feature=name, level=level, type=kind)  # type: ignore[arg-type]
        result = self.ask(request).results[0]
        self.message = result.error_message
        return result.error_code

    def register_controller(
        self,
        controller_id: int,
        *,
        incarnation: int = 1,
        features: dict[str, tuple[int, int]] | None = None,
        **change: Any,
    ) -> None:
        """Registers a controller; `change` overrides fields of the request."""
        fields: dict[str, Any] = {
            "controller_id": controller_id,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": UUID(int=controller_id * 1_000 + incarnation).bytes,
        }
        request = controller_pb2.RegisterControllerRequest(**(fields | change))
        if features is None:
            request.features.extend(ranges_to_wire())
        for name, (low, high) in (features or {}).items():
            request.features.add(name=name, min_level=low, max_level=high)
        request.listeners.add(name="CONTROLLER", host="127.0.0.1", port=9_100 + controller_id)
        self.ask(request)

    def unregister(self, node_id: int) -> None:
        """Unregisters a broker or a controller."""
        self.ask(admin_pb2.UnregisterBrokerRequest(broker_id=node_id))

    @property
    def image(self) -> MetadataImage:
        return self.core.image

    def apply(self, result: ControllerResult[R]) -> R:
        """Appends and replays a result; `written` has the records of the last call."""
        self.written = []
        for batch in result.batches():
            self.offset += len(batch)
            self.log += batch
            self.written += batch
            self.core.replay(batch, self.offset - 1, self.now_ms)
        if result.groups and result.after_append is not None:
            result.after_append(self.offset - 1)
        self.core.validate()
        return result.response

    def generate(self, request: Message) -> ControllerResult[Any]:
        """Returns the records and the answer of a request without applying them."""
        return self.core.handle(request, self.offset, self.now_ms)

    def ask(self, request: Message) -> Any:
        """Returns the answer of a request after applying its records."""
        return self.apply(self.generate(request))

    def advance(self, delay_ms: int) -> None:
        """Advances the clock and runs all timed work that becomes due."""
        end_ms = self.now_ms + delay_ms
        while (due_ms := self.core.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.apply(self.core.tick(self.now_ms))
        self.now_ms = end_ms

    def register(
        self,
        broker_id: int,
        rack: str = "",
        *,
        incarnation: int = 1,
        cluster_id: str = CLUSTER_ID,
        previous_epoch: int = -1,
        features: dict[str, tuple[int, int]] | None = None,
        log_dirs: tuple[UUID, ...] = (),
        locked: bool = False,
        port: int = 9_000,
    ) -> int:
        """Registers a broker; returns its epoch."""
        request = controller_pb2.RegisterBrokerRequest(
            broker_id=broker_id,
            cluster_id=cluster_id,
            incarnation_id=UUID(int=broker_id * 1_000 + incarnation).bytes,
            rack=rack,
            previous_broker_epoch=previous_epoch,
            locked_log_dirs=locked,
        )
        if features is None:
            request.features.extend(ranges_to_wire())
        for name, (low, high) in (features or {}).items():
            request.features.add(name=name, min_level=low, max_level=high)
        request.log_dirs.extend(directory.bytes for directory in log_dirs)
        request.listeners.add(name="PLAINTEXT", host="127.0.0.1", port=port + broker_id)
        response = self.ask(request)
        self.epochs[broker_id] = response.broker_epoch
        return response.broker_epoch

    def heartbeat(
        self, broker_id: int, *, offset: int | None = None, epoch: int | None = None, **wants: bool
    ) -> controller_pb2.BrokerHeartbeatResponse:
        """Sends a heartbeat of a broker that has applied everything, unless `offset` is given."""
        request = controller_pb2.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.epochs[broker_id] if epoch is None else epoch,
            current_metadata_offset=self.offset - 1 if offset is None else offset,
            **wants,  # type: ignore[arg-type]
        )
        return self.ask(request)

    def start_brokers(self, *broker_ids: int, racks: str = "") -> None:
        """Registers and unfences brokers; `racks` has a letter for each, or is empty."""
        for position, broker_id in enumerate(broker_ids):
            self.register(broker_id, racks[position] if racks else "")
        for broker_id in broker_ids:
            assert not self.heartbeat(broker_id).is_fenced

    def keep_alive(self, delay_ms: int, *broker_ids: int) -> None:
        """Advances the clock while only these brokers send heartbeats."""
        end_ms = self.now_ms + delay_ms
        while self.now_ms < end_ms:
            self.advance(min(500, end_ms - self.now_ms))
            for broker_id in broker_ids:
                self.heartbeat(broker_id)

    def create(self, name: str, *assignment: tuple[int, ...], **configs: str) -> UUID:
        """Creates a topic with these replicas; returns its id."""
        answer = self.try_create(name, *assignment, **configs)
        assert answer.error_code == 0, answer.error_message
        return UUID(bytes=answer.topic_id)

    def try_create(
        self,
        name: str,
        *assignment: tuple[int, ...],
        partitions: int = -1,
        factor: int = -1,
        validate_only: bool = False,
        rebuild: admin_pb2.CreateTopicsRequest.TierRebuild | None = None,
        **configs: str,
    ) -> admin_pb2.CreateTopicsResponse.Topic:
        """Returns the answer to the creation of one topic."""
        topic = admin_pb2.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            configs={key.replace("_", "."): value for key, value in configs.items()},
            rebuild=rebuild,
        )
        for index, ids in enumerate(assignment):
            topic.assignments.add(partition_index=index, broker_ids=ids)
        request = admin_pb2.CreateTopicsRequest(topics=[topic], validate_only=validate_only)
        return self.ask(request).topics[0]

    def partition(self, name: str, index: int = 0) -> PartitionRegistration:
        topic = self.image.topics.get(name)
        assert topic is not None
        return topic.partitions[index]

    def alter(
        self, name: str, isr: tuple[int, ...], *, broker_id: int | None = None, **changes: Any
    ) -> controller_pb2.AlterPartitionResponse.PartitionData:
        """Proposes an ISR as the leader of partition 0; `changes` override fields of the
        request.
        """
        topic = self.image.topics.get(name)
        assert topic is not None
        partition = topic.partitions[0]
        asker = partition.leader if broker_id is None else broker_id
        assert asker is not None
        epochs = changes.pop("member_epochs", {})
        fields: dict[str, Any] = {
            "topic_id": topic.topic_id.bytes,
            "partition_index": 0,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
        }
        data = controller_pb2.AlterPartitionRequest.PartitionData(**(fields | changes))
        for member in isr:
            data.new_isr.add(
                broker_id=member, broker_epoch=epochs.get(member, self.epochs.get(member, -1))
            )
        request = controller_pb2.AlterPartitionRequest(
            broker_id=asker, broker_epoch=self.epochs[asker], partitions=[data]
        )
        return self.ask(request).partitions[0]
