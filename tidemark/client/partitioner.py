"""The partition of a record, as Apache Kafka's default partitioner chooses it.

With a key: murmur2 of the key's bytes with Kafka's seed, sign bit cleared, modulo the number of
partitions (org.apache.kafka.common.utils.Utils.murmur2, BuiltInPartitioner.partitionForKey).
Without a key: one partition for a batch's worth of bytes, then another one at random (KIP-480,
KIP-794's uniform sticky partitioner).
"""

from __future__ import annotations

from random import Random

from tidemark.records import partition_for_key

_CACHE_LIMIT = 100_000


class TopicPartitioner:
    """Chooses the partitions of one topic's records.

    Keys repeat, so the partitions of up to 100,000 keys are cached.
    """

    def __init__(self, partition_count: int, sticky_bytes: int, rng: Random) -> None:
        self.partition_count = partition_count
        self._sticky_bytes = sticky_bytes
        self._rng = rng
        self._keys: dict[bytes, int] = {}
        self._sticky = rng.randrange(partition_count)
        self._sticky_left = sticky_bytes

    def for_key(self, key: bytes) -> int:
        found = self._keys.get(key)
        if found is None:
            if len(self._keys) >= _CACHE_LIMIT:
                self._keys.clear()
            found = self._keys[key] = partition_for_key(key, self.partition_count)
        return found

    def for_null_key(self, size_bytes: int) -> int:
        """The sticky partition; it changes after `sticky_bytes`."""
        chosen = self._sticky
        self._sticky_left -= size_bytes
        if self._sticky_left <= 0:
            self._sticky_left = self._sticky_bytes
            if self.partition_count > 1:
                # Any but the same: with few partitions, repeating it would skew them visibly.
                step = 1 + self._rng.randrange(self.partition_count - 1)
                self._sticky = (chosen + step) % self.partition_count
        return chosen
