"""Mixed versions in one cluster: logs beyond a node's version, registration of controllers, an
upgrade of the cluster, and its first feature levels."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc.aio
import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from quorum.controller import core as controller_core
from quorum.controller.controllers import register_controller
from quorum.controller.core import ControllerCore
from quorum.controller.quorum_controller import QuorumController
from quorum.image import records as r
from quorum.image.features import FIRST_LEVELS, KRAFT_VERSION, SUPPORTED, LevelRange
from quorum.image.image import ELR_VERSION, METADATA_VERSION
from quorum.replica import bootstrap
from quorum.replica.loader import MetadataLoader
from quorum.services.controller_registration import ControllerRegistrar
from snapshot.names import SnapshotId
from tests import virtual_time
from tests.quorum.controller.cluster import RealNode, active, eventually, real_controllers
from tests.quorum.controller.fake_raft import FakeQuorum, FakeSnapshot
from tests.quorum.controller.scenario import CLUSTER_ID, controller_config
from tidemark.errors import ErrorCode, FatalError, RequestTimedOutError, UnknownServerError
from tidemark.v1 import admin_pb2, admin_pb2_grpc, controller_pb2
from tidemark.v1 import metadata_pb2 as pb

OLD = {METADATA_VERSION: LevelRange(1, 1), ELR_VERSION: LevelRange(0, 1)}
NEWER = [r.encode_record(r.feature_record(METADATA_VERSION, 5))]
# A record of an unknown kind: field 900 of the oneof, an empty message.
UNKNOWN_KIND = bytes([0xA2, 0x38, 0x00])


def clock() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def read_log(*batches: list[bytes]) -> MetadataLoader:
    """Returns a loader after these batches were committed."""
    quorum = FakeQuorum(auto_commit=False)
    loader = MetadataLoader(quorum.node(1), controller_config(), clock)
    quorum.node(1).register(loader)
    quorum.elect(1)
    for values in batches:
        quorum.append(values)
    quorum.commit()
    return loader


# --- too old for the log ------------------------------------------------------------------------


def test_a_controller_stops_at_a_level_of_its_log_that_it_does_not_support() -> None:
    async def main() -> None:
        first = [r.encode_record(r.feature_record(METADATA_VERSION, 2))]
        with pytest.raises(FatalError, match=r"metadata.version at level 5.*install a version"):
            read_log(first, NEWER)

    virtual_time.run(main())


def test_a_record_of_an_unknown_kind_is_explained_by_the_level_before_it() -> None:
    async def main() -> None:
        with pytest.raises(FatalError, match=r"metadata.version at level 5.*install a version"):
            read_log([*NEWER, UNKNOWN_KIND])
        with pytest.raises(FatalError, match="too old for its log"):
            read_log([UNKNOWN_KIND])

    virtual_time.run(main())


def test_a_controller_stops_at_a_snapshot_of_a_level_that_it_does_not_support() -> None:
    async def main() -> None:
        loader = MetadataLoader(FakeQuorum().node(1), controller_config(), clock)
        snapshot = FakeSnapshot(SnapshotId(7, 1), NEWER)
        with pytest.raises(FatalError, match=r"snapshot .* install a version"):
            list(loader.handle_load_snapshot(snapshot))

    virtual_time.run(main())


def test_the_active_controller_resigns_at_a_level_beyond_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own checks refuse such a level: the test disables them."""

    async def main() -> None:
        quorum = FakeQuorum()
        raft = quorum.node(1)
        loader = MetadataLoader(raft, controller_config(), clock)
        core = ControllerCore(controller_config(), CLUSTER_ID, random.Random(1))
        controller = QuorumController(raft, loader, core, clock)
        raft.register(loader)
        quorum.elect(1)
        assert controller.is_active
        monkeypatch.setattr(controller_core, "SUPPORTED", OLD)
        request = admin_pb2.UpdateFeaturesRequest()
        request.updates.add(feature=METADATA_VERSION, level=1, type=1)  # type: ignore[arg-type]
        await controller.handle(request)  # a level it supports
        request.updates[0].level, request.updates[0].type = 2, 0  # type: ignore[assignment]
        with pytest.raises(UnknownServerError, match="install a version"):
            await controller.handle(request)
        assert not controller.is_active
        assert raft.leader_and_epoch.leader_id is None, "it resigned"
        controller.stop()

    virtual_time.run(main())


def test_a_snapshot_is_written_when_the_metadata_version_changes() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        raft = quorum.node(1)
        loader = MetadataLoader(raft, controller_config(), clock)
        raft.register(loader)
        quorum.elect(1)
        for level in (2, 2, 1):
            quorum.append([r.encode_record(r.feature_record(METADATA_VERSION, level))])
            quorum.commit()
            await asyncio.sleep(1)
            wanted = 1 if level == 1 else 0
            assert loader.snapshots_written == wanted, level
        assert raft.snapshots[-1].id.end_offset == loader.image.end_offset

    virtual_time.run(main())


# --- registration -------------------------------------------------------------------------------


class ActiveController:
    """Registers every controller in a log of its own; refuses the first `down` requests."""

    def __init__(self, level: int = 2, down: int = 0) -> None:
        self.quorum = FakeQuorum()
        self.loader = MetadataLoader(self.quorum.node(1), controller_config(), clock)
        self.quorum.node(1).register(self.loader)
        self.quorum.elect(1)
        self.write(r.feature_record(METADATA_VERSION, level))
        self.down = down
        self.asked: list[controller_pb2.RegisterControllerRequest] = []

    def write(self, *records: pb.MetadataRecord) -> None:
        self.quorum.append([r.encode_record(record) for record in records])

    async def register(
        self, request: controller_pb2.RegisterControllerRequest, timeout_ms: int
    ) -> controller_pb2.RegisterControllerResponse:
        self.asked.append(request)
        if self.down:
            self.down -= 1
            raise RequestTimedOutError("no active controller")
        found = register_controller(self.loader.image, CLUSTER_ID, request)
        self.write(*found.records)
        return found.response


async def registrar_of(controller: ActiveController) -> ControllerRegistrar:
    config = controller_config(node_id="3", listeners="CONTROLLER://c3:9093")
    registrar = ControllerRegistrar(config, CLUSTER_ID, controller.register)
    controller.loader.add_publisher(registrar)
    await asyncio.sleep(1)
    return registrar


def test_a_controller_registers_as_soon_as_the_level_has_records_for_it() -> None:
    async def main() -> None:
        controller = ActiveController(level=1)
        registrar = await registrar_of(controller)
        assert controller.asked == []
        controller.write(r.feature_record(METADATA_VERSION, 2))
        await asyncio.sleep(1)
        assert registrar.is_registered
        found = controller.loader.image.controllers[3]
        assert found.incarnation_id == registrar.incarnation_id
        assert [(e.name, e.host, e.port) for e in found.endpoints] == [("CONTROLLER", "c3", 9093)]
        assert found.feature_ranges == {
            **{name: tuple(levels) for name, levels in SUPPORTED.items()},
            KRAFT_VERSION: (0, 1),
        }
        assert len(controller.asked) == 1
        await registrar.stop()

    virtual_time.run(main())


def test_a_controller_asks_again_with_growing_pauses_until_it_is_registered() -> None:
    async def main() -> None:
        controller = ActiveController(down=6)
        registrar = await registrar_of(controller)
        assert not registrar.is_registered
        early = len(controller.asked)
        assert early < 6
        await asyncio.sleep(60)
        assert registrar.is_registered
        assert len(controller.asked) == 7
        await registrar.stop()

    virtual_time.run(main())


def test_a_forgotten_controller_registers_again_but_does_not_fight_another_of_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        controller = ActiveController()
        registrar = await registrar_of(controller)
        gone = pb.UnregisterControllerRecord(controller_id=3)
        controller.write(pb.MetadataRecord(unregister_controller=gone))
        await asyncio.sleep(1)
        assert registrar.is_registered
        for level in (1, 2):
            controller.write(r.feature_record(METADATA_VERSION, level))
            await asyncio.sleep(1)
        assert registrar.is_registered
        asked = len(controller.asked)
        twin = controller.asked[-1]
        twin.incarnation_id = UUID(int=99).bytes
        await controller.register(twin, 0)
        for _ in range(240):
            await asyncio.sleep(0.5)
            controller.write(pb.MetadataRecord(no_op=pb.NoOpRecord()))
        assert not registrar.is_registered
        assert len(controller.asked) == asked + 1, "only the twin's own request"
        assert caplog.text.count("another process registered") == 1, "told, but not each time"
        await registrar.stop()

    virtual_time.run(main())


# --- real controllers ---------------------------------------------------------------------------


async def update_all(node: RealNode, levels: Mapping[str, int], kind: int = 0) -> Any:
    """Sends UpdateFeatures to one node and returns its answer."""
    request = admin_pb2.UpdateFeaturesRequest(timeout_ms=20_000)
    for name, level in levels.items():
        request.updates.add(feature=name, level=level, type=kind)  # type: ignore[arg-type]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        return await admin_pb2_grpc.AdminStub(channel).UpdateFeatures(request, timeout=25)


async def update(node: RealNode, levels: Mapping[str, int], kind: int = 0) -> Any:
    """Returns the result of the only feature of an UpdateFeatures."""
    return (await update_all(node, levels, kind)).results[0]


def test_a_cluster_of_level_1_is_upgraded_while_it_runs_and_keeps_who_registered(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with real_controllers(tmp_path, first_levels={METADATA_VERSION: 1}) as nodes:
            first = await active(nodes)
            follower = next(n for n in nodes.values() if n is not first)
            await eventually(
                lambda: bool(follower.loader.image.features), "the first levels are committed"
            )
            assert dict(follower.loader.image.features) == {METADATA_VERSION: 1}
            assert (await update(follower, {METADATA_VERSION: 2})).error_code == 0
            await eventually(
                lambda: all(
                    sorted(n.loader.image.controllers) == [1, 2, 3] for n in nodes.values()
                ),
                "every controller is registered in every image",
            )
            # A voter that is down stays registered: it may return with a new version.
            before = follower.loader.image.controllers[follower.node_id]
            await follower.stop()
            await follower.start()
            await eventually(
                lambda: first.loader.image.controllers[follower.node_id] != before,
                "the new process registers itself",
            )

    asyncio.run(main())


def test_static_voters_become_dynamic_by_a_feature_level_through_any_controller(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with real_controllers(tmp_path) as nodes:
            first = await active(nodes)
            follower = next(n for n in nodes.values() if n is not first)
            both = {KRAFT_VERSION: 1, ELR_VERSION: 1}
            await eventually(
                lambda: len(first.loader.image.controllers) == 3, "all controllers are registered"
            )
            assert (await update_all(follower, both)).error_code == ErrorCode.INVALID_REQUEST
            # A new leader asks clients to retry.
            while (answer := await update(follower, {KRAFT_VERSION: 1})).error_code:
                assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            await eventually(
                lambda: all(n.raft.describe().kraft_version == 1 for n in nodes.values()),
                "every controller has voters in its log",
            )
            ids = {v.directory_id for v in follower.raft.describe().voters}
            assert ids == {UUID(int=node_id, version=4) for node_id in nodes}
            async with grpc.aio.insecure_channel(f"127.0.0.1:{follower.server.port}") as channel:
                stub = admin_pb2_grpc.AdminStub(channel)
                told = await stub.DescribeFeatures(admin_pb2.DescribeFeaturesRequest())
            assert {f.name: f.level for f in told.features}[KRAFT_VERSION] == 1
            assert sorted((n.node_id, n.is_controller) for n in told.nodes) == [
                *((node_id, True) for node_id in (1, 2, 3))
            ]

    asyncio.run(main())


# --- the first levels of a cluster --------------------------------------------------------------


def test_the_first_levels_are_written_down_and_read() -> None:
    disk = MemoryDirectory("disk")
    assert bootstrap.read_first_levels(disk) == FIRST_LEVELS
    levels = {METADATA_VERSION: 1, ELR_VERSION: 1}
    bootstrap.write_first_levels(disk, levels)
    disk.crash(keep="nothing")
    assert bootstrap.read_first_levels(disk) == levels


def test_damaged_first_levels_and_those_of_a_newer_version_stop_the_controller(
    tmp_path: Path,
) -> None:
    directory = OsDirectory(tmp_path)
    bootstrap.write_first_levels(directory, {METADATA_VERSION: 5})
    with pytest.raises(FatalError, match=r"bootstrap\.checkpoint.*install a version.*or format"):
        bootstrap.read_first_levels(directory)
    bootstrap.write_first_levels(directory, {METADATA_VERSION: 2})
    whole = (tmp_path / bootstrap.BOOTSTRAP_FILE).read_bytes()
    for broken in (whole[:100], whole[:-1], b"", whole[:160] + b"x" + whole[161:]):
        (tmp_path / bootstrap.BOOTSTRAP_FILE).write_bytes(broken)
        with pytest.raises(FatalError, match="damaged"):
            bootstrap.read_first_levels(directory)
