"""Lines of a node's log: JSON, repeats told once, levels by Kafka's names."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark import logs


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_of_json_has_time_level_logger_node_and_message() -> None:
    stream = io.StringIO()
    logs.setup(logging.INFO, "json", 4, stream)
    logging.getLogger("node.tale").warning("disk %s\nis full", "/data")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("node.tale").exception("it failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARN",
        "logger": "node.tale",
        "node_id": 4,
        "message": "disk /data\nis full",
    }
    assert second["level"] == "ERROR"
    assert second["exception"].endswith("ValueError: why")


class Heard:
    """Lines that pass a filter at a time in s."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.repeats = logs.Repeats(lambda: self.now_s)

    def says(self, at_s: float, text: str, *args: object, level: int = logging.INFO) -> str | None:
        self.now_s = at_s
        record = logging.LogRecord("node.tale", level, "file", 1, text, args, None)
        return record.getMessage() if self.repeats.filter(record) else None


def test_a_line_that_comes_each_second_is_told_once_a_minute_with_its_count() -> None:
    heard = Heard()
    told = [heard.says(second, "no answer of %d", 4) for second in range(121)]
    assert [(n, line) for n, line in enumerate(told) if line is not None] == [
        (0, "no answer of 4"),
        (60, "no answer of 4 (and 59 times more in 60 s)"),
        (120, "no answer of 4 (and 59 times more in 60 s)"),
    ]


def test_lines_that_differ_are_all_told_and_so_are_rare_ones() -> None:
    heard = Heard()
    assert heard.says(0, "no answer of %d", 4) == "no answer of 4"
    assert heard.says(0, "no answer of %d", 5) == "no answer of 5"
    assert heard.says(0, "no answer of %d", 4, level=logging.ERROR) == "no answer of 4"
    assert heard.says(60, "no answer of %d", 4) == "no answer of 4"
    assert [heard.says(1, "detail", level=logging.DEBUG) for _ in range(2)] == ["detail"] * 2


def test_the_memory_of_lines_is_bounded_and_wrong_arguments_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_LINES_MAX", 2)
    heard = Heard()
    for number in range(3):
        heard.says(0, "line %d", number)
    assert heard.says(1, "line %d", 0) == "line 0"
    assert heard.says(1, "line %d", 2) is None
    record = logging.LogRecord("node.tale", logging.INFO, "file", 1, "%d", ("x",), None)
    assert heard.repeats.filter(record)


def test_levels_have_kafkas_names_and_are_inherited() -> None:
    logger = logging.getLogger("tale.of.levels")
    logging.getLogger().setLevel(logging.INFO)
    assert logs.levels()["tale.of.levels"] == "INFO"
    logs.set_level("tale.of", "debug")
    assert (logger.getEffectiveLevel(), logs.levels()["tale.of.levels"]) == (10, "DEBUG")
    logs.set_level("tale.of", None)
    assert logs.levels()["tale.of.levels"] == "INFO"
    logs.set_level("root", "ERROR")
    assert logs.levels()["root"] == logs.levels()["tale.of.levels"] == "ERROR"


@pytest.mark.parametrize(
    ("name", "level", "told"),
    [
        ("no.such.tale", "INFO", "no logger"),
        ("root", "LOUD", "none of TRACE, DEBUG, INFO, WARN, ERROR, FATAL"),
        ("root", None, "always has a level"),
    ],
)
def test_what_is_no_logger_or_no_level_is_refused(name: str, level: str | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        logs.set_level(name, level)


def test_a_node_writes_json_when_its_settings_say_so(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "node.id=7\nprocess.roles=broker,controller\nlog.format=json\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.voters=7@127.0.0.1:19093\n"
        f"log.dirs={tmp_path}/data\n"
    )
    told = "from tidemark.cli.main import run; run()"
    command = [sys.executable, "-c", told, "server", "-c", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in found.stderr.splitlines() if line.startswith("{")]
    assert found.returncode == 1
    assert {line["node_id"] for line in lines} == {7}
