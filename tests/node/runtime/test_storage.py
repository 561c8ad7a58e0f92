"""Directories of a node: formatting, and refusing those of other nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog.disk.checkpoints import CleanShutdown, MetaProperties
from commitlog.disk.os_files import OsDirectory
from node.broker import make_tier
from node.partition.cluster_view import ClusterView
from node.runtime.clock import Clock
from node.runtime.storage import format_storage, open_storage, random_cluster_id
from tests.node.fakes import broker_config
from tidemark.config import ServerConfig
from tidemark.errors import ConfigError, StorageError

CLUSTER = "8gSloHDwRxuSicFPSeS-4g"


def config_of(tmp_path: Path, node_id: int = 1, dirs: str = "a,b") -> ServerConfig:
    paths = ",".join(str(tmp_path / name) for name in dirs.split(","))
    return broker_config(node_id, log_dirs=paths)


def test_every_directory_is_formatted_with_an_id_of_its_own(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert len(format_storage(config, CLUSTER)) == 2
    storage = open_storage(config)
    assert storage.cluster_id == CLUSTER
    assert len(set(storage.directory_ids.values())) == 2
    found = MetaProperties.read(OsDirectory(tmp_path / "a"))
    assert found is not None
    assert (found.node_id, found.cluster_id) == (1, CLUSTER)


def test_a_formatted_directory_is_kept_or_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    format_storage(config, CLUSTER)
    before = open_storage(config).directory_ids
    with pytest.raises(StorageError, match=r"formatted already; use --ignore-formatted"):
        format_storage(config, CLUSTER)
    lines = format_storage(config, CLUSTER, ignore_formatted=True)
    assert all("left as it is" in line for line in lines)
    assert open_storage(config).directory_ids == before


def test_a_refused_format_writes_nothing(tmp_path: Path) -> None:
    format_storage(config_of(tmp_path, dirs="b"), CLUSTER)
    with pytest.raises(StorageError):
        format_storage(config_of(tmp_path), CLUSTER)
    assert not (tmp_path / "a" / "meta.properties").exists()


def test_the_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    format_storage(config_of(tmp_path), CLUSTER)
    with pytest.raises(StorageError, match=r"is of node 1, this node is 2.*node\.id or log\.dirs"):
        open_storage(config_of(tmp_path, node_id=2))
    with pytest.raises(StorageError, match="is of node 1"):
        format_storage(config_of(tmp_path, node_id=2), CLUSTER, ignore_formatted=True)
    with pytest.raises(StorageError, match=f"is of cluster {CLUSTER}"):
        format_storage(config_of(tmp_path), random_cluster_id(), ignore_formatted=True)


def test_directories_of_two_clusters_do_not_start_together(tmp_path: Path) -> None:
    format_storage(config_of(tmp_path, dirs="a"), CLUSTER)
    format_storage(config_of(tmp_path, dirs="b"), random_cluster_id())
    with pytest.raises(StorageError, match="is of cluster"):
        open_storage(config_of(tmp_path))


def test_an_unformatted_or_missing_directory_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="tidemark storage format"):
        open_storage(config_of(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="tidemark storage format"):
        open_storage(config_of(tmp_path))


@pytest.mark.parametrize("damage", ["missing", "not formatted", "garbage", "a file"])
def test_a_directory_of_no_use_is_left_alone_while_another_is_good(
    damage: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path)
    format_storage(config, CLUSTER)
    first, second = config.log_dirs
    assert config.metadata_directory == first
    for path in config.log_dirs:
        CleanShutdown(OsDirectory(path)).write(17)
    assert open_storage(config).previous_broker_epoch(config) == 17
    Path(second, "meta.properties").unlink()
    if damage == "garbage":
        Path(second, "meta.properties").write_bytes(bytes(range(256)))
    elif damage != "not formatted":
        shutil.rmtree(second)
    if damage == "a file":
        Path(second).write_text("no directory")
    storage = open_storage(config)
    assert list(storage.directories) == [first]
    online, offline = storage.log_directories(config)
    assert (online.is_online, offline.is_online, offline.path) == (True, False, second)
    assert offline.failure == storage.unusable[second] != ""
    assert storage.previous_broker_epoch(config) == -1
    with pytest.raises(StorageError, match="offline"):
        offline.list()
    assert damage != "missing" or not Path(second).exists(), "nothing is made in its place"


def test_the_tiers_cache_is_not_made_in_place_of_a_disk_that_is_away(tmp_path: Path) -> None:
    config = broker_config(
        1,
        log_dirs=f"{tmp_path / 'away'},{tmp_path / 'b'}",
        metadata_log_dir=str(tmp_path / "b"),
        remote_log_storage_system_enable="true",
        remote_log_storage_manager_class_name="directory",
        rsm_config_dir=str(tmp_path / "tier"),
    )
    format_storage(config, CLUSTER)
    shutil.rmtree(tmp_path / "away")
    assert make_tier(config, Clock(), open_storage(config), ClusterView(config)) is not None
    assert not (tmp_path / "away").exists()
    assert (tmp_path / "b" / "remote-log-index-cache").is_dir()
    kept = tmp_path / "b" / "remote-log-chunk-cache"
    kept.mkdir()
    format_storage(config, CLUSTER, ignore_formatted=True)  # the disk is back
    tier = make_tier(config, Clock(), open_storage(config), ClusterView(config))
    assert tier is not None
    tier._reader.segments._on_disk.open()
    assert not kept.exists()


def test_the_metadata_logs_directory_must_be_good(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    format_storage(config, CLUSTER)
    Path(config.metadata_directory, "meta.properties").unlink()
    with pytest.raises(StorageError, match="tidemark storage format"):
        open_storage(config)


def test_a_copy_of_a_directory_is_noticed(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    format_storage(config, CLUSTER)
    text = (tmp_path / "a" / "meta.properties").read_text()
    (tmp_path / "b" / "meta.properties").write_text(text)
    with pytest.raises(StorageError, match="one is a copy"):
        open_storage(config)


def test_one_directory_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="twice"):
        config_of(tmp_path, dirs="a,../" + tmp_path.name + "/a")


def test_a_directory_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    format_storage(config, CLUSTER)
    first, second = open_storage(config), open_storage(config)
    first.lock(config)
    with pytest.raises(StorageError):
        second.lock(config)
    first.release()
    second.lock(config)
    second.release()
