"""The partition of an internal topic that keeps a group or a transactional id."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's String.hashCode, of UTF-16 units, as an int32."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(data), 2):
        value = (31 * value + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_for(key: str, partition_count: int) -> int:
    """As Kafka's coordinators do: abs of the hash, and 0 for the int32 that has none."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
