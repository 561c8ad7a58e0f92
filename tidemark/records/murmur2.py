"""The hash of Kafka's default partitioner.

Murmur2 (Austin Appleby, public domain), 32 bits, seed 0x9747b28c, as in Kafka's clients: every
client sends a key to the same partition.
"""

from __future__ import annotations

SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Returns the hash as an unsigned 32-bit integer."""
    size = len(key)
    value = (SEED ^ size) & _MASK
    whole = size & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(key[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if size != whole:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Returns Kafka's partition for a key: the hash without its sign bit, modulo the count."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
