"""Eligible leader replicas when a setting changes that they depend on (KIP-966).

A replica is eligible while nothing can be committed without it, which min.insync.replicas and the
feature's level decide. The batch that changes one of them also clears the eligible replicas of the
partitions whose ISR is large enough without them from then on. Partitions that the batch may have
no room for are left to a sweep. They are safe until then, because a leader commits nothing while
its partition has eligible replicas (`node.partition.core`).

One value has to hold for all brokers: enabling the feature sets the cluster's min.insync.replicas.
Source: Kafka's ConfigurationControlManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from quorum.controller.configs import MIN_ISR
from quorum.controller.elections import NEEDLESS_ELR, ElectionRules
from quorum.controller.result import RECORDS_PER_BATCH_MAX, ControllerResult
from quorum.controller.sweeps import Sweeps, unsettled
from quorum.image import (
    ConfigResource,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    TopicImage,
)
from quorum.image.image import ELR_VERSION
from quorum.image.records import config_record
from tidemark.config import ServerConfig
from tidemark.v1 import metadata_pb2 as pb

R = TypeVar("R")


def safety_records(image: MetadataImage, config: ServerConfig) -> list[pb.MetadataRecord]:
    """Returns the records that leave one min.insync.replicas for all brokers, none if there is."""
    kind = ConfigResourceType.BROKER
    records = []
    if MIN_ISR not in image.broker_configs(None):
        records.append(config_record(kind, "", MIN_ISR, str(config.min_insync_replicas)))
    own = [r.name for r, c in image.configs.items() if r.type == kind and r.name and MIN_ISR in c]
    return [*records, *(config_record(kind, name, MIN_ISR, None) for name in sorted(own))]


def settle(
    rules: ElectionRules, sweeps: Sweeps, result: ControllerResult[R]
) -> ControllerResult[R]:
    """Adds to each group of records the changes of eligible replicas that it entails."""
    image = rules.image
    unfinished = False
    for group in result.groups:
        delta = MetadataDelta(image)
        for record in group:
            delta.replay(record)
        judged = _judged(rules, delta)
        changes = list(filter(None, islice(judged, RECORDS_PER_BATCH_MAX - len(group))))
        unfinished = unfinished or any(True for _ in islice(judged, 1))
        group += changes
        for record in changes:
            delta.replay(record)
        image = delta.apply(image.offset, image.epoch)
    if unfinished:
        result.after_append = lambda _: sweeps.add(unsettled())
    return result


def _judged(rules: ElectionRules, delta: MetadataDelta) -> Iterator[pb.MetadataRecord | None]:
    """Changes of the partitions with eligible replicas once `delta` holds; None for those that
    need theirs."""
    after = delta.apply(rules.image.offset, rules.image.epoch)
    topics: Iterable[TopicImage | None]
    if ELR_VERSION in delta.features_changed:
        # Replicas that were eligible before are not so afterwards, in either direction.
        after = replace(after, features=after.features.set(ELR_VERSION, 0))
        topics = after.topics.ordered()
    elif after.elr_enabled:
        changed = [r for r, settings in delta.configs_changed.items() if MIN_ISR in settings]
        everywhere = ConfigResource.broker(None) in changed
        topics = (
            after.topics.ordered() if everywhere else (after.topics.get(r.name) for r in changed)
        )
    else:
        topics = ()
    rules = ElectionRules(after, rules.config, rules.leaving)
    for topic in filter(None, topics):
        for index in NEEDLESS_ELR.chosen(after, topic):
            yield NEEDLESS_ELR.change(rules, topic, index)
