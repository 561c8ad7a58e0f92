"""Histories as files: a killed writer, lines that are no entries, records that are damaged; and the
command that checks a file.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.story import Story
from tidemark.testing import checker
from tidemark.testing.history import (
    FaultNoted,
    History,
    HistoryError,
    identify,
    identity_of,
    read_history,
    to_line,
    value_of,
)


def saved(path: Path, story: Story) -> Path:
    path.write_text("".join(to_line(entry) + "\n" for entry in story.entries), encoding="utf-8")
    return path


def kept() -> Story:
    story = Story()
    story.producer("p")
    story.send("p", 1)
    story.acked("p", 1, 0)
    story.fault("broker 5 is killed")
    story.log("p/1")
    return story


def test_a_record_has_its_identity_until_a_byte_of_it_changes() -> None:
    identity = identity_of("p", 7, "key")
    value = value_of(identity, 50)
    assert identify(b"key", value) == identity == "p:7:key"
    assert identify(None, value_of(identity_of("p", 7, ""), 0)) == "p:7:"
    assert identify(b"other", value).startswith("damaged")
    assert identify(None, None).startswith("damaged")
    for at in range(len(value)):
        for bit in range(8):
            flipped = bytearray(value)
            flipped[at] ^= 1 << bit
            assert identify(b"key", bytes(flipped)) != identity


def test_a_line_that_the_writer_did_not_finish_is_left_out() -> None:
    whole = to_line(FaultNoted(1, "cut")) + "\n"
    assert read_history([whole, whole[:-5]]) == [FaultNoted(1, "cut")]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "7",
        "[]",
        '{"at_ms":1}',
        '{"is":"nothing","at_ms":1}',
        '{"is":"fault","at_ms":1}',
        '{"is":"fault","at_ms":1,"what":"cut","more":1}',
    ],
)
def test_a_line_that_is_no_entry_is_an_error_with_its_number(line: str) -> None:
    whole = to_line(FaultNoted(1, "cut"))
    with pytest.raises(HistoryError, match="line 2 "):
        read_history([whole + "\n", line + "\n"])


def test_entries_are_in_the_file_as_they_come() -> None:
    file = io.StringIO()
    history = History(lambda: 12.3456, file)
    history.note_fault("broker 4 is stopped")
    assert file.getvalue() == '{"is":"fault","at_ms":12.346,"what":"broker 4 is stopped"}\n'
    assert len(history.entries) == 1


def test_the_command_prints_verdicts_and_its_exit_status_is_the_result(tmp_path: Path) -> None:
    out = io.StringIO()
    good = saved(tmp_path / "good.jsonl", kept())
    assert checker.main([str(good)], out) == 0
    assert "kept         acknowledged                1 examined" in out.getvalue()
    assert "not examined acknowledged by one" in out.getvalue()
    story = kept()
    story.send("p", 2)
    story.acked("p", 2, 1)
    out = io.StringIO()
    assert checker.main([str(saved(tmp_path / "bad.jsonl", story))], out) == 1
    shown = out.getvalue()
    assert "BROKEN       acknowledged                2 examined" in shown
    assert "p:2:k was acknowledged at t-0 offset 1; nothing is there in the end" in shown
    assert '       7: {"is":"send"' in shown and '       8: {"is":"outcome"' in shown
    assert "the last fault before: 4: broker 5 is killed" in shown


def test_a_file_that_is_no_history_has_its_own_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n", encoding="utf-8")
    assert checker.main([str(path)]) == 2
    assert "line 1 is no entry" in capsys.readouterr().err
    assert checker.main([str(tmp_path / "missing")]) == 2


def test_a_report_of_very_many_findings_is_short() -> None:
    story = Story()
    story.producer("p")
    for sequence in range(20):
        story.send("p", sequence)
    text = checker.report(story.entries, checker.judge(story.entries))
    assert "every delivery ends: 15 more" in text


def test_the_command_runs_as_a_module(tmp_path: Path) -> None:
    path = saved(tmp_path / "good.jsonl", kept())
    command = [sys.executable, "-m", "tidemark.testing.checker", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept")
