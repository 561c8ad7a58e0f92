"""Software bill of materials in CycloneDX 1.6, of what is installed, and a check of licences.

    scripts/sbom [EXTRA...] > tidemark.cdx.json    (by default what a node runs on: server)
    scripts/sbom --check                           (licences of all that setup installs)

Names, versions, licences and requirements come from the metadata of the distributions (PEP 639, or
the older fields). The output has no time and no random number, so the same environment gives the
same file.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.wheel.environment import needed

PERMISSIVE = {
    *("Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT", "MIT-0", "ISC", "0BSD", "Zlib"),
    *("BSD-2-Clause", "BSD-3-Clause", "BSD", "PSF-2.0", "CC0-1.0", "Unlicense"),
}
WEAK_COPYLEFT = {
    # Used unchanged, as packages of their own, which these licences allow to any program.
    *("MPL-2.0", "LGPL-2.1-or-later"),
}
ALLOWED = PERMISSIVE | WEAK_COPYLEFT

# Words of older metadata. Those of BSD do not always say how many clauses, and all are allowed.
_WORDS = {
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD",
    "CC0": "CC0-1.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def license_of(owner: Distribution) -> str:
    """Its licence in SPDX, or in its own words; empty if it names none."""
    told = [*_field(owner, "License-Expression"), *_field(owner, "License")]
    classifiers = _field(owner, "Classifier")
    told += [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    for text in told:
        if text in _WORDS:
            return _WORDS[text]
        if is_spdx(text):
            return text
    return told[0] if told else ""


def _field(owner: Distribution, name: str) -> list[str]:
    """First lines of a field of its metadata, as often as it is there."""
    return [text.partition("\n")[0] for text in owner.metadata.get_all(name) or () if text]


def is_spdx(text: str) -> bool:
    try:
        canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return False
    return True


def is_allowed(expression: str) -> bool:
    """Whether one of the alternatives is allowed in all its parts; AND binds closer than OR."""
    return any(
        all(part.strip() in ALLOWED for part in re.split(r"\bAND\b", alternative))
        for alternative in re.split(r"\bOR\b", expression)
    )


def problems(found: Iterable[Distribution]) -> Iterator[str]:
    """Distributions whose licence is not allowed, a sentence each."""
    for owner in found:
        told = license_of(owner)
        if not is_allowed(told):
            yield (
                f"{owner.name} {owner.version} has the licence {told or '(none)'!r}: replace it, "
                "or add the licence to scripts/sbom.py with the reason"
            )


def reference(owner: Distribution) -> str:
    """Its package URL."""
    return f"pkg:pypi/{canonicalize_name(owner.name)}@{owner.version}"


def component(owner: Distribution, kind: str) -> dict[str, Any]:
    told = license_of(owner)
    name = {"license": {"name": told}}
    return {
        "type": kind,
        "bom-ref": reference(owner),
        "name": owner.name,
        "version": owner.version,
        "description": owner.metadata["Summary"] or "",
        "licenses": [{"expression": told} if is_spdx(told) else name] if told else [],
        "purl": reference(owner),
    }


def refs(
    found: Mapping[str, Distribution], owner: Distribution, extras: Iterable[str]
) -> list[str]:
    """Package URLs of what a distribution with these extras requires, of those found."""
    names = set()
    for requirement in map(Requirement, owner.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            names.add(canonicalize_name(requirement.name))
    return sorted(reference(found[name]) for name in names if name in found)


def document(found: Mapping[str, Distribution], extras: Sequence[str]) -> dict[str, Any]:
    """The whole bill: Tidemark with these extras, what it brings, and who needs what."""
    own = distribution("tidemark")
    edges = [{"ref": reference(own), "dependsOn": refs(found, own, extras)}]
    edges += [{"ref": reference(o), "dependsOn": refs(found, o, ("",))} for o in found.values()]
    body = {
        "metadata": {"component": component(own, "application")},
        "components": [component(owner, "library") for _, owner in sorted(found.items())],
        "dependencies": sorted(edges, key=lambda edge: str(edge["ref"])),
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": serial.urn}
    return {**head, "version": 1, **body}


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 without problems."""
    if arguments == ["--check"]:
        found = list(problems(needed("tidemark[dev]").values()))
        print("\n".join(found) if found else "all licences are allowed")
        return 1 if found else 0
    extras = arguments or ["server"]
    bill = document(needed(f"tidemark[{','.join(extras)}]"), extras)
    print(json.dumps(bill, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
