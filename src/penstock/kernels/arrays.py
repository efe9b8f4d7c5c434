"""Names of the arrays that kernels take and give, for readers and type checkers.

What lies in an array is known to numba exactly; to the type checker an element is anything, since
arithmetic of numpy's scalars would have to be cast back line by line.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Uint8s: TypeAlias = NDArray[Any]
"""Bytes, of dtype uint8."""
Int32s: TypeAlias = NDArray[Any]
"""Lengths, and offsets of Arrow's columns, of dtype int32."""
Int64s: TypeAlias = NDArray[Any]
"""Positions, offsets and times, of dtype int64."""
Uint64s: TypeAlias = NDArray[Any]
"""Halves of hashes, of dtype uint64."""

wide = cast(Callable[[Any], int], np.int64)
"""A number of 64 bits with a sign, whatever it comes from."""
byte = cast(Callable[[Any], int], np.uint8)
"""The low byte of a number."""
unsigned = cast(Callable[[Any], Any], np.uint64)
"""A number of 64 bits without a sign. Only with others like it: with a signed one numba makes a
float of both."""
