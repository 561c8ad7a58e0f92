"""The bill of materials names what is installed, and a licence that is not allowed is refused."""

from __future__ import annotations

import runpy
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SBOM = runpy.run_path(str(ROOT / "scripts" / "sbom.py"))


class Installed(Distribution):
    """A distribution of which only the metadata is there."""

    def __init__(self, *lines: str) -> None:
        self._text = "\n".join(["Metadata-Version: 2.4", "Name: it", "Version: 1", *lines, ""])

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path("/nonexistent") / path


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["License-Expression: MIT OR GPL-3.0-only"], None),
        (["License-Expression: Apache-2.0 WITH LLVM-exception AND MIT"], None),
        (["License: Apache License, Version 2.0"], None),
        (["License: see the file", "Classifier: License :: OSI Approved :: MIT License"], None),
        (["License-Expression: GPL-3.0-only AND MIT"], "GPL-3.0-only AND MIT"),
        (["License: of our own"], "of our own"),
        ([], "(none)"),
    ],
)
def test_a_licence_that_no_alternative_allows_is_refused(
    lines: list[str], told: str | None
) -> None:
    found = list(SBOM["problems"]([Installed(*lines)]))
    assert [f"it 1 has the licence {told!r}" in text for text in found] == [True] * bool(told)


def test_the_bill_has_each_package_of_an_extra_once_and_resolves_its_references() -> None:
    bill = SBOM["document"](SBOM["needed"]("tidemark[server]"), ["server"])
    refs = [component["bom-ref"] for component in bill["components"]]
    assert len(refs) == len(set(refs)) > 30
    own = bill["metadata"]["component"]["bom-ref"]
    edges = {edge["ref"]: set(edge["dependsOn"]) for edge in bill["dependencies"]}
    assert edges.keys() == {own, *refs}
    reached, waiting = set(), [own]
    while waiting:
        reached.add(ref := waiting.pop())
        waiting += edges[ref] - reached
    assert reached == {own, *refs}
    assert all(component["licenses"] for component in bill["components"])
