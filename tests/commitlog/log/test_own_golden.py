"""Files that earlier versions of Tidemark wrote stay readable, with all their content."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    CleanShutdown,
    MetaProperties,
    OffsetCheckpoint,
)
from commitlog.disk.os_files import OsDirectory
from commitlog.dump import dump_file
from commitlog.log.opening import open_log
from tidemark.types import TopicPartition

ROOT = Path(__file__).parents[3]
VERSIONS = sorted((ROOT / "tests" / "golden").glob("tidemark-*"))
LOGS = [path for version in VERSIONS for path in sorted(version.iterdir()) if path.is_dir()]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", ROOT / "scripts/make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_golden"] = module
    spec.loader.exec_module(module)
    return module


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("path", LOGS, ids=_name)
def test_a_log_of_an_earlier_version_holds_what_it_held(
    path: Path, clean: bool, tmp_path: Path, script: ModuleType
) -> None:
    copy = tmp_path / path.name
    shutil.copytree(path, copy)
    partition = TopicPartition(path.name[:-2], 0)
    log = open_log(OsDirectory(copy), partition, script.CONFIG, now_ms=script.NOW_MS, clean=clean)
    log.update_high_watermark(log.log_end_offset)
    wanted = json.loads((path.parent / "expected.json").read_text())[path.name]
    assert json.loads(json.dumps(script.summary(log))) == wanted
    assert log.recovered_bytes_cut == 0
    log.close()
    for file in path.iterdir():
        if file.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            assert (copy / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("path", LOGS, ids=_name)
def test_its_dump_finds_no_damage(path: Path) -> None:
    directory = OsDirectory(path, create=False)
    for file in path.iterdir():
        kinds = {entry["kind"] for entry in dump_file(directory, file.name)}
        assert not kinds & {"damage", "mismatch"}, file.name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_the_small_files_of_an_earlier_version_are_read(version: Path) -> None:
    directory = OsDirectory(version, create=False)
    properties = MetaProperties.read(directory)
    assert properties is not None
    assert (properties.node_id, properties.directory_id) == (1, UUID(int=99))
    offsets = OffsetCheckpoint(directory, HIGH_WATERMARK_CHECKPOINT).read()
    expected = json.loads((version / "expected.json").read_text())
    assert {str(p): end for p, end in offsets.items()} == {
        name: found["log_end_offset"] for name, found in expected.items()
    }
    assert CleanShutdown(directory).broker_epoch() == 5


def test_this_version_writes_the_files_of_its_own_golden_folder(
    tmp_path: Path, script: ModuleType
) -> None:
    script.main(tmp_path)
    golden = VERSIONS[-1]
    names = sorted(str(p.relative_to(golden)) for p in golden.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    for name in names:
        if any(codec in name for codec in ("gzip", "lz4", "zstd", "snappy")):
            continue  # compression may differ between releases of the codecs' libraries
        if not name.endswith("expected.json"):
            assert (tmp_path / name).read_bytes() == (golden / name).read_bytes(), name
