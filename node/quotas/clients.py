"""The use of quotas by clients: a token bucket for each entity that shares one.

A bucket holds the burst of Kafka's windows, all but the one under way. By default that is ten
seconds of the rate (`quota.window.num`, `quota.window.size.seconds`). A client may be idle for so
long and then use it at once. Beyond, it owes time.

A full bucket is as good as none, so those of idle clients are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quorum.image import MetadataDelta, MetadataImage
from tidemark.quotas.entities import KEYS, REQUEST_PERCENTAGE, QuotaEntity, applying_to
from tidemark.quotas.rates import TokenBucket

_BUCKETS_MAX = 10_000  # of one key; beyond, the oldest are forgotten
_CALLERS_MAX = 10_000


class Caller(NamedTuple):
    """The client of a request, as quotas know it."""

    user: str
    client_id: str


class ClientQuotas:
    """The quotas of one broker's clients; a publisher of metadata."""

    def __init__(self, window_num: int = 11, window_s: int = 1) -> None:
        self._window_s = window_s
        burst_s = max(1, window_num - 1) * window_s
        self._of_key = {key: _Quota(key, burst_s) for key in KEYS}
        self.is_active = False
        """Whether any quota is set in the cluster."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes the quotas of the image, where they changed."""
        if delta.client_quotas_changed:
            self.is_active = bool(image.client_quotas)
            for quota in self._of_key.values():
                quota.changed(image.client_quotas)

    def use(self, key: str, caller: Caller, amount: float, now_s: float) -> None:
        """Counts bytes, or for request_percentage seconds, that a request has used."""
        bucket = self._of_key[key].bucket(caller, now_s)
        if bucket is not None:
            bucket.take(amount, now_s)

    def wait_s(self, key: str, caller: Caller, now_s: float) -> float:
        """Returns the time that the client has to wait, in s; 0: it is within its quota.

        Request time is at most a window's, as in Kafka: other limits tell a client more.
        """
        bucket = self._of_key[key].bucket(caller, now_s)
        if bucket is None:
            return 0.0
        debt_s = bucket.debt_s(now_s)
        return min(debt_s, self._window_s) if key == REQUEST_PERCENTAGE else debt_s

    def most(self, key: str, caller: Caller, now_s: float) -> float:
        """Returns the most that one request may use without a debt from an idle time."""
        bucket = self._of_key[key].bucket(caller, now_s)
        return float("inf") if bucket is None else bucket.capacity


class _Quota:
    """The quotas of one key."""

    def __init__(self, key: str, burst_s: float) -> None:
        self._key = key
        self._burst_s = burst_s
        self._limits: Mapping[QuotaEntity, float] = {}
        self._buckets: dict[QuotaEntity, TokenBucket] = {}
        self._callers: dict[Caller, TokenBucket | None] = {}  # found since the last change

    def changed(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Takes the quotas that are set; what was used stays used."""
        scale = 0.01 if self._key == REQUEST_PERCENTAGE else 1.0
        limits = {
            entity: found[self._key] * scale
            for entity, found in quotas.items()
            if self._key in found
        }
        if limits != self._limits:
            self._limits = limits
            self._callers.clear()
            if not limits:
                self._buckets.clear()

    def bucket(self, caller: Caller, now_s: float) -> TokenBucket | None:
        """The bucket that the caller shares; None: no quota applies."""
        if not self._limits:
            return None
        try:
            return self._callers[caller]
        except KeyError:
            pass
        applied = applying_to(caller.user, caller.client_id, self._limits.get)
        found = None
        if applied is not None:
            found = self._shared(applied.shared_by, applied.value, now_s)
        if len(self._callers) >= _CALLERS_MAX:
            self._callers.clear()
        self._callers[caller] = found
        return found

    def _shared(self, entity: QuotaEntity, rate: float, now_s: float) -> TokenBucket:
        found = self._buckets.get(entity)
        if found is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._forget(now_s)
            found = self._buckets[entity] = TokenBucket(rate, self._burst_s, now_s)
        elif found.rate != rate:
            found.set_rate(rate, now_s)
        return found

    def _forget(self, now_s: float) -> None:
        """Drops full buckets; where most are used, the older half."""
        used = {e: b for e, b in self._buckets.items() if not b.is_full(now_s)}
        if len(used) > _BUCKETS_MAX // 2:
            used = dict(list(used.items())[len(used) // 2 :])
        self._buckets = used
        self._callers.clear()
