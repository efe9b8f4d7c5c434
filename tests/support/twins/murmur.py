"""The slow, plain twin of `penstock.kernels.partitions`, which names the source."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """A 32-bit hash."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length - length % 4
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = (word * _FACTOR) & _MASK
        word ^= word >> 24
        word = (word * _FACTOR) & _MASK
        value = ((value * _FACTOR) & _MASK) ^ word
    if whole < length:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _FACTOR) & _MASK
    value ^= value >> 13
    value = (value * _FACTOR) & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that Kafka's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
