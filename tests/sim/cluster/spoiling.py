"""Damage of batches on their way to a consumer, as a broker's memory or a disk makes it."""

from __future__ import annotations

import random

from tidemark.records import iter_batches
from tidemark.wire import decode_fetch_response

_CRC_OFFSET = 17
"""The CRC of a batch and all behind it: what is before is the leader's."""


def flip_a_bit(answer: bytes, rng: random.Random) -> bytes:
    """Flips one bit of one batch of a fetch answer; an answer without batches stays as it is."""
    data = bytearray(answer)
    payloads = [memoryview(p.payload) for p in decode_fetch_response(data).responses if p.payload]  # type: ignore[arg-type]
    if not payloads:
        return answer
    payload = rng.choice(payloads)
    position, header = rng.choice(list(iter_batches(payload)))
    at = position + rng.randrange(_CRC_OFFSET, header.size_bytes)
    payload[at] ^= 1 << rng.randrange(8)
    return bytes(data)
