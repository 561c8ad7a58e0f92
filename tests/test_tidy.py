"""The tree is tidy: style, references, shape of classes and voice, held by the checkers of
`tests.tidy`. Each checker is itself tested with planted faults.
"""

from __future__ import annotations

import pytest

from tests.tidy import classes, header, references, rooms, style, voice
from tests.tidy.allowances import SIZES, SPLIT, TABLES
from tests.tidy.tree import classes_of, own_classes, own_sources, texts


def _report(found: list[str]) -> str:
    return f"{len(found)} places:\n" + "\n".join(found)


def test_the_tree_is_tidy() -> None:
    found = [problem for name, text in texts().items() for problem in style.problems(name, text)]
    assert not found, _report(found)


def test_every_reference_leads_somewhere() -> None:
    found = [p for name, text in texts().items() for p in references.problems(name, text)]
    assert not found, _report(found)


def test_classes_keep_to_their_size() -> None:
    sized = [info for info in own_classes() if f"{info.module}:{info.name}" not in TABLES]
    found = list(classes.size_problems(sized, SIZES))
    assert not found, _report(found)


def test_no_class_is_split_by_inheritance() -> None:
    assert set(classes.split_classes(own_sources(), own_classes())) == SPLIT


def test_callbacks_are_given_at_construction() -> None:
    assert [p for n, t in own_sources().items() for p in classes.assigned_callbacks(n, t)] == []


def test_no_two_classes_share_a_name_without_a_reason() -> None:
    assert classes.shared_names(own_sources(), own_classes()) == []


def test_rooms_have_faces() -> None:
    assert rooms.faceless(own_sources()) == []


def test_outsiders_import_only_what_a_face_names() -> None:
    found = rooms.unnamed(own_sources())
    assert not found, _report(found)


def test_the_batch_header_has_one_home() -> None:
    found = [place for n, t in own_sources().items() for place in header.defined(n, t)]
    assert found == [], f"use tidemark.records.header: {found}"


def test_docstrings_and_comments_keep_to_the_voice() -> None:
    python = {name: text for name, text in texts().items() if name.endswith(".py")}
    found = [problem for name, text in python.items() for problem in voice.problems(name, text)]
    assert not found, _report(found)


# --- planted faults: style ------------------------------------------------------------------------


def _function_of(lines: int) -> str:
    return '"""Says."""\ndef long():\n' + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "no docstring"),
        ('"""."""\n', "says nothing"),
        ('"""Says."""\n' + "x = 1\n" * 599, "600 lines"),
        (_function_of(70), "long has 70 lines"),
        (f'"""Says."""\nx = "{"a" * 95}"\n', "101 characters"),
        ('"""Says."""\ntry:\n    x = 1\nexcept:\n    x = 2\n', "bare except"),
        ('"""Says."""\nprint(1)\n', "print outside"),
        ('"""Says."""\n# TO' + "DO: later\n", "left to do"),
        ('"""Says."""\ndef f(fetch_timeout): ...\n', "without its unit"),
        ('"""Says."""\nclass A:\n    retry_delay: int = 1\n', "without its unit"),
        ('"""Says."""\nx = "/wo' + 'rk/main"\n', "outside the project"),
        ('"""Says."""\nx = "files.pythonho' + 'sted.org"\n', "outside the project"),
    ],
)
def test_a_planted_fault_is_found(text: str, said: str) -> None:
    found = style.problems("tidemark/planted.py", text)
    assert len(found) == 1 and said in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tidemark/a.py", _function_of(69)),
        ("tidemark/a.py", '"""Says."""\n' + "x = 1\n" * 598),
        ("tidemark/cli/a.py", '"""Says."""\nprint(1)\n'),
        ("tidemark/a.py", '"""Says."""\ndef f(fetch_timeout_ms, timeout=None): ...\n'),
        ("tests/a/__init__.py", ""),
        ("helm/tidemark/values.yaml", "dataDir: /var/lib/tidemark\n"),
        ("A.md", "see https://example.org/" + "a" * 100 + "\n"),
        ("tests/sim/CANARIES.md", "a" * 101 + "\n"),
    ],
)
def test_what_is_allowed_passes(name: str, text: str) -> None:
    assert style.problems(name, text) == []


@pytest.mark.parametrize("text", ["a" * 101, "| " + "a " * 50, "```\n" + "a" * 101 + "\n```"])
def test_long_lines_of_prose_are_found(text: str) -> None:
    assert [p.split(": ")[1] for p in style.problems("A.md", text + "\n")] != []


# --- planted faults: references -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("A.md", "see NOWHERE.md", "there is no NOWHERE.md"),
        ("A.md", "[rules](RULES.md#rule-99)", "RULES.md has no heading for #rule-99"),
        ("a.py", '"""See ARCHI' + 'TECTURE.md section 3."""\n', "there is no ARCHI" + "TECTURE.md"),
        ("A.md", "in commitlog/nowhere.py", "there is no commitlog/nowhere.py"),
        ("a.py", '"""Says."""\n# see nowhere_at_all.py\n', "no file nowhere_at_all.py"),
        ("A.md", "`node/server.py::no_such_name`", "defines no no_such_name"),
        ("A.md", "`tidemark.records.nothing`", "leads nowhere"),
        ("a.py", '"""As `tidemark.records.header.nothing` has it."""\n', "leads nowhere"),
        ("A.md", "`Partition.is_nothing`", "Partition has no is_nothing"),
        ("a.py", '"""Says."""\nx = 1  # `Partition.is_nothing()`\n', "Partition has no is_nothing"),
        ("A.md", "`test_that_is_not_there`", "there is no test"),
        ("A.md", "the canaries skips-fsync and flies-away", "no canary flies-away"),
        ("a.py", '"""Keeps RULES.md rule 99."""\n', "no rule 99"),
        ("a.py", '"""Keeps RULES.md\nrule 99."""\n', "no rule 99"),
        ("a.py", '"""Keeps rules 1 and 99."""\n', "no rule 99"),
        ("a.py", '"""Says."""\n# RULES.md I99\n', "no I99"),
    ],
)
def test_a_planted_reference_is_found(name: str, text: str, said: str) -> None:
    found = references.problems(name, text)
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("A.md", "see RULES.md#i6-nothing-below-the-high-watermark-is-cut"),
        ("A.md", "`node/server.py::run` and `node/server.py::Server.start`, header.py"),
        ("A.md", "`tidemark.records.header`, `tidemark.errors.ApiError.retriable`, `node.id`"),
        ("A.md", "`Partition.is_settled`, `Log.Produce` of the wire, `Path.exists`"),
        ("a.py", '"""Keeps rules 1 to 3, RULES.md I9."""\nx = "`Partition.is_nothing`"\n'),
        ("README.md", "run tests/test_tidy.py, `test_the_tree_is_tidy`"),
    ],
)
def test_references_that_lead_somewhere_pass(name: str, text: str) -> None:
    assert references.problems(name, text) == []


# --- planted faults: shape ------------------------------------------------------------------------


def _class_of(methods: int, attributes: int) -> str:
    body = "".join(f"    def m{i}(self): self.a{i % attributes} = 1\n" for i in range(methods))
    return '"""Says."""\nclass A:\n' + body + "    def _hidden(self): ...\n"


@pytest.mark.parametrize(
    ("methods", "attributes", "faults"), [(25, 20, 0), (26, 1, 1), (22, 21, 1)]
)
def test_the_size_of_a_class_is_counted(methods: int, attributes: int, faults: int) -> None:
    found = classes_of("node/a.py", _class_of(methods, attributes))
    assert len(list(classes.size_problems(found, {}))) == faults


@pytest.mark.parametrize(("allowed", "faults"), [(30, 0), (29, 1), (31, 1)])
def test_an_allowance_is_what_it_is(allowed: int, faults: int) -> None:
    found = classes_of("node/a.py", _class_of(30, 2))
    assert len(list(classes.size_problems(found, {"node/a.py:A": (allowed, 2)}))) == faults


def test_an_allowance_for_nothing_is_found() -> None:
    assert list(classes.size_problems([], {"node/a.py:A": (30, 2)})) != []


def _split(sources: dict[str, str]) -> list[str]:
    return classes.split_classes(
        sources, [info for name, text in sources.items() for info in classes_of(name, text)]
    )


def test_a_class_split_by_inheritance_is_found() -> None:
    base, heir = '"""Says."""\nclass Half: ...\n', '"""Says."""\nclass Whole(Half): ...\n'
    assert _split({"node/a.py": base, "node/b.py": heir}) == ["node/a.py:Half"]
    assert _split({"node/a.py": base, "quorum/b.py": heir}) == []  # another room
    assert _split({"node/a.py": base, "node/b.py": heir + "x = Half()\n"}) == []  # used by itself
    assert _split({"node/a.py": base, "node/b.py": heir + "class Other(Half): ...\n"}) == []
    error = '"""Says."""\nclass Half(ValueError): ...\n'
    assert _split({"node/a.py": error, "node/b.py": heir}) == []
    assert _split({"node/a.py": base + "class Whole(Half): ...\n"}) == []


def test_a_callback_assigned_from_outside_is_found() -> None:
    text = '"""Says."""\ndef f(self, log):\n    log.on_roll = f\n    self.on_roll = f\n'
    assert classes.assigned_callbacks("node/a.py", text) == ["node/a.py:on_roll"]
    assert classes.assigned_callbacks("node/a.py", text.replace("log.on", "self.log.on")) != []


def test_classes_of_one_name_are_found() -> None:
    one, two = (
        '"""Says."""\nclass A: ...\nclass _B: ...\n',
        '"""Says."""\nclass A: ...\nclass _B: ...\n',
    )
    sources = {"node/a.py": one, "quorum/a.py": two}
    found = [info for name, text in sources.items() for info in classes_of(name, text)]
    assert classes.shared_names(sources, found) == ["A"]
    sources["quorum/a.py"] = two.replace("class A", "# same name as node/a.py: the wire's\nclass A")
    found = [info for name, text in sources.items() for info in classes_of(name, text)]
    assert classes.shared_names(sources, found) == []


@pytest.mark.parametrize(("lines", "faces"), [(9, 0), (10, 1), (25, 1), (26, 0)])
def test_a_room_without_a_face_is_found(lines: int, faces: int) -> None:
    text = '"""' + "Says.\n" * lines + '"""\n'
    assert len(rooms.faceless({"node/serving/__init__.py": text, "node/a.py": ""})) == 1 - faces


@pytest.mark.parametrize(
    "line",
    ["from node.a.inner import x", "from node.a import inner", "import node.a.inner"],
)
def test_an_import_past_the_face_is_found(line: str) -> None:
    room = {"node/a/__init__.py": '"""Outsiders import `face`."""\n', "node/a/face.py": ""}
    room["node/a/inner.py"] = '"""Says."""\n'
    assert len(rooms.unnamed(room | {"quorum/b.py": f"{line}\n"})) == 1
    assert len(rooms.unnamed(room | {"node/b.py": f"def f():\n    {line}\n"})) == 1
    assert rooms.unnamed(room | {"node/a/b.py": f"{line}\n"}) == []
    assert rooms.unnamed(room | {"quorum/b.py": f"{line}\n".replace("inner", "face")}) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("_HEADER_BYTES = 61", 1),
        ("CRC_AT: int = 17", 1),
        ('_PATCH = struct.Struct(">qii")', 1),
        ('_SIZE = struct.Struct(">8xi").unpack_from', 1),
        ('_STAMP = struct.Struct(">hiqq")', 1),
        ("_OTHER = 13", 0),
        ('_ENTRY = struct.Struct(">hqqqq")', 0),
        ('_COUNT = struct.Struct(">i")', 0),
        ("def f():\n    x = 61", 0),
    ],
)
def test_a_second_home_of_the_batch_header_is_found(line: str, found: int) -> None:
    text = f'"""Says."""\n{line}\n'
    assert len(header.defined("node/a.py", text)) == found
    assert header.defined(header.HOME, text) == []


# --- planted faults: voice ------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["What it is.", "Who waits.", "Where it lies.", "Whoever asks."])
def test_a_headless_docstring_is_found(words: str) -> None:
    text = f'"""Says."""\nclass A:\n    """{words}"""\n    x: int = 1\n    """{words}"""\n'
    assert len(voice.problems("node/a.py", text)) == 2


@pytest.mark.parametrize(
    "comment", ["# What it is.", "x = 1 " + " # who waits", "#: Where it lies"]
)
def test_a_headless_comment_is_found(comment: str) -> None:
    assert len(voice.problems("node/a.py", f'"""Says."""\n{comment}\n')) == 1


@pytest.mark.parametrize("words", [26, 30])
def test_a_long_sentence_is_found(words: int) -> None:
    text = '"""' + " ".join(["word"] * words) + '."""\n'
    found = voice.problems("node/a.py", text)
    assert len(found) == 1 and f"{words} words" in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("node/a.py", '"""Says what it is."""\n# The record\n# where the log ends.\n'),
        ("node/a.py", '"""' + ("word " * 24 + "word.\n\n") * 2 + '"""\n'),
        ("node/a.py", '"""Says.\n\n        ' + "a | b " * 30 + '\n\nEnds.\n"""\n'),
        ("tidemark/cli/a.py", '"""Says."""\n@app.command()\ndef f():\n    """What it is."""\n'),
    ],
)
def test_a_plain_voice_passes(name: str, text: str) -> None:
    assert voice.problems(name, text) == []
