"""Big-endian integers and copies inside kernels."""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.kernels.arrays import Uint8s, byte, wide
from penstock.kernels.jit import kernel


@kernel
def read_int(data: Uint8s, position: int, size: int) -> int:
    """A signed integer of `size` bytes (at most 8)."""
    value = wide(0)
    for index in range(size):
        value = (value << 8) | wide(data[position + index])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@kernel
def write_int(out: Uint8s, position: int, value: int, size: int) -> None:
    """Write the low `size` bytes of an integer."""
    for index in range(size):
        out[position + index] = byte((value >> (8 * (size - 1 - index))) & 0xFF)


def _generate_copy(
    _context: Any, target: Any, target_at: Any, source: Any, source_at: Any, count: Any
) -> Any:
    """Copy `count` bytes between two arrays that don't overlap, as C's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_array = context.make_array(signature.args[0])(context, builder, arguments[0])
        from_array = context.make_array(signature.args[2])(context, builder, arguments[2])
        copy: Any = cgutils.raw_memcpy
        copy(
            builder,
            builder.gep(to_array.data, [arguments[1]]),
            builder.gep(from_array.data, [arguments[3]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    del _context
    return types.void(target, target_at, source, source_at, count), generate


_memory_copy: Any = intrinsic(_generate_copy)


@kernel
def copy_bytes(target: Uint8s, target_at: int, source: Uint8s, source_at: int, count: int) -> None:
    """Copy bytes between two arrays; the caller has checked both bounds."""
    if count < 16:
        # A call costs more than so few bytes.
        for index in range(count):
            target[target_at + index] = source[source_at + index]
    else:
        _memory_copy(target, target_at, source, source_at, count)
