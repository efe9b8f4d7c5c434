"""What some runs are bent towards: states that plain chance meets too seldom.

A profile adds to what a run has drawn and takes nothing away, save the WAL's mode. It comes from a
stream of chance of its own, so that the runs without one are what they would be without profiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.chance import Chance

STREAM = 0x70726F66696C65


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """See `PROFILES`. Empty: whatever the run has drawn."""

    name: str = ""
    mode: str = ""
    """Where records are durable first."""
    agents_max: int = 9
    wal_file_bytes: int = 16 << 10
    segment_age_ms: int = 0
    """How long they stay in the WAL."""
    flush_bytes: int = 0
    """At which a frame of the WAL is written."""
    value_bytes_max: int = 0
    think_s: float = 0.0
    records_times: int = 1
    """As many of each producer as are drawn."""
    commit_share: float = 0.15
    """Of a consumer's fetches after which it commits."""
    members_min: int = 0
    """Of the consumer group, of which there are 2 or more, or none."""
    faults: tuple[str, ...] = ()
    """Of `Faults`, beside those that the run likes."""
    between_s_max: float = 10.0
    """Mean time between two faults."""


PLAIN = Profile()
KEPT_WAL = Profile(
    name="kept WAL",
    mode="wal",
    agents_max=2,
    wal_file_bytes=12 << 10,
    segment_age_ms=4_000,
    flush_bytes=200,
    value_bytes_max=40,
    think_s=0.4,
    records_times=2,
    faults=("crash_without_store", "crash_without_store", "crash_without_store"),
    between_s_max=1.0,
)
"""Agents come back to WALs full of records that only they have, and write on there."""
MOVING_SHARDS = Profile(
    name="moving shards",
    commit_share=0.6,
    members_min=3,
    faults=("drain_paused", "drain_paused", "drain_paused"),
    between_s_max=1.0,
)
"""Coordinators lose their groups to others while they hang, and wake with commits before them."""
PROFILES = (KEPT_WAL, MOVING_SHARDS)
SHARE = 0.4
"""Of the runs that have one."""


def profile_of(seed: int) -> Profile:
    """Of a run."""
    chance = Chance(seed ^ STREAM)
    return chance.pick(PROFILES) if chance.happens(SHARE) else PLAIN
