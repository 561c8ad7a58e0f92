"""A cluster goes from the previous release to this one under load, back, and there for good."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from quorum.image.features import SUPPORTED
from tests.upgrade.load import Load, check_produced, check_read, check_transacted
from tests.upgrade.rolling import (
    LEVEL,
    earlier_cluster,
    is_whole,
    launcher_of,
    replace,
    tidemark,
    until,
)
from tests.upgrade.worker import PARTITIONS, TOPIC, TRANSFERS
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.errors import ApiError

LONGEST_STALL_S = 30


@pytest.fixture
def earlier() -> Path:
    """Packages of the previous release."""
    found = os.environ.get("UPGRADE_FROM")
    if not found:
        pytest.skip("scripts/test-upgrade runs it")
    return Path(found)


def level_in_effect(admin: Admin) -> int:
    return admin.describe_features()[LEVEL].level


def roll(
    cluster: LocalCluster, admin: Admin, load: Load, ids: Iterable[int], packages: Path | None
) -> None:
    """Replaces nodes; the level in effect stays, since nobody raises it."""
    level = level_in_effect(admin)
    for node_id in ids:
        began_s = time.monotonic()
        replace(cluster, admin, cluster.node(node_id), packages)
        load.check_alive()
        release = "the previous release" if packages else "this release"
        print(f"node {node_id} is of {release} after {time.monotonic() - began_s:.1f} s")
    assert level_in_effect(admin) == level


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_when_nodes_go_to_the_next_release_back_and_there_for_good(
    tmp_path: Path, earlier: Path
) -> None:
    with earlier_cluster(tmp_path / "cluster", earlier) as cluster:
        cluster.wait_ready(90)
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin, Load(servers, tmp_path) as load:
            level, newest = level_in_effect(admin), SUPPORTED[LEVEL].highest
            topics = [NewTopic(TOPIC, PARTITIONS, 3), NewTopic(TRANSFERS, PARTITIONS, 3)]
            admin.create_topics(topics)
            for kind in ("produce", "transact", "read"):
                load.begin(f"{kind}-earlier", kind, launcher_of(earlier))
                load.begin(f"{kind}-now", kind, launcher_of(None))
            *first, last = [*cluster.broker_ids, *cluster.controller_ids]
            roll(cluster, admin, load, first, None)
            if newest > level:  # a node of the previous release stands in the way
                with pytest.raises(ApiError, match=f"controller ({last} )?supports"):
                    admin.update_features({LEVEL: newest})
            roll(cluster, admin, load, [last], None)
            some = [cluster.broker_ids[0], cluster.controller_ids[0]]
            roll(cluster, admin, load, some, earlier)  # the way back: nothing was finalised
            roll(cluster, admin, load, some, None)
            at = ("--bootstrap-server", servers)
            print(tidemark("features", "upgrade", f"{LEVEL}=latest", *at))
            assert level_in_effect(admin) == newest
            until(lambda: is_whole(admin), "in sync after the upgrade")
            check_clients(servers, load)
            if newest > level:
                check_refused(cluster, earlier)


def check_clients(servers: str, load: Load) -> None:
    """Ends the workers, producers first, and judges all that they did."""
    produced, transacted, read = (load.end(kind) for kind in ("produce", "transact", "read"))
    print(produced, transacted, read, sep="\n")
    check_produced(servers, produced)
    check_transacted(servers, transacted)
    check_read(servers, read)
    assert max(r["longest_s"] for r in (produced | transacted).values()) < LONGEST_STALL_S


def check_refused(cluster: LocalCluster, earlier: Path) -> None:
    """A node of the previous release ends with an error that says why, after the last step."""
    node = cluster.node(cluster.broker_ids[0])
    node.launcher = launcher_of(earlier)
    cluster.restart(node.node_id)
    until(lambda: not node.is_running, "the end of a node that is too old")
    assert "install a version that supports it" in node.output_tail()
