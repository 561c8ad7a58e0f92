"""CRC-32C for kernels: the checksum of batches, without a call from Python for each.

The sum is computed by the processor's own instruction if there is one (SSE 4.2, ARMv8 CRC), else by
tables of slicing-by-8. Two ways are faster for long data. Some processors multiply wide vectors
without carry (AVX-512 and VPCLMULQDQ). There FOLD_BYTES are folded onto the next ones. A product
with x^n mod P moves bytes by n bits without changing the sum (Gopal et al., Intel 2009).

Elsewhere three parts of a buffer are summed side by side. The instruction gives its result three
cycles after it can take the next word. A table joins the three sums: it maps a sum to the sum with
a lane of zeros after it. The polynomial is linear (Adler, crc32c.c, zlib). For single buffers of
Python the crc32c package does the same.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from tidemark.records.kernels import processor
from tidemark.records.kernels.codec import Bytes, wide
from tidemark.records.kernels.jit import INT64, UINT8, helper, kernel, readable

LANE_BYTES = 512
LONG_LANE_BYTES = 8192  # of large buffers: sums are joined in a fifth of the time
_POLYNOMIAL = 0x82F63B78  # reversed
CRC_BEGIN = 0xFFFFFFFF


def _instruction() -> tuple[str, int]:
    """Returns LLVM's name of the instruction and the bits of its sum; ("", 0) without one."""
    features = processor.features()
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64") and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", 64
    if machine in ("aarch64", "arm64") and features.get("crc"):
        return "llvm.aarch64.crc32cx", 32
    return "", 0


_NAME, _BITS = _instruction()


def _can_fold() -> bool:
    """Returns whether vectors of 512 bits can be multiplied without carry."""
    features = processor.features()
    wanted = ("avx512f", "vpclmulqdq")
    return _BITS == 64 and bool(config.ENABLE_AVX) and all(map(features.get, wanted))


CAN_FOLD = _can_fold()
FOLD_BYTES = 256  # four vectors


def _tables() -> npt.NDArray[np.int64]:
    """Returns the tables; row k maps a byte to its sum with k bytes after it."""
    tables = np.zeros((8, 256), np.int64)
    row = np.arange(256, dtype=np.int64)
    for _ in range(8):
        row = np.where(row & 1, (row >> 1) ^ _POLYNOMIAL, row >> 1)
    tables[0] = row
    for k in range(1, 8):
        tables[k] = tables[0][tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


def _shifts(tables: npt.NDArray[np.int64], zeros: int) -> npt.NDArray[np.int64]:
    """Returns tables; row k maps byte k of a sum to its sum with `zeros` zeros after it."""
    sums = np.arange(256, dtype=np.int64) << (8 * np.arange(4, dtype=np.int64))[:, None]
    for _ in range(zeros):
        sums = tables[0][sums & 0xFF] ^ (sums >> 8)
    return sums


_TABLES = _tables()
_SHIFTS = _shifts(_TABLES, LANE_BYTES)
_LONG_SHIFTS = _shifts(_TABLES, LONG_LANE_BYTES)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def load_word(_context: Any, data: Any, at: Any) -> Any:
    """Reads eight bytes as a little-endian number; the caller has checked the bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        word = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return types.int64(data, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _by_instruction(_context: Any, crc: Any, word: Any) -> Any:
    """Adds eight bytes to the sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, own = ir.IntType(64), ir.IntType(_BITS)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(own, [own, wide]), _NAME
        )
        before = args[0] if _BITS == 64 else builder.trunc(args[0], own)
        after = builder.call(function, [before, args[1]])
        return after if _BITS == 64 else builder.zext(after, wide)

    return types.int64(types.int64, types.int64), codegen


def _by_tables(crc: int, word: int) -> int:
    word ^= crc
    after = wide(0)
    for k in range(8):
        after ^= _TABLES[7 - k, (word >> (8 * k)) & 0xFF]
    return after


_step: Callable[[int, int], int] = _by_instruction if _NAME else helper(_by_tables)


def _fold_factors(size_bytes: int) -> list[int]:
    """Returns the factors of the lower and the upper half of 16 bytes that move them by
    `size_bytes`.

    They are x^(n + 63) and x^(n - 1) mod P, bits reversed (the product of two reversed numbers
    lacks one factor x).
    """
    factors = []
    for power in (8 * size_bytes + 63, 8 * size_bytes - 1):
        rest = 1 << 31  # x^0, reversed
        for _ in range(power):
            rest = (rest >> 1) ^ (_POLYNOMIAL if rest & 1 else 0)
        factors.append(rest << 32)
    return factors


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _by_folding(_context: Any, crc: Any, data: Any, at: Any, end: Any) -> Any:
    """Adds data[at:end] to the sum: a multiple of FOLD_BYTES, not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte = ir.IntType(64), ir.IntType(8)
        vector = ir.VectorType(word, 8)
        array = context.make_array(signature.args[1])(context, builder, args[1])
        multiply = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector, vector, byte]),
            "llvm.x86.pclmulqdq.512",
        )

        def load(position: Any, part: int) -> Any:
            pointer = builder.gep(array.data, [builder.add(position, word(64 * part))])
            return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)

        def moved(value: Any, size_bytes: int) -> Any:
            factors = ir.Constant(vector, _fold_factors(size_bytes) * 4)
            lower = builder.call(multiply, [value, factors, byte(0x00)])
            return builder.xor(lower, builder.call(multiply, [value, factors, byte(0x11)]))

        begin, last = args[2], args[3]
        first = builder.insert_element(ir.Constant(vector, [0] * 8), args[0], ir.IntType(32)(0))
        sums = [load(begin, part) for part in range(4)]
        sums[0] = builder.xor(sums[0], first)
        before = builder.block
        head, body, after = (builder.append_basic_block(name) for name in ("head", "fold", "after"))
        following = builder.add(begin, word(FOLD_BYTES))
        builder.branch(head)
        builder.position_at_end(head)
        position = builder.phi(word)
        folded = [builder.phi(vector) for _ in sums]
        builder.cbranch(builder.icmp_signed("<", position, last), body, after)
        builder.position_at_end(body)
        loaded = [
            builder.xor(moved(value, FOLD_BYTES), load(position, part))
            for part, value in enumerate(folded)
        ]
        position.add_incoming(builder.add(position, word(FOLD_BYTES)), builder.block)
        position.add_incoming(following, before)
        for value, initial, more in zip(folded, sums, loaded, strict=True):
            value.add_incoming(more, builder.block)
            value.add_incoming(initial, before)
        builder.branch(head)
        builder.position_at_end(after)
        total = folded[3]
        for part in range(3):
            total = builder.xor(total, moved(folded[part], 64 * (3 - part)))
        step = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(word, [word, word]), _NAME
        )
        result = word(0)
        for index in range(8):
            part = builder.extract_element(total, ir.IntType(32)(index))
            result = builder.call(step, [result, part])
        return result

    return types.int64(types.int64, data, types.int64, types.int64), codegen


@helper
def _shifted(shifts: npt.NDArray[np.int64], crc: int) -> int:
    after = wide(0)
    for k in range(4):
        after ^= shifts[k, (crc >> (8 * k)) & 0xFF]
    return after


@helper
def _by_lanes(
    data: Bytes, at: int, end: int, crc: int, lane: int, shifts: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Adds three lanes of this size as often as they fit; returns the sum and its end."""
    while end - at >= 3 * lane:
        second, third = wide(0), wide(0)
        for _ in range(lane // 8):
            crc = _step(crc, load_word(data, at))
            second = _step(second, load_word(data, at + lane))
            third = _step(third, load_word(data, at + 2 * lane))
            at += 8
        crc = _shifted(shifts, _shifted(shifts, crc) ^ second) ^ third
        at += 2 * lane
    return crc, at


@helper
def _by_words(crc: int, data: Bytes, at: int, end: int) -> int:
    while end - at >= 8:
        crc = _step(crc, load_word(data, at))
        at += 8
    while at < end:
        crc = _TABLES[0, (crc ^ data[at]) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc


@helper
def more_by_lanes(crc: int, data: Bytes, at: int, end: int) -> int:
    """Does the work of `crc_more` on any processor."""
    crc, at = _by_lanes(data, at, end, crc, LONG_LANE_BYTES, _LONG_SHIFTS)
    crc, at = _by_lanes(data, at, end, crc, LANE_BYTES, _SHIFTS)
    return _by_words(crc, data, at, end)


@helper
def _more_by_folding(crc: int, data: Bytes, at: int, end: int) -> int:
    if end - at >= FOLD_BYTES:
        upto = end - (end - at) % FOLD_BYTES
        crc, at = _by_folding(crc, data, at, upto), upto
    return _by_words(crc, data, at, end)


crc_more: Callable[[int, Bytes, int, int], int] = _more_by_folding if CAN_FOLD else more_by_lanes
"""Adds data[at:end] to an unfinished sum, which is `CRC_BEGIN` at first and inverted at last. The
caller has checked the bounds.
"""


@helper
def crc_of(data: Bytes, at: int, end: int) -> int:
    """Computes the CRC-32C of data[at:end]; the caller has checked the bounds."""
    return crc_more(wide(CRC_BEGIN), data, at, end) ^ CRC_BEGIN


@kernel(INT64(readable(UINT8), INT64, INT64))
def crc32c(data: Bytes, begin: int, end: int) -> int:
    """Computes the CRC-32C of data[begin:end]; -1 if those are no bounds of it."""
    if begin < 0 or begin > end or end > len(data):
        return -1
    return crc_of(data, begin, end)
