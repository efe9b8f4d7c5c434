"""Tunes the C library's allocator and the garbage collector, for processes that move many
megabytes at a time."""

import ctypes
import gc
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES_MAX: Final = 32 << 20
"""The most that glibc takes."""


def keep_freed_memory(bytes_max: int) -> bool:
    """Let freed memory, up to so much, stay with this process for its next allocations.

    By default glibc gives large blocks back to the system at once, and new ones come as pages that
    the kernel clears one by one as they are touched. Reading a topic in parts of 8 MiB, that was
    half of all CPU time.

    Returns: whether that could be set; elsewhere than with glibc it can't, and needn't.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES_MAX) and mallopt(_M_TRIM_THRESHOLD, bytes_max)
    )


def keep_loaded_objects() -> None:
    """Let the garbage collector pass over all objects that there are now, for good.

    To be called once, after what a process needs is imported. Spark's Python workers collect after
    each task, and going through what numba and pyarrow have made took half of their CPU time.
    """
    gc.freeze()
