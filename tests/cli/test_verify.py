"""`tidemark verify`: exit status, findings as text and as JSON, and the file it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from typer.testing import CliRunner

from tidemark.cli.main import app

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.0"
runner = CliRunner()


def test_sound_directories_and_a_single_partition_pass() -> None:
    result = runner.invoke(app, ["verify", str(GOLDEN), str(GOLDEN / "compacted-0")])
    assert result.exit_code == 0, result.output
    assert "0 damaged, 0 to note" in result.stdout


def test_damage_is_named_by_file_and_byte_and_fails(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "logs")
    log = tmp_path / "logs" / "codec-none-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 4
    log.write_bytes(data)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    result = runner.invoke(app, ["verify", str(tmp_path / "logs"), "--json"])
    assert result.exit_code == 1
    *found, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert summary["kind"] == "summary" and summary["damaged"] == len(found) >= 1
    assert found[0]["path"] == str(log) and found[0]["position"] == 0
    assert found[0]["reason"] == "the CRC check fails"
    text = runner.invoke(app, ["verify", str(log.parent)])
    assert f"damage: {log}, byte 0: the CRC check fails" in text.stdout
    assert text.exit_code == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_path_that_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "no log directory"), (tmp_path / "gone", "no directory")):
        result = runner.invoke(app, ["verify", str(path)])
        assert result.exit_code == 1 and said in result.stderr
