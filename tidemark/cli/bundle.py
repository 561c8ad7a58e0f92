"""The archive of `tidemark debug bundle`: what a cluster and a node tell, and what was missing.

Settings come from DescribeConfigs, which leaves out the values of secret ones and the settings of
plug-ins. `manifest.json` lists the files, and each part that could not be had with the reason.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.cli.output import json_of, reason_of
from tidemark.errors import ConfigError, NetworkError, TidemarkError

if TYPE_CHECKING:
    from tidemark.client.models import ConfigEntry, ConfigResource
    from tidemark.client.sync import Admin


class Bundle:
    """Files by name, and the reasons of those that are missing."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], Any]) -> None:
        """Adds what `make` returns: text as it is, other things as JSON."""
        try:
            value = make()
        except TidemarkError as error:
            self.missing[name] = reason_of(error)
            return
        text = value if isinstance(value, str) else json.dumps(json_of(value), indent=2) + "\n"
        self.files[name] = text.encode(errors="replace")

    def add_each(self, name: str, make: Callable[[], Mapping[int, Any]]) -> Mapping[int, Any]:
        """Adds a file for each node, whose id is {} in `name`; an error instead is its reason.

        Returns what `make` returned.
        """
        try:
            found = make()
        except TidemarkError as error:
            self.missing[name.format("*")] = reason_of(error)
            return {}
        for node_id, value in found.items():
            if isinstance(value, TidemarkError):
                self.missing[name.format(node_id)] = reason_of(value)
            else:
                self.add(name.format(node_id), partial(_same, value))
        return found

    def write(self, output: Path, facts: Mapping[str, Any], now_s: int) -> None:
        """Writes the archive with its manifest. Raises NetworkError if there is nothing in it, and
        ConfigError if it can not be written.
        """
        if not self.files:
            name, reason = next(iter(self.missing.items()))
            raise NetworkError(f"nothing to bundle: {name}: {reason}")
        manifest = {
            **facts,
            "files": {name: len(data) for name, data in sorted(self.files.items())},
            "missing": dict(sorted(self.missing.items())),
        }
        text = json.dumps(manifest, indent=2) + "\n"
        try:
            # For its owner alone: logs tell of users and addresses.
            opener = partial(os.open, mode=0o600)
            with (
                open(output, "wb", opener=opener) as file,
                tarfile.open(fileobj=file, mode="w:gz") as archive,
            ):
                for name, data in {"manifest.json": text.encode(), **self.files}.items():
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mtime = len(data), now_s
                    archive.addfile(entry, io.BytesIO(data))
        except OSError as error:
            raise ConfigError(f"can not write {output}: {error}") from error


def add_cluster(bundle: Bundle, admin: Admin) -> None:
    """Adds the cluster, its quorum, topics and disks, and of each node its settings and log."""
    from tidemark.cli.brokers import all_topics
    from tidemark.client.models import ConfigResource

    bundle.add("cluster.json", admin.describe_cluster)
    bundle.add("quorum.json", admin.describe_quorum)
    bundle.add("features.json", admin.describe_features)
    bundle.add("topics.json", lambda: all_topics(admin))
    bundle.add("reassignments.json", lambda: [*admin.list_partition_reassignments().values()])
    bundle.add("log-dirs.json", admin.describe_log_dirs)
    defaults = ConfigResource.broker(None)
    bundle.add("configs-of-all-brokers.json", lambda: _settings(admin, defaults))
    nodes = bundle.add_each("nodes/{}/node.json", admin.nodes.describe)
    for node_id, state in nodes.items():
        if not isinstance(state, TidemarkError):
            of_node = ConfigResource.broker(node_id)
            bundle.add(f"nodes/{node_id}/configs.json", partial(_settings, admin, of_node))
    bundle.add_each("nodes/{}/log.txt", lambda: _log_texts(admin))


def _same(value: Any) -> Any:
    return value


def _log_texts(admin: Admin) -> dict[int, Any]:
    """The end of each node's log as text, or the error of asking for it."""
    return {
        node_id: lines if isinstance(lines, TidemarkError) else "\n".join(lines) + "\n"
        for node_id, lines in admin.nodes.logs().items()
    }


def _settings(admin: Admin, resource: ConfigResource) -> dict[str, dict[str, str]]:
    """Values in effect with their sources; a secret one has none."""
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource]
    return {
        name: {"value": entry.value, "source": entry.source}
        for name, entry in sorted(entries.items())
    }
