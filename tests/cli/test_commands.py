"""The command line without a cluster: help, JSON, errors as one line, formatting, dumping."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli import session
from tidemark.cli.consume import timestamp_of
from tidemark.cli.dev import choose_ports, existing_cluster_id, tier_settings
from tidemark.cli.main import app
from tidemark.cli.output import settings_of
from tidemark.cli.produce import split_line
from tidemark.cli.quorum import replication_of, status_of
from tidemark.client.models import QuorumDescription, QuorumReplica
from tidemark.errors import ConfigError
from tidemark.records import Record, encode_batch
from tidemark.types import uuid_from_text

runner = CliRunner()
PROPERTIES = """\
process.roles=broker
node.id=4
listeners=PLAINTEXT://127.0.0.1:9092
controller.quorum.voters=1@127.0.0.1:9192
log.dirs={directory}/data
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(PROPERTIES.format(directory=tmp_path))
    return path


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["storage"],
        ["storage", "format"],
        ["server"],
        ["dev"],
        ["topics"],
        ["topics", "create"],
        ["produce"],
        ["consume"],
        ["quorum"],
        ["quorum", "describe"],
        ["dump-log"],
        ["delete-records"],
        ["get-offsets"],
        ["log-dirs", "describe"],
        ["perf"],
        ["perf", "produce"],
        ["perf", "consume"],
        ["perf", "e2e"],
        ["transactions"],
        ["transactions", "abort"],
        ["transactions", "find-hanging"],
    ],
)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_random_uuid_is_an_id_in_text_and_json() -> None:
    uuid_from_text(runner.invoke(app, ["storage", "random-uuid"]).stdout.strip())
    uuid_from_text(
        json.loads(runner.invoke(app, ["storage", "random-uuid", "--json"]).stdout)["uuid"]
    )


def test_format_then_info_then_refusal(properties: Path) -> None:
    cluster = "AAAAAAAAQACAAAAAAAAAAQ"
    options = ["-c", str(properties), "-t", cluster]
    assert "node 4" in runner.invoke(app, ["storage", "format", *options]).stdout
    again = runner.invoke(app, ["storage", "format", *options])
    assert again.exit_code == 1
    assert again.stderr.startswith("tidemark: ")
    assert "--ignore-formatted" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    kept = runner.invoke(app, ["storage", "format", *options, "--ignore-formatted", "--json"])
    assert json.loads(kept.stdout)["cluster_id"] == cluster
    (row,) = json.loads(
        runner.invoke(app, ["storage", "info", "-c", str(properties), "--json"]).stdout
    )
    assert (row["cluster_id"], row["node_id"]) == (cluster, 4)


def test_a_broken_properties_file_is_one_line_and_a_traceback_with_debug(tmp_path: Path) -> None:
    broken = tmp_path / "server.properties"
    broken.write_text("process.roles=broker\nno.such.setting=1\n")
    result = runner.invoke(app, ["server", "-c", str(broken)])
    assert result.exit_code == 1
    assert "no.such.setting" in result.stderr
    assert "Traceback" not in result.stderr
    shown = runner.invoke(app, ["--debug", "server", "-c", str(broken)])
    assert isinstance(shown.exception, ConfigError)


def test_an_unreachable_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_REACH_S", 0)
    for command in (["topics", "list"], ["metadata", "ls"], ["quorum", "describe", "--status"]):
        result = runner.invoke(app, [*command, "--bootstrap-server", "127.0.0.1:1,127.0.0.1:2"])
        assert result.exit_code == 1
        assert "no node answers (127.0.0.1:1: " in result.stderr
        assert "127.0.0.1:2: " in result.stderr
        assert result.stderr.count("\n") == 1
    for wrong in ("nonsense", ",", "h:x"):
        result = runner.invoke(app, ["topics", "list", "--bootstrap-server", wrong])
        assert result.stderr.startswith("tidemark: --bootstrap-server")


def test_options_that_exclude_each_other_are_refused() -> None:
    assert runner.invoke(app, ["quorum", "describe"]).exit_code == 1
    wrong = ["consume", "t", "--from-beginning", "--from-timestamp", "1"]
    assert "either" in runner.invoke(app, wrong).stderr
    assert runner.invoke(app, ["topics", "create", "t", "--config", "nonsense"]).exit_code == 1


def test_dump_log_shows_records_as_text_and_json(tmp_path: Path) -> None:
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(encode_batch([Record(0, 5, b"k", b"hello")]))
    text = runner.invoke(app, ["dump-log", "--print-data-log", str(segment)])
    assert "baseOffset: 0" in text.stdout
    assert "payload: hello" in text.stdout
    batches_only = runner.invoke(app, ["dump-log", str(segment)])
    assert "payload" not in batches_only.stdout
    rows = [
        json.loads(line)
        for line in runner.invoke(
            app, ["dump-log", "--print-data-log", "--json", str(segment)]
        ).stdout.splitlines()
    ]
    assert [row["kind"] for row in rows] == ["file", "start", "batch"]
    assert rows[-1]["records"][0]["payload"] == "hello"
    assert runner.invoke(app, ["dump-log", str(tmp_path / "none.log")]).exit_code == 1


def test_dump_log_decodes_cluster_metadata(tmp_path: Path) -> None:
    from tidemark.v1.metadata_pb2 import MetadataRecord

    record = MetadataRecord()
    record.topic.name = "flights"
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(encode_batch([Record(0, 0, None, record.SerializeToString())]))
    result = runner.invoke(app, ["dump-log", "--cluster-metadata-decoder", str(segment)])
    assert '"name": "flights"' in result.stdout


def test_an_index_that_contradicts_its_log_fails_the_check(tmp_path: Path) -> None:
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(encode_batch([Record(0, 5, b"k", b"hello")]))
    index = tmp_path / f"{0:020d}.index"
    index.write_bytes((99).to_bytes(4, "big") + (0).to_bytes(4, "big"))
    result = runner.invoke(app, ["dump-log", "--verify-index-only", str(index)])
    assert result.exit_code == 1
    assert "(CORRUPT_MESSAGE)" in result.stderr


def test_lines_become_keys_and_values() -> None:
    assert split_line(b"a:b:c", None) == (None, b"a:b:c")
    assert split_line(b"a:b:c", ":") == (b"a", b"b:c")
    with pytest.raises(ConfigError, match="separator"):
        split_line(b"abc", ":")


def test_timestamps_are_ms_or_iso() -> None:
    assert timestamp_of("1372896000000") == 1372896000000
    assert timestamp_of("2013-07-04T00:00") == 1372896000000
    assert timestamp_of("2013-07-04T02:00+02:00") == 1372896000000
    with pytest.raises(ConfigError):
        timestamp_of("tomorrow")


def test_settings_are_key_and_value() -> None:
    assert settings_of(["a=1", "b=c=d"]) == {"a": "1", "b": "c=d"}
    with pytest.raises(ConfigError):
        settings_of(["a"])


def test_quorum_rows_name_leader_and_lag() -> None:
    quorum = QuorumDescription(
        1,
        5,
        100,
        (QuorumReplica(1, None, 110, 7, 7), QuorumReplica(2, None, 100, 6, 5)),
        (QuorumReplica(4, None, None, None, None),),
        (),
    )
    assert status_of(quorum, "id")["MaxFollowerLag"] == 10
    rows = replication_of(quorum)
    assert [row["Status"] for row in rows] == ["Leader", "Voter", "Observer"]
    assert [row["Lag"] for row in rows] == [0, 10, None]


def test_dev_chooses_ports_tier_and_the_cluster_of_old_data(tmp_path: Path) -> None:
    ports = choose_ports(3, 3)
    assert len(set(ports)) == 6
    assert tier_settings(tmp_path)["rsm.config.dir"] == str(tmp_path.resolve())
    assert existing_cluster_id(tmp_path) is None
    (tmp_path / "broker-4").mkdir()
    (tmp_path / "broker-4" / "meta.properties").write_text("cluster.id=abc\nnode.id=4\n")
    assert existing_cluster_id(tmp_path) == "abc"
