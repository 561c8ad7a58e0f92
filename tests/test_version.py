"""The version has one place, `tidemark.__version__`; whatever else tells it agrees."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from typer.testing import CliRunner

import tidemark
from tidemark.cli.main import app

ROOT = Path(__file__).parents[1]


def test_the_build_reads_the_version_from_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"]
    dynamic = settings["tool"]["setuptools"]["dynamic"]
    assert dynamic["version"] == {"attr": "tidemark.__version__"}
    assert version("tidemark") == tidemark.__version__, "run scripts/setup again"


def test_the_command_tells_it() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"tidemark {tidemark.__version__}\n"


def test_the_chart_runs_the_image_of_this_version() -> None:
    chart = ROOT / "helm" / "tidemark"
    described = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    assert described["appVersion"] == tidemark.__version__
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    assert values["image"]["tag"] == "", "an empty tag is the chart's appVersion"


def test_the_image_has_its_version_from_the_sources_alone() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert tidemark.__version__ not in text
    assert re.search(r"pip.* install .*\"?\.\[server\]", text)


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert newest in ("Unreleased", tidemark.__version__)
    told = re.findall(r"^## \[(\d.+?)\]|next release is (\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert tidemark.__version__ in {a or b for a, b in told}
