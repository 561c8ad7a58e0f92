"""Clusters by name: which one a command asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.cli.context import path_of_contexts
from tidemark.cli.main import app
from tidemark.cli.session import Session

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TIDEMARK_BOOTSTRAP_SERVER", raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers that commands asked."""
    found: list[str] = []

    def admin(session: Session) -> Any:
        found.append(session.bootstrap)
        raise ConnectionError

    monkeypatch.setattr(Session, "admin", admin)
    return found


def call(*arguments: str, exit_code: int = 0, env: dict[str, str] | None = None) -> str:
    result = runner.invoke(app, list(arguments), env=env)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_the_nearest_choice_of_a_cluster_is_taken(asked: list[str]) -> None:
    variable = {"TIDEMARK_BOOTSTRAP_SERVER": "variable:1"}
    call("topics", "list", exit_code=1)
    call("context", "create", "home", "-b", "home:1,home:2")
    call("context", "create", "work", "-b", "work:1")
    call("topics", "list", exit_code=1)
    call("context", "use", "work")
    call("topics", "list", exit_code=1)
    call("--context", "home", "topics", "list", exit_code=1, env=variable)
    call("topics", "list", exit_code=1, env=variable)
    call("--context", "home", "topics", "list", "-b", "option:1", exit_code=1)
    call("topics", "list", exit_code=1)  # nothing of the calls before is left
    assert asked == [
        "127.0.0.1:9092",
        "home:1,home:2",
        "work:1",
        "home:1,home:2",
        "variable:1",
        "option:1",
        "work:1",
    ]


def test_contexts_are_listed_and_forgotten(asked: list[str]) -> None:
    call("context", "create", "home", "-b", "home:1")
    call("context", "create", "work", "--use", "-b", "work:1")
    assert call("context", "list").splitlines()[1:] == ["\thome\thome:1", "*\twork\twork:1"]
    call("context", "delete", "work")
    assert json.loads(call("context", "list", "--json")) == [
        {"name": "home", "bootstrap_server": "home:1", "in_use": False}
    ]
    call("topics", "list", exit_code=1)
    assert asked == ["127.0.0.1:9092"]
    assert path_of_contexts().stat().st_mode & 0o077 == 0


def test_unknown_names_wrong_addresses_and_a_damaged_file_are_told() -> None:
    assert "no context 'x'; there are: none" in call(
        "--context", "x", "topics", "list", exit_code=1
    )
    for command in ("use", "delete"):
        assert "no context 'x'" in call("context", command, "x", exit_code=1)
    assert "--bootstrap-server: " in call("context", "create", "x", "-b", "nowhere", exit_code=1)
    call("context", "create", "x", "-b", "x:1")
    path_of_contexts().write_text("{")
    assert "mend or remove it" in call("topics", "list", exit_code=1)
