"""The active controller's state machine. Pure: requests and time in, records and answers out.

It holds the image as it will be when everything appended so far is committed, and generates each
change from it. `QuorumController` appends the records, passes them to `replay`, and answers on
commit. On a loss of leadership the image is dropped: uncommitted changes have no effect (RULES.md
rule 7).

    inactive --activate(image, epoch)--> active --deactivate()--> inactive

Timed work happens in `tick(now_ms)` when `next_deadline_ms()` is reached:

- fencing, eight times per session, one broker per pass;
- the next step of a change of very many partitions (`sweeps`);
- preferred elections, and elections of leaderless partitions (`elections.UNSETTLED`);
- a NoOp record when nothing was written for a while, so that offsets advance and lag is visible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from quorum.controller import elections
from quorum.controller.cluster_control import BrokerControl
from quorum.controller.elections import ElectionRules
from quorum.controller.eligible import safety_records
from quorum.controller.requests import REQUESTS, RequestContext
from quorum.controller.result import ControllerResult
from quorum.controller.sessions import BrokerSessions
from quorum.controller.sweeps import Portion, Sweep, Sweeps, unsettled
from quorum.image import LeaderRecoveryState, MetadataDelta, MetadataImage
from quorum.image.features import FIRST_LEVELS, SUPPORTED, check_supported
from quorum.image.image import ELR_VERSION, METADATA_VERSION
from quorum.image.records import feature_record
from tidemark.config import ServerConfig
from tidemark.errors import NotControllerError
from tidemark.v1 import metadata_pb2 as pb

UNCLEAN_ELECTION_INTERVAL_MS = 300_000
_FENCE_PASSES_PER_SESSION = 8


@dataclass(slots=True)
class _Deadlines:
    """Time (ms) at which each kind of timed work is due; None if never."""

    fence_ms: int
    preferred_ms: int | None
    leaderless_ms: int
    no_op_ms: int | None

    def first(self) -> int:
        candidates = (self.fence_ms, self.preferred_ms, self.leaderless_ms, self.no_op_ms)
        return min(due for due in candidates if due is not None)


class ControllerCore:
    """Generates records while active; every request raises NotControllerError while inactive.

    The records of a result are not applied yet. They must be passed to `replay` in the order they
    are appended, before the next request.
    """

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        rng: random.Random,
        *,
        first_levels: Mapping[str, int] = FIRST_LEVELS,
        voters: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`first_levels` are the feature levels that an empty log begins with.

        `voters` returns the ids of the quorum's voters.
        """
        self._config = config
        self._cluster_id = cluster_id
        self._first_levels = first_levels
        self._voters = voters
        self._sessions = BrokerSessions(config.broker_session_timeout_ms)
        self._sweeps = Sweeps()
        self._cluster = BrokerControl(cluster_id, self._sessions, self._sweeps)
        self._rng = rng
        self._image: MetadataImage | None = None
        self._epoch = 0
        self._deadlines: _Deadlines | None = None

    @property
    def is_active(self) -> bool:
        return self._image is not None

    @property
    def epoch(self) -> int:
        """Raft epoch of the last activation."""
        return self._epoch

    @property
    def image(self) -> MetadataImage:
        """The image with everything appended so far; raises NotControllerError while inactive."""
        if self._image is None:
            raise NotControllerError()
        return self._image

    def activate(self, image: MetadataImage, epoch: int, now_ms: int) -> ControllerResult[None]:
        """Begins to lead in `epoch` from the committed `image`.

        Returns the first records of an empty log. All brokers in service get a new session.
        """
        self._image = image
        self._epoch = epoch
        self._sessions.activate(image, now_ms)
        self._deadlines = _Deadlines(
            fence_ms=now_ms + self._fence_interval_ms(),
            preferred_ms=self._after(now_ms, self._preferred_interval_ms()),
            leaderless_ms=now_ms + UNCLEAN_ELECTION_INTERVAL_MS,
            no_op_ms=self._after(now_ms, self._config.metadata_max_idle_interval_ms),
        )
        self._sweeps.clear()
        if len(image.topics):
            self._sweeps.add(Sweep(("tables", 0), elections.MAKE_TABLES))
            # The previous controller may have stopped in the middle of a broker's return, or of a
            # change of min.insync.replicas.
            self._sweeps.add(unsettled())
        records = []
        if METADATA_VERSION not in image.features:
            records = [feature_record(name, level) for name, level in self._first_levels.items()]
        levels = image.features if METADATA_VERSION in image.features else self._first_levels
        if levels.get(ELR_VERSION, 0) >= 1:
            records += safety_records(image, self._config)
        return ControllerResult.atomic(records, None)

    def deactivate(self) -> None:
        """Ends the leadership and drops everything that is not committed."""
        self._image = None
        self._deadlines = None
        self._sweeps.clear()

    def replay(self, records: Sequence[pb.MetadataRecord], last_offset: int, now_ms: int) -> None:
        """Applies records that were appended as one batch ending at `last_offset`.

        Raises InconsistentMetadataError, and UnsupportedVersionError for a level beyond this
        version's.
        """
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        check_supported(delta.features_changed, SUPPORTED, "this controller")
        self._image = delta.apply(last_offset, self._epoch)
        self._sweeps.notice(delta)
        for broker_id, broker in delta.brokers_changed.items():
            if broker is None:
                self._sessions.end(broker_id)
        if self._deadlines is not None:
            self._deadlines.no_op_ms = self._after(
                now_ms, self._config.metadata_max_idle_interval_ms
            )

    def adopt(self, committed: MetadataImage) -> None:
        """Replaces the own image by the committed one when that has caught up.

        The two are equal then, and only one has to be held in memory.
        """
        if self._image is not None and committed.offset >= self._image.offset:
            self._image = committed

    def handle(self, request: Message, next_offset: int, now_ms: int) -> ControllerResult[Any]:
        """Returns the records and the answer of a request of `REQUESTS`.

        `next_offset` is the offset that the first record will have. Raises ApiError.
        """
        context = RequestContext(
            self._rules(),
            self._cluster,
            self._cluster_id,
            self._rng,
            self._voters,
            next_offset,
            now_ms,
        )
        return REQUESTS[type(request)].generate(context, request)

    # Timed work.

    def next_deadline_ms(self) -> int | None:
        """Time (ms) of the next `tick`; None while inactive."""
        if self._deadlines is None:
            return None
        first, sweep_ms = self._deadlines.first(), self._sweeps.due_ms()
        return first if sweep_ms is None else min(first, sweep_ms)

    def tick(self, now_ms: int) -> ControllerResult[None]:
        """Returns the records of one kind of timed work that is due, the most urgent first.

        The next call handles the next kind. Without records, nothing is due or nothing had to
        change.
        """
        deadlines = self._deadlines
        if deadlines is None:
            raise NotControllerError()
        if deadlines.fence_ms <= now_ms:
            deadlines.fence_ms = now_ms + self._fence_interval_ms()
            fenced = self._cluster.fence_stalest(self._rules(), now_ms)
            return _of_portion(fenced)
        sweep_ms = self._sweeps.due_ms()
        if sweep_ms is not None and sweep_ms <= now_ms:
            return _of_portion(self._sweeps.next(self._rules(), now_ms))
        if deadlines.leaderless_ms <= now_ms:
            deadlines.leaderless_ms = now_ms + UNCLEAN_ELECTION_INTERVAL_MS
            return _of_portion(self._sweeps.begin(unsettled(), self._rules()))
        if deadlines.preferred_ms is not None and deadlines.preferred_ms <= now_ms:
            deadlines.preferred_ms = self._after(now_ms, self._preferred_interval_ms())
            sweep = Sweep(("preferred", 0), elections.PREFERRED)
            return _of_portion(self._sweeps.begin(sweep, self._rules()))
        records: list[pb.MetadataRecord] = []
        if deadlines.no_op_ms is not None and deadlines.no_op_ms <= now_ms:
            deadlines.no_op_ms = self._after(now_ms, self._config.metadata_max_idle_interval_ms)
            records = [pb.MetadataRecord(no_op=pb.NoOpRecord())]
        return ControllerResult.each(records, None)

    def validate(self) -> None:
        """Asserts the invariants of the image."""
        if self._image is None:
            return
        for topic in self._image.topics:
            for index, partition in topic.partitions.items():
                name = f"{topic.name}-{index}"
                assert partition.replicas, f"{name} has no replicas"
                assert len(set(partition.replicas)) == len(partition.replicas), name
                kept = partition.isr or partition.elr or partition.last_known_elr
                rebuilt = partition.leader is None and (
                    partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
                )
                assert kept or rebuilt, f"{name}: nobody knows who has the records"
                assert not set(partition.elr) & set(partition.isr), f"{name}: ELR within the ISR"
                assert set(partition.elr) <= set(partition.replicas), f"{name}: ELR beyond replicas"
                assert set(partition.isr) <= set(partition.replicas), f"{name}: ISR beyond replicas"
                leader = partition.leader
                assert leader is None or leader in partition.isr, f"{name}: leader outside its ISR"
                assert leader is None or self._image.is_active(leader), f"{name}: leader is fenced"

    def _rules(self) -> ElectionRules:
        return ElectionRules(self.image, self._config, self._cluster.leaving)

    def _fence_interval_ms(self) -> int:
        return max(1, self._config.broker_session_timeout_ms // _FENCE_PASSES_PER_SESSION)

    def _preferred_interval_ms(self) -> int:
        if not self._config.auto_leader_rebalance_enable:
            return 0
        return self._config.leader_imbalance_check_interval_seconds * 1_000

    @staticmethod
    def _after(now_ms: int, interval_ms: int) -> int | None:
        """The next time (ms) of work that recurs each `interval_ms`; None if that is 0 (never)."""
        return now_ms + interval_ms if interval_ms > 0 else None


def _of_portion(portion: Portion | None) -> ControllerResult[None]:
    return ControllerResult(None) if portion is None else portion.result(None)
