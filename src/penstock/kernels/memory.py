"""Bytes at addresses, inside kernels: integers of files' order, and copies.

Helpers of kernels take a buffer's address and not its array: numba counts references to an array
at each call that it is handed to, also where the call is compiled in, and two atomic counts cost
more than a varint. The kernel that Python calls has the array, and its caller keeps it alive.
"""

from typing import Any, Final, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.kernels.jit import kernel

_INT: Final = types.int64
Llvm: TypeAlias = Any
"""A value, or what makes one, that numba and llvmlite hand to intrinsics; they bring no types."""
_LLVM_ALIGN: Final = 1  # nothing in a batch lies on a multiple of its size


def _generate_load(_context: Llvm, address: Llvm, position: Llvm) -> Llvm:
    """One byte."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        del context, signature
        pointer = _pointer(builder, arguments[0], arguments[1], 8)
        return builder.zext(builder.load(pointer), cgutils.intp_t)

    del _context, address, position
    return types.int64(_INT, _INT), generate


def _generate_load_word(_context: Llvm, address: Llvm, position: Llvm) -> Llvm:
    """Eight bytes, the first the lowest."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        del context, signature
        found = builder.load(_pointer(builder, arguments[0], arguments[1], 64))
        found.align = _LLVM_ALIGN
        return found

    del _context, address, position
    return types.uint64(_INT, _INT), generate


def _generate_store(_context: Llvm, address: Llvm, position: Llvm, value: Llvm) -> Llvm:
    """The low byte of an integer."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        pointer = _pointer(builder, arguments[0], arguments[1], 8)
        low = builder.trunc(arguments[2], pointer.type.pointee)
        builder.store(low, pointer)
        del signature
        return context.get_dummy_value()

    del _context, address, position, value
    return types.void(_INT, _INT, _INT), generate


def _generate_copy(
    _context: Llvm, target: Llvm, target_at: Llvm, source: Llvm, source_at: Llvm, count: Llvm
) -> Llvm:
    """C's memcpy between two places that don't overlap."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        copy: Llvm = cgutils.raw_memcpy
        copy(
            builder,
            _pointer(builder, arguments[0], arguments[1], 8),
            _pointer(builder, arguments[2], arguments[3], 8),
            arguments[4],
            1,
        )
        del signature
        return context.get_dummy_value()

    del _context, target, target_at, source, source_at, count
    return types.void(_INT, _INT, _INT, _INT, _INT), generate


def _generate_load_long(_context: Llvm, address: Llvm, index: Llvm) -> Llvm:
    """An element of an array of int64."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        del context, signature
        place = builder.shl(arguments[1], arguments[1].type(3))
        return builder.load(_pointer(builder, arguments[0], place, 64))

    del _context, address, index
    return types.int64(_INT, _INT), generate


def _generate_store_long(_context: Llvm, address: Llvm, index: Llvm, value: Llvm) -> Llvm:
    """An element of an array of int64."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        place = builder.shl(arguments[1], arguments[1].type(3))
        builder.store(arguments[2], _pointer(builder, arguments[0], place, 64))
        del signature
        return context.get_dummy_value()

    del _context, address, index, value
    return types.void(_INT, _INT, _INT), generate


def _generate_bits_of(_context: Llvm, value: Llvm) -> Llvm:
    """A double's 64 bits."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        del context, signature
        return builder.bitcast(arguments[0], ir.IntType(64))

    del _context, value
    return types.int64(types.float64), generate


def _generate_lowest_bit(_context: Llvm, word: Llvm) -> Llvm:
    """Count the zeros that a word has below its lowest bit."""

    def generate(context: Llvm, builder: Llvm, signature: Llvm, arguments: Llvm) -> Llvm:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    del _context, word
    return types.int64(types.uint64), generate


def _pointer(builder: Llvm, address: Llvm, position: Llvm, bits: int) -> Llvm:
    place = builder.add(address, position)
    return builder.inttoptr(place, ir.IntType(bits).as_pointer())


load: Llvm = intrinsic(_generate_load)
"""load(address, position): the byte there, as a number."""
load_word: Llvm = intrinsic(_generate_load_word)
"""load_word(address, position): eight bytes as uint64, the first the lowest."""
store: Llvm = intrinsic(_generate_store)
"""store(address, position, value): the value's low byte."""
load_long: Llvm = intrinsic(_generate_load_long)
"""load_long(address, index): an element of an array of int64."""
store_long: Llvm = intrinsic(_generate_store_long)
"""store_long(address, index, value): write an element of an array of int64."""
bits_of: Llvm = intrinsic(_generate_bits_of)
"""bits_of(value): the 64 bits of a double, as an int64."""
lowest_bit: Llvm = intrinsic(_generate_lowest_bit)
"""lowest_bit(word): the place of the lowest bit of a uint64 that is set; 64: there is none."""
_memory_copy: Llvm = intrinsic(_generate_copy)


@kernel
def read_int(address: int, position: int, size: int) -> int:
    """A signed integer of `size` bytes (at most 8), the first the highest."""
    value: int = load(address, position)
    for index in range(1, size):
        value = (value << 8) | load(address, position + index)
    shift = 64 - 8 * size
    return (value << shift) >> shift


@kernel
def write_int(address: int, position: int, value: int, size: int) -> None:
    """Write the low `size` bytes of an integer, the highest first."""
    for index in range(size):
        store(address, position + index, value >> (8 * (size - 1 - index)))


@kernel
def copy_bytes(target: int, target_at: int, source: int, source_at: int, count: int) -> None:
    """Copy bytes; the caller has checked both bounds."""
    if count < 16:
        # A call costs more than so few bytes.
        for index in range(count):
            store(target, target_at + index, load(source, source_at + index))
    else:
        _memory_copy(target, target_at, source, source_at, count)
