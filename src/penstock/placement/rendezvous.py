"""Chooses which of several members has something: the one with the highest random weight. Pure.

Every agent computes the same owner from the same members, without asking anybody, and a member
that comes or goes moves only what it gets or had. The hash is BLAKE2b, keyed by the member, cut
to 64 bits: Python's own is seeded per process, and a CRC of (key, member) is linear, so that its
order of members would be nearly the same for all keys.
Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998; weights by
Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

MEMBER_BYTES: Final = 8
SCORE_BYTES: Final = 8
_SCORES: Final = float(1 << (8 * SCORE_BYTES))


def score(key: bytes, member: int) -> int:
    """The member's 64-bit weight for a key.

    Args:
        member: an agent's id, or any other number below 2^63.
    """
    name = member.to_bytes(MEMBER_BYTES, "big")
    return int.from_bytes(blake2b(key, digest_size=SCORE_BYTES, key=name).digest(), "big")


def owner_of(
    key: bytes, members: Sequence[int], weights: Mapping[int, float] | None = None
) -> int | None:
    """The member that has a key; None when there are no members. Their order doesn't matter.

    Args:
        weights: shares of members, relative to the others' (1 where nothing is said). One with
            weight 0 gets nothing while any other member has some.
    """
    if weights is None:
        return max(members, key=lambda member: (score(key, member), member), default=None)
    return max(
        members,
        key=lambda member: (_weighted(score(key, member), weights.get(member, 1.0)), member),
        default=None,
    )


def ranked(key: bytes, members: Sequence[int]) -> list[int]:
    """All members, the owner first; behind it who has the key when those before are gone."""
    return sorted(members, key=lambda member: (score(key, member), member), reverse=True)


def _weighted(value: int, weight: float) -> float:
    # In proportion to the weights, and a changed weight moves keys to or from that member alone.
    return -weight / math.log((value + 0.5) / _SCORES) if weight > 0 else -1.0
