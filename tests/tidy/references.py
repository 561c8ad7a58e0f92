"""References in prose, docstrings and comments: what they name must exist.

Documents are named as `NAME.md`, with an anchor or without; paths as `node/server.py`, with
`::name` for a definition. Modules, and names in them, are dotted: `tidemark.records.header`. An
attribute is named with a class of the tree: `Class.attribute`. Tests, canaries and the numbers of
RULES.md (`RULES.md rule 4`, `RULES.md I9`) exist as well.
"""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.tidy.tree import ROOT, ClassInfo, all_classes, docstrings, texts
from tidemark.config import ServerConfig, TopicConfig
from tidemark.config.definition import keys_of

EXEMPT = ("tests/test_tidy.py", "tests/tidy/references.py", "LICENSE")
"""Files that name on purpose what does not exist."""

_TOPS = r"(?:tidemark|commitlog|snapshot|quorum|tiering|node|pyspark_tidemark|tests|scripts)"
_DOCUMENT = re.compile(r"(?<![\w/.:-])(?:\./)?((?:[\w-]+/)*[A-Za-z][\w-]*\.md)\b(#[\w-]+)?")
_OWN_ANCHOR = re.compile(r"\]\((#[\w-]+)\)")
_PATH = re.compile(rf"(?<![\w/.$-])((?:{_TOPS}|proto|helm)/[\w./-]*\w)(?:::([\w.]+))?")
_FILE = re.compile(r"(?<![\w/.*<%-])([a-z_][\w-]*\.py)\b(?:::([\w.]+))?")
_MODULE = re.compile(rf"`{{1,2}}({_TOPS}(?:\.\w+)+)(?:\(\))?`")
_ATTRIBUTE = re.compile(r"`{1,2}([A-Z]\w*)\.(\w+)(?:\([^`]*\))?`")
_TEST = re.compile(r"`(test_\w+)`")
_CANARY = re.compile(r"\bcanar(?:y|ies) ((?:[a-z]+(?:-[a-z]+)+(?:, and |, | and )?)+)")
_RULE = re.compile(r"\b[Rr]ules? (\d+)(?:(?:,| and| or| to) (\d+))?")
_INVARIANT = re.compile(r"\bI(\d+)\b")
_ENTRY = re.compile(r"^### (?:Rule (\d+)|I(\d+)):", re.MULTILINE)
_COMMENT = re.compile(r"^\s*#[: ]*(.*)$|  # (.*)$")
_PLAIN_BASES = re.compile(r"^(object|Protocol|NamedTuple|Generic|ABC)\b")


def prose_of(name: str, text: str) -> str:
    """Docstrings and comments of a Python file, all of another one; line breaks kept, so that
    positions give lines."""
    if not name.endswith(".py"):
        return text
    lines = [""] * (text.count("\n") + 2)
    for line, value in docstrings(text):
        for offset, part in enumerate(value.splitlines()):
            lines[line - 1 + offset] = part.strip()
    for number, line in enumerate(text.splitlines()):
        comment = _COMMENT.search(line)
        if comment and not lines[number]:
            lines[number] = comment[1] or comment[2] or ""
    return "\n".join(lines)


@functools.cache
def _slugs(document: str) -> frozenset[str]:
    """Anchors of a Markdown file, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", texts()[document], re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add("#" + kept.strip().replace(" ", "-"))
    return frozenset(found)


@functools.cache
def _numbers() -> tuple[frozenset[int], frozenset[int]]:
    """Numbers of the rules and of the invariants that RULES.md has."""
    pairs = _ENTRY.findall(texts().get("RULES.md", ""))
    return (
        frozenset(int(rule) for rule, _ in pairs if rule),
        frozenset(int(invariant) for _, invariant in pairs if invariant),
    )


@functools.cache
def _basenames() -> frozenset[str]:
    return frozenset(PurePosixPath(name).name for name in texts())


@functools.cache
def _tests() -> frozenset[str]:
    found: set[str] = set()
    for name, text in texts().items():
        if name.startswith("tests/") and name.endswith(".py"):
            found.update(re.findall(r"def (test_\w+)", text))
            found.add(PurePosixPath(name).stem)
    return frozenset(found)


@functools.cache
def _canaries() -> frozenset[str]:
    """Names of the planted bugs of the simulators."""
    worlds = ("sim", "sim/partitions", "sim/servers")
    places = [f"tests/{world}/canaries.py" for world in worlds]
    found = (re.findall(r'^    "([a-z-]+)": [A-Z]', texts()[p], re.MULTILINE) for p in places)
    return frozenset(name for names in found for name in names)


@functools.cache
def _messages() -> dict[str, frozenset[str]]:
    """Services and messages of the protocol with the names of their calls and fields."""
    found: dict[str, frozenset[str]] = {}
    for name, text in texts().items():
        if not name.endswith(".proto"):
            continue
        for match in re.finditer(r"\b(?:service|message|enum) (\w+) \{(.*?)^\}", text, re.S | re.M):
            found[match[1]] = found.get(match[1], frozenset()) | set(re.findall(r"\w+", match[2]))
    return found


def _defines(path: str, name: str) -> bool:
    """Whether a file defines a name: a function, class, assigned variable or attribute."""
    text = texts()[path]
    pattern = rf"(?:def|class) {name}\b|^\s*(?:self\.)?{name}(?:, \w+)*\s*[:=]|^{name} "
    return all(
        re.search(pattern.replace(name, part), text, re.MULTILINE) for part in name.split(".")
    )


def _base_name(base: str) -> str:
    return base.split("[")[0].split(".")[-1]


def _has_member(info: ClassInfo, name: str, seen: tuple[str, ...] = ()) -> bool:
    """Whether a class or a base of it has the member. True where a base is not of the tree, since
    nothing is known of it.
    """
    if name in info.members or hasattr(object, name):
        return True
    for base in info.bases:
        plain = _base_name(base)
        if plain in seen or _PLAIN_BASES.match(plain):
            continue
        known = all_classes().get(plain)
        if known is None:
            kind = getattr(builtins, plain, None)
            if not isinstance(kind, type) or hasattr(kind, name):
                return True
        elif any(_has_member(one, name, (*seen, plain)) for one in known):
            return True
    return False


def _resolves(dotted: str) -> bool:
    """Whether a dotted name leads to a module of the tree and on to something in it."""
    parts = dotted.split(".")
    if parts[:2] == ["tidemark", "v1"]:
        return True  # generated
    depth = 0
    while depth < len(parts) and (ROOT / "/".join(parts[: depth + 1])).is_dir():
        depth += 1
    path = "/".join(parts[:depth]) + "/__init__.py"
    if depth < len(parts) and "/".join(parts[: depth + 1]) + ".py" in texts():
        path = "/".join(parts[: depth + 1]) + ".py"
        depth += 1
    rest = parts[depth:]
    if not rest:
        return True
    if path not in texts():
        return False
    if not re.search(rf"\b{rest[0]}\b", texts()[path]):
        return False
    classes = all_classes().get(rest[0])
    return len(rest) == 1 or classes is None or any(_has_member(one, rest[1]) for one in classes)


@functools.cache
def _settings() -> frozenset[str]:
    return frozenset((*keys_of(ServerConfig), *keys_of(TopicConfig)))


def _document_problems(name: str, prose: str) -> Iterator[tuple[int, str]]:
    folder = PurePosixPath(name).parent
    for match in _DOCUMENT.finditer(prose):
        document, anchor = match[1], match[2]
        beside = (folder / document).as_posix()
        found = next((d for d in (beside, document) if d in texts()), None)
        if found is None and "/" not in document:
            found = next((d for d in texts() if d.endswith("/" + document)), None)
        if found is None:
            yield match.start(), f"there is no {document}"
        elif anchor and anchor not in _slugs(found):
            yield match.start(), f"{found} has no heading for {anchor}"
    if name.endswith(".md") and name in texts():
        for match in _OWN_ANCHOR.finditer(prose):
            if match[1] not in _slugs(name):
                yield match.start(), f"no heading for {match[1]}"


def _path_problems(prose: str) -> Iterator[tuple[int, str]]:
    for match in _PATH.finditer(prose):
        path, name = match[1], match[2]
        places = (ROOT / path, ROOT / f"{path}.py", ROOT / "proto" / path)
        if not any(place.exists() for place in places):
            yield match.start(), f"there is no {path}"
        elif name and path in texts() and not _defines(path, name):
            yield match.start(), f"{path} defines no {name}"
    for match in _FILE.finditer(prose):
        if match[1] not in _basenames():
            yield match.start(), f"there is no file {match[1]}"


def _name_problems(prose: str) -> Iterator[tuple[int, str]]:
    for match in _MODULE.finditer(prose):
        if match[1] not in _settings() and not _resolves(match[1]):
            yield match.start(), f"{match[1]} leads nowhere"
    for match in _ATTRIBUTE.finditer(prose):
        classes = all_classes().get(match[1])
        if classes is None or match[2] in _messages().get(match[1], ()):
            continue
        if not any(_has_member(info, match[2]) for info in classes):
            yield match.start(), f"{match[1]} has no {match[2]}"
    for match in _TEST.finditer(prose):
        if match[1] not in _tests():
            yield match.start(), f"there is no test {match[1]}"


def _rule_problems(prose: str) -> Iterator[tuple[int, str]]:
    rules, invariants = _numbers()
    joined = re.sub(r"\n[ #:]*", " ", prose)
    for match in _CANARY.finditer(joined):
        for name in re.findall(r"[a-z]+(?:-[a-z]+)+", match[1]):
            if name not in _canaries():
                yield 0, f"there is no canary {name}"
    for match in _RULE.finditer(joined):
        for number in match.groups():
            if number and int(number) not in rules:
                yield 0, f"RULES.md has no rule {number}"
    for match in _INVARIANT.finditer(prose):
        if int(match[1]) not in invariants:
            yield match.start(), f"RULES.md has no I{match[1]}"


def problems(name: str, text: str) -> list[str]:
    """References of the file `name` that lead nowhere."""
    if name in EXEMPT:
        return []
    prose = prose_of(name, text)
    found = [
        *_document_problems(name, prose),
        *_path_problems(prose),
        *_name_problems(prose),
        *_rule_problems(prose),
    ]
    return [f"{name}:{prose.count(chr(10), 0, at) + 1}: {problem}" for at, problem in found]
