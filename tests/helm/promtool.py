"""Series for promtool, made of two scrapes of real metrics: before a cause, and after it.

From then on gauges stay as they are, and counters go on as fast as between the two.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from tests.tools import found_tool

ALERTS = Path(__file__).parents[2] / "helm" / "tidemark" / "files" / "alerts.yaml"
INTERVAL_S = 30
_STEPS = 120

Scrape = Mapping[str, Iterable[Metric]]
"""Families by instance; an instance that is down has none."""


def series(before: Scrape, after: Scrape) -> list[dict[str, str]]:
    """The input series of a test of promtool."""
    first, last = _samples(before), _samples(after)
    found = []
    for name in sorted({*first, *last}):
        if name not in last:
            values = f"{first[name][0]:g} stale"
        else:
            value, is_counter = last[name]
            known = first.get(name, (0.0, True))[0]
            slope = value - known if is_counter else 0.0
            values = f"{known:g} {value:g}{slope:+g}x{_STEPS}"
        found.append({"series": name, "values": values})
    return found


def _samples(scrape: Scrape) -> dict[str, tuple[float, bool]]:
    """Values by series, and whether they are counters."""
    found = {}
    for instance, families in scrape.items():
        for family in families:
            for sample in family.samples:
                labels = {"instance": instance, **sample.labels}
                shown = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
                is_counter = family.type in ("counter", "histogram")
                found[f"{sample.name}{{{shown}}}"] = (float(sample.value), is_counter)
    return found


def firing(directory: Path, tests: Mapping[str, tuple[Scrape, Scrape]]) -> str:
    """Has promtool test that each named alert fires after its cause, and not before it.

    Returns its output; raises AssertionError if one does not.
    """
    groups = []
    for alert, (before, after) in tests.items():
        healthy, ill = series(before, before), series(before, after)
        for given, fires in ((healthy, 0), (ill, 1)):
            query = (
                f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0 or vector(0)'
            )
            groups.append(
                {
                    "name": f"{alert} {'fires' if fires else 'is silent'}",
                    "interval": f"{INTERVAL_S}s",
                    "input_series": given,
                    "promql_expr_test": [
                        {
                            "expr": query,
                            "eval_time": "45m",
                            "exp_samples": [{"labels": "{}", "value": fires}],
                        }
                    ],
                }
            )
    file = directory / "tests.yaml"
    told = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": groups}
    file.write_text(json.dumps(told), encoding="utf-8")
    return run("test", "rules", str(file))


def run(*arguments: str) -> str:
    """The output of promtool, which must succeed; without it the test is skipped."""
    promtool = found_tool("promtool")
    if promtool is None:
        pytest.skip("no promtool: run scripts/install-tools")
    command = [promtool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
