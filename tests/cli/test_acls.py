"""`tidemark acls apply`: entries of files against those of the cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.fake_admin import FakeAdmin, is_refusal
from tests.cli.test_operator_commands import admin as admin
from tests.cli.test_operator_commands import call
from tidemark.security import acls
from tidemark.security.acls import AclBinding, AclFilter


class FakeAcls:
    """Entries of a cluster, as `tidemark.client.admin_security.SecurityAdmin` has them."""

    def __init__(self, *entries: AclBinding) -> None:
        self.entries = set(entries)
        self.changes: list[str] = []

    def describe_acls(self, chosen: AclFilter | None = None) -> list[AclBinding]:
        return [one for one in self.entries if chosen is None or chosen.selects(one)]

    def create_acls(self, entries: Sequence[AclBinding]) -> None:
        self.changes.append("create")
        self.entries |= set(entries)

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        self.changes.append("delete")
        gone = [one for one in self.entries if any(f.selects(one) for f in filters)]
        self.entries -= set(gone)
        return gone


def allow(name: str, operation: int, principal: str = "User:ann") -> AclBinding:
    return AclBinding(acls.TOPIC, name, acls.LITERAL, principal, "*", operation, acls.ALLOW)


def written(directory: Path, *options: str) -> str:
    """A file of what `acls add` with these options would add."""
    file = directory / f"{len(list(directory.iterdir()))}.json"
    file.write_text(call("acls", "add", "--dry-run", "--json", *options))
    return str(file)


def test_entries_of_files_are_added_once_and_others_stay(admin: FakeAdmin, tmp_path: Path) -> None:
    other = allow("other", acls.READ)
    cluster = admin.security = FakeAcls(other)
    files = [
        written(tmp_path, "--topic", "a", "--consumer", "--allow-principal", "User:ann"),
        written(
            *(tmp_path, "--transactional-id", "t", "--prefixed", "--operation", "two-phase-commit"),
            *("--deny-principal", "User:*", "--host", "10.0.0.7"),
        ),
    ]
    denied = AclBinding(
        *(acls.TRANSACTIONAL_ID, "t", acls.PREFIXED, "User:*", "10.0.0.7"),
        *(acls.TWO_PHASE_COMMIT, acls.DENY),
    )
    wanted = {allow("a", acls.READ), allow("a", acls.DESCRIBE), denied}
    told = call("acls", "apply", *files).splitlines()
    assert len(told) == 3 and all(line.startswith("added: ") for line in told)
    assert cluster.entries == {other, *wanted}
    assert call("acls", "apply", *files) == "nothing to change\n"
    assert cluster.changes == ["create"]


def test_with_prune_entries_of_no_file_go_after_others_came(
    admin: FakeAdmin, tmp_path: Path
) -> None:
    cluster = admin.security = FakeAcls(allow("old", acls.READ), allow("a", acls.READ))
    file = written(tmp_path, "--topic", "a", "--consumer", "--allow-principal", "User:ann")
    dry = json.loads(call("acls", "apply", file, "--prune", "--dry-run", "--json"))
    assert [one["resource_name"] for one in dry["removed"]] == ["old"]
    assert [one["operation"] for one in dry["added"]] == ["describe"]
    assert cluster.changes == []
    call("acls", "apply", file, "--prune")
    assert cluster.entries == {allow("a", acls.READ), allow("a", acls.DESCRIBE)}
    assert cluster.changes == ["create", "delete"]
    (nothing := tmp_path / "nothing.json").write_text("[]")
    call("acls", "apply", str(nothing), "--prune")
    assert cluster.entries == set()


def test_a_file_is_what_the_list_prints(admin: FakeAdmin, tmp_path: Path) -> None:
    entries = {allow("a", acls.READ), allow("b", acls.ALTER_CONFIGS, "User:CN=x,O=y")}
    admin.security = FakeAcls(*entries)
    (file := tmp_path / "all.json").write_text(call("acls", "list", "--json"))
    cluster = admin.security = FakeAcls()
    call("acls", "apply", str(file))
    assert cluster.entries == entries


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"operation": "fly"}, "entry 1: there is no operation 'fly'"),
        ({"operation": "cluster-action"}, "entry 1: a topic has the operations"),
        ({"resource_type": "shelf"}, "resource_type 'shelf' is none of topic"),
        ({"pattern_type": "any"}, "pattern_type 'any' is none of literal, prefixed"),
        ({"permission": "maybe"}, "permission 'maybe' is none of allow, deny"),
        ({"principal": "ann"}, "'ann' is not User:name"),
        ({"more": "x"}, "more: the fields are resource_type"),
        ({"host": 7}, "entry 1: it is no object of texts"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(
    admin: FakeAdmin, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    cluster = admin.security = FakeAcls()
    file = Path(written(tmp_path, "--topic", "a", "--consumer", "--allow-principal", "User:ann"))
    entries = json.loads(file.read_text())
    file.write_text(json.dumps([entries[0] | change, *entries[1:]]))
    told = call("acls", "apply", str(file), exit_code=1)
    assert is_refusal(told) and said in told
    assert cluster.changes == []


@pytest.mark.parametrize("text", ["{}", "no json", "[" * 100_000, None])
def test_a_file_without_entries_is_refused(
    admin: FakeAdmin, tmp_path: Path, text: str | None
) -> None:
    admin.security = FakeAcls()
    file = tmp_path / "entries.json"
    if text is not None:
        file.write_text(text)
    told = call("acls", "apply", str(file), "--prune", exit_code=1)
    assert is_refusal(told) and "entries.json" in told
