"""Bytes, varints and copies at addresses, for kernels.

numba checks every index for a negative number, and counts references to every array passed to a
helper. In loops of a few instructions per record that is most of the time. So inner loops take an
array's address once (`address_of`) and continue with plain integers. No bound is checked here
unless it is an argument: a kernel keeps its arrays alive and its addresses within them.

Varints are Kafka's (KIP-98, Protocol Buffers' zigzag): low seven bits first, the sign in bit 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tidemark.records.kernels.jit import helper, inlined

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
CHUNK_BYTES = 16  # copied by `copy_chunk`: a vector register
SLACK_BYTES = CHUNK_BYTES  # most that `copy_loosely` writes beyond its size

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_CHUNK = ir.VectorType(_BYTE, CHUNK_BYTES)
_LOW_63 = 0x7FFFFFFFFFFFFFFF


def _instructions(function: Callable[..., Any]) -> Callable[..., int]:
    """Makes an intrinsic of numba; `function` returns its signature and the generator of its
    instructions.
    """
    made: Callable[..., int] = intrinsic(function)
    return made


@_instructions
def address_of(_context: Any, array: Any) -> Any:
    """Returns the address of an array's first item, as an int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _WORD)

    return types.int64(array), codegen


@_instructions
def get_byte(_context: Any, at: Any) -> Any:
    """Reads the byte at an address, as an int64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(args[0], _BYTE.as_pointer())), _WORD)

    return types.int64(types.int64), codegen


@_instructions
def get_int32(_context: Any, at: Any) -> Any:
    """Reads the item of an int32 array at an address, as an int64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(pointer, align=1), _WORD)

    return types.int64(types.int64), codegen


@_instructions
def put_byte(_context: Any, to: Any, value: Any) -> Any:
    """Writes the low eight bits of an int64."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _BYTE.as_pointer())
        builder.store(builder.trunc(args[1], _BYTE), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@_instructions
def copy_chunk(_context: Any, to: Any, at: Any) -> Any:
    """Copies CHUNK_BYTES bytes."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target, origin = (builder.inttoptr(arg, _CHUNK.as_pointer()) for arg in args)
        builder.store(builder.load(origin, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@_instructions
def copy_bytes(_context: Any, to: Any, at: Any, size: Any) -> Any:
    """Copies `size` bytes by memcpy."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target, origin = (builder.inttoptr(arg, _BYTE.as_pointer()) for arg in args[:2])
        cgutils.raw_memcpy(builder, target, origin, args[2], itemsize=1, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@_instructions
def bit_length(_context: Any, value: Any) -> Any:
    """Returns the bits of an int64 read as unsigned; 1 for 0."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(builder.or_(args[0], _WORD(1)), ir.IntType(1)(1))
        return builder.sub(_WORD(64), zeros)

    return types.int64(types.int64), codegen


@inlined
def copy_loosely(to: int, at: int, size: int, left: int) -> None:
    """Copies `size` of the `left` bytes at `at`, and up to SLACK_BYTES more of what follows them.
    The caller overwrites the excess later, or has room for it.

    A short field thus costs a few instructions, not a loop or a call.
    """
    if size <= CHUNK_BYTES <= left:
        copy_chunk(to, at)
    elif size <= 2 * CHUNK_BYTES <= left:
        copy_chunk(to, at)
        copy_chunk(to + CHUNK_BYTES, at + CHUNK_BYTES)
    else:
        copy_bytes(to, at, size)


@inlined
def varint_size(value: int) -> int:
    """Returns the size of a varint: one byte for each seven bits begun."""
    return (bit_length((value << 1) ^ (value >> 63)) * 9 + 64) >> 6


@helper
def _put_long_varint(to: int, bits: int) -> int:
    while bits & ~0x7F:
        put_byte(to, bits | 0x80)
        bits = (bits >> 7) & (_LOW_63 >> 6)
        to += 1
    put_byte(to, bits)
    return to + 1


@inlined
def put_varint(to: int, value: int) -> int:
    """Writes a varint; returns its end."""
    bits = (value << 1) ^ (value >> 63)
    if bits & ~0x7F == 0:
        put_byte(to, bits)
        return to + 1
    if bits & ~0x3FFF == 0:
        put_byte(to, bits | 0x80)
        put_byte(to + 1, bits >> 7)
        return to + 2
    return _put_long_varint(to, bits)


@helper
def _get_long_varint(at: int, end: int, bits_max: int) -> tuple[int, int]:
    bits = shift = 0
    while at < end and shift < bits_max:
        byte = get_byte(at)
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte >> min(bits_max - shift, 7):  # bits beyond the number's size
                return 0, -1
            return ((bits >> 1) & _LOW_63) ^ -(bits & 1), at
        shift += 7
    return 0, -1


@inlined
def _get_any_varint(at: int, end: int, bits_max: int) -> tuple[int, int]:
    if end - at >= 2:
        byte = get_byte(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        second = get_byte(at + 1)
        if second < 0x80:
            bits = (byte & 0x7F) | (second << 7)
            return (bits >> 1) ^ -(bits & 1), at + 2
    return _get_long_varint(at, end, bits_max)


@inlined
def get_varint(at: int, end: int) -> tuple[int, int]:
    """Reads the 32-bit varint at `at` and returns it with its end; -1 if it is malformed or does
    not end before `end`.
    """
    return _get_any_varint(at, end, 32)


@inlined
def get_varlong(at: int, end: int) -> tuple[int, int]:
    """Reads a 64-bit varint as `get_varint` does."""
    return _get_any_varint(at, end, 64)
