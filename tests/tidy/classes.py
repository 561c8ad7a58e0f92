"""Shape of classes: size, names, inheritance and wiring.

A class has at most 25 public methods and 20 attributes. It is not split over modules of one room
by inheritance, where a base with one heir is a part of that heir. No `on_*`
attribute is assigned from outside: callbacks are given at construction. No two public classes of
the rooms share a name. Where they do, a comment `# same name as PLACE: reason` stands above the
later ones.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tests.tidy.tree import ClassInfo, nodes

METHODS_MAX = 25
ATTRIBUTES_MAX = 20

_SAME_NAME = re.compile(r"#\s*same name as \S+: \w+")
_KINDS = re.compile(r"(Error|Exception|Protocol|NamedTuple|Enum|Generic|ABC)$")


def sizes_beyond(classes: Iterable[ClassInfo]) -> dict[str, tuple[int, int]]:
    """(public methods, attributes) of each class beyond a limit, by `path:Class`."""
    found: dict[str, tuple[int, int]] = {}
    for info in classes:
        size = (len(info.public_methods), len(info.attributes))
        if size[0] > METHODS_MAX or size[1] > ATTRIBUTES_MAX:
            found[f"{info.module}:{info.name}"] = size
    return found


def size_problems(
    classes: Iterable[ClassInfo], allowed: Mapping[str, tuple[int, int]]
) -> Iterator[str]:
    """Classes beyond the limits and their allowance, and allowances that are too large."""
    found = sizes_beyond(classes)
    for place, size in found.items():
        known = allowed.get(place, (METHODS_MAX, ATTRIBUTES_MAX))
        if size[0] > known[0] or size[1] > known[1]:
            yield f"{place} has {size[0]} public methods and {size[1]} attributes, not {known}"
    for place, known in allowed.items():
        size = found.get(place, (0, 0))
        if size != known and size[0] <= known[0] and size[1] <= known[1]:
            yield f"{place}: its allowance {known} is larger than it is: {size or 'gone'}"


def split_classes(sources: Mapping[str, str], classes: Iterable[ClassInfo]) -> list[str]:
    """`path:Class` of each base with one heir, which is in another module of its room.

    A base that is instantiated, or is an error, a protocol or an enumeration, is none.
    """
    every = list(classes)
    heirs: dict[str, list[ClassInfo]] = {}
    for info in every:
        for base in info.bases:
            heirs.setdefault(base.split("[")[0].split(".")[-1], []).append(info)
    called: Counter[str] = Counter()
    for text in sources.values():
        for node in nodes(text):
            if isinstance(node, ast.Call):
                called[ast.unparse(node.func).split(".")[-1]] += 1
    found = []
    for info in every:
        mine = heirs.get(info.name, [])
        if len(mine) != 1 or mine[0].module == info.module or called[info.name]:
            continue
        same_room = PurePosixPath(mine[0].module).parent == PurePosixPath(info.module).parent
        plain = any(_KINDS.search(base.split("[")[0]) for base in info.bases)
        if same_room and not plain:
            found.append(f"{info.module}:{info.name}")
    return sorted(found)


def assigned_callbacks(name: str, text: str) -> list[str]:
    """`path:on_name` of each callback assigned to another object than `self`."""
    return [
        f"{name}:{node.attr}"
        for node in nodes(text)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr.startswith("on_")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]


def shared_names(sources: Mapping[str, str], classes: Iterable[ClassInfo]) -> list[str]:
    """Names that several public classes have, without a reason beside all of them but one."""
    by_name: dict[str, list[ClassInfo]] = {}
    for info in classes:
        if not info.name.startswith("_"):
            by_name.setdefault(info.name, []).append(info)
    found = []
    for name, same in by_name.items():
        explained = 0
        for info in same:
            lines = sources[info.module].splitlines()
            above = lines[max(0, info.line - 5) : info.line]
            explained += any(_SAME_NAME.search(line) for line in above)
        if explained < len(same) - 1:
            found.append(name)
    return sorted(found)
