"""Alert rules and dashboard of the chart, against the metrics of real nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from commitlog.disk.sync_times import BOUNDS_S, SyncTimes
from node.metrics.families import of_kafka
from node.metrics.requests import of_requests, of_syncs
from node.metrics.sources import of_certificates, of_directories, of_loop
from node.runtime.loop_lag import LoopLag
from tests.helm.promtool import ALERTS, Scrape, firing, run
from tests.node.metrics.test_exposition import documented
from tidemark.errors import ErrorCode
from tidemark.testing import Cluster
from tidemark.wire.metering import RequestMeters
from tiering.metrics import CopyLag, RemoteGauges, RemoteMeter, RemoteMetrics

DASHBOARD = ALERTS.parent / "dashboard.json"
Case = tuple[Scrape, Scrape]


def scrape(cluster: Cluster) -> Scrape:
    """All that the living nodes of a cluster tell."""

    async def ask() -> Scrape:  # on their loop
        return {
            f"node-{node.node_id}": [
                *node.server.families(),
                *of_directories(node.server.directories(), {}),
            ]
            for node in cluster.nodes.values()
            if node.server is not None
        }

    return cluster.run(ask())


def of_cluster(cause: Callable[[Cluster], None], brokers: int = 3) -> Case:
    """A cluster with partitions of three replicas and of one, before a cause and after it."""
    with Cluster(seed=5, brokers=brokers) as cluster:
        unclean = {"unclean_leader_election_enable": "true"}
        cluster.create_topic("many", 3, min_insync_replicas="2", **unclean)
        cluster.create_topic("single", brokers, replication_factor=1)
        cluster.advance(10)
        before = scrape(cluster)
        cause(cluster)
        return before, scrape(cluster)


def killed(*node_ids: int) -> Callable[[Cluster], None]:
    def cause(cluster: Cluster) -> None:
        for node_id in node_ids:
            cluster.kill(node_id)
            cluster.advance(30)

    return cause


def unclean(cluster: Cluster) -> None:
    """The two followers of a partition are down; its leader goes, and one of them comes back."""
    leader = cluster.leader("many")
    assert leader is not None
    server = cluster.brokers[0].server
    assert server is not None and server.loader is not None
    topic = server.loader.image.topics.get("many")
    assert topic is not None
    replicas = topic.partitions[0].replicas
    others = [one for one in replicas if one != leader]
    for node_id in others:
        cluster.kill(node_id)
        cluster.advance(30)
    cluster.kill(leader)
    cluster.advance(30)
    cluster.start_node(others[0])
    cluster.advance(60)


def of_loops() -> Case:
    def lag(late_ms: float) -> LoopLag:
        made = LoopLag()
        for _ in range(20):
            made.note(1)
        for _ in range(20 if late_ms else 0):
            made.note(late_ms)
        return made

    return {"a": list(of_loop(lag(0)))}, {"a": list(of_loop(lag(1_000)))}


def of_disks(before_bytes: int, after_bytes: int, online: bool = True) -> Case:
    healthy = list(of_directories({"/d": True}, {"/d": before_bytes}))
    return {"a": healthy}, {"a": list(of_directories({"/d": online}, {"/d": after_bytes}))}


def of_listener() -> Case:
    """A certificate with a hundred days left, and one with a week; the clock begins in 1970."""
    day_ms = 86_400_000
    ends = (of_certificates({"USERS": days * day_ms}) for days in (100, 7))
    before, after = ({"a": [end]} for end in ends)
    return before, after


def of_tier() -> Case:
    counts = RemoteMetrics()
    meter = RemoteMeter(counts)

    def told(lag_bytes: int) -> list[Metric]:
        report = meter.read(RemoteGauges(CopyLag(lag_bytes, 1)), 0)
        return list(of_kafka("remote", "RemoteLogManager", report))

    before = told(0)
    counts.remote_copy_errors += 3
    return {"a": before}, {"a": told(1 << 30)}


def of_answers() -> Case:
    meters = RequestMeters()
    meters.produce.end(meters.produce.begin(None))
    meters.produce.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    before = list(of_requests(meters))
    meters.produce.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    return {"a": before}, {"a": list(of_requests(meters))}


def of_slow_disk() -> Case:
    times = SyncTimes()
    before = list(of_syncs(times))
    times.counts[BOUNDS_S.index(2.0)] += 5
    return {"a": before}, {"a": list(of_syncs(times))}


def of_upkeep(attribute: str) -> Case:
    """A broker whose cleaner gave a log up, or whose scrubber found damage."""

    def cause(cluster: Cluster) -> None:
        server = cluster.brokers[0].server
        assert server is not None and server.broker is not None
        background = server.broker._background
        if attribute == "scrubber":
            background.scrubber.damaged_segments += 1
        else:
            background.cleaner.uncleanable[next(iter(server.broker.partitions)).topic_partition] = (
                ""
            )

    return of_cluster(cause)


CASES: dict[str, Callable[[], Case]] = {
    "TidemarkNoController": lambda: of_cluster(killed(1, 2)),
    "TidemarkOfflinePartitions": lambda: of_cluster(killed(3)),
    "TidemarkUnderMinIsr": lambda: of_cluster(killed(4, 5), brokers=5),
    "TidemarkUnderReplicated": lambda: of_cluster(killed(3)),
    "TidemarkUncleanElection": lambda: of_cluster(unclean, brokers=4),
    "TidemarkLogDirectoryOffline": lambda: of_disks(10**12, 10**12, online=False),
    "TidemarkDiskAlmostFull": lambda: of_disks(10**12, 10**9),
    "TidemarkCertificateEnds": of_listener,
    "TidemarkTierStalls": of_tier,
    "TidemarkLoopLag": of_loops,
    "TidemarkServerErrors": of_answers,
    "TidemarkSlowDisk": of_slow_disk,
    "TidemarkDamagedSegment": lambda: of_upkeep("scrubber"),
    "TidemarkUncleanablePartitions": lambda: of_upkeep("cleaner"),
}


def rules() -> list[dict[str, str]]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def test_each_alert_fires_after_its_cause_and_is_silent_before(tmp_path: Path) -> None:
    assert set(CASES) == {rule["alert"] for rule in rules()}
    run("check", "rules", str(ALERTS))
    firing(tmp_path, {alert: make() for alert, make in CASES.items()})


def expressions() -> Iterator[str]:
    """The queries of the dashboard, with its variables replaced."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() -> None:
    known = documented()
    found = [*expressions(), *(rule["expr"] for rule in rules())]
    for expression in found:
        for name in re.findall(r"\btidemark_\w+", expression):
            plain = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert name in known or plain in known, (name, expression)


def test_the_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    queries = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(expressions())]
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))
    assert f"{len(queries)} rules found" in run("check", "rules", "--lint=none", str(file))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
