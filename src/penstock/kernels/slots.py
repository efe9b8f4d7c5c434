"""Filling slots (`penstock.kernels.shapes`), and taking them back: what JSON and Avro share."""

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_long, store, store_long
from penstock.kernels.shapes import GROUP, NODE_COLUMNS, TEXT_BYTES_MAX, UUID_BYTES


@kernel
def text_at(position: int, size: int, is_escaped: int) -> int:
    """A text as one number: 32 bits of position, one of whether it has escapes, 31 of bytes."""
    return position << 32 | is_escaped << 31 | size


@kernel
def forget(
    nodes: int,
    node_count: int,
    bases: int,
    longs: int,
    valid: int,
    before: int,
    counts: int,
    group_count: int,
) -> None:
    """Make the slots zero that were filled since the groups had `before` elements.

    Args:
        nodes, bases, longs, valid, before, counts: addresses of the arrays.
    """
    for node in range(node_count):
        group = load_long(nodes, node * NODE_COLUMNS + GROUP)
        base = load_long(bases, node)
        # The root's element is counted when it is whole.
        end = load_long(counts, group) + (1 if group == 0 else 0)
        for slot in range(load_long(before, group), end):
            store_long(longs, base + slot, wide(0))
            store(valid, base + slot, wide(0))
    for group in range(group_count):
        store_long(counts, group, load_long(before, group))


@kernel
def has_twice(address: int, longs: int, base: int, first: int, end: int) -> int:
    """Return 1 where two texts of slots [first, end) have the same bytes."""
    for slot in range(first, end):
        this = load_long(longs, base + slot)
        size = this & TEXT_BYTES_MAX
        for other_slot in range(first, slot):
            other = load_long(longs, base + other_slot)
            if other & TEXT_BYTES_MAX == size and _same(address, this >> 32, other >> 32, size):
                return 1
    return 0


@kernel
def is_uuid(address: int, at: int, size: int) -> int:
    """Return 1 for a UUID as Python writes it: lower case, with hyphens."""
    if size != UUID_BYTES:
        return 0
    for index in range(UUID_BYTES):
        found = load(address, at + index)
        is_hyphen = index == 8 or (index > 12 and index < 24 and (index - 13) % 5 == 0)
        if is_hyphen:
            if found != 45:
                return 0
        elif not (48 <= found <= 57 or 97 <= found <= 102):
            return 0
    return 1


@kernel
def utf8_end(address: int, at: int, end: int) -> int:
    """The position after one character of several bytes; -1: it is not UTF-8.

    Surrogates are not: RFC 3629, section 3.
    """
    first = load(address, at)
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return -1
    second = load(address, at + 1)
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return -1
    for index in range(2, size):
        if load(address, at + index) & 0xC0 != 0x80:
            return -1
    return at + size


@kernel
def _same(address: int, one: int, other: int, size: int) -> bool:
    for index in range(size):  # noqa: SIM110 - numba compiles no generators
        if load(address, one + index) != load(address, other + index):
            return False
    return True
