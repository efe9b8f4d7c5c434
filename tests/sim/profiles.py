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
    tail_cache_bytes: int = 4 << 10
    block_cache_bytes: int = 16 << 10
    commit_timeout_s: float = 4.0
    """After which a commit that is not answered is given up as in doubt."""
    wal_files_max: int = 6
    clock_days: int = 0
    """By which an agent's clock jumps ahead."""
    archives: bool = False
    """Whether there is an archive in any case."""
    older_share: float = 0.15
    """Of the runs at whose end the journal comes back older."""
    restored_share: float = 0.1
    """Of the other runs with an archive at whose end a cluster is restored from it."""
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
JUMPING_CLOCK = Profile(
    name="jumping clock",
    faults=("journal_clock", "journal_clock", "skew"),
    clock_days=30,
    between_s_max=1.0,
)
"""The journal's clock is wrong for moments, and everything that goes by age must not be."""
ROT = Profile(
    name="rot",
    segment_age_ms=300,
    value_bytes_max=40,
    tail_cache_bytes=1 << 10,
    block_cache_bytes=4 << 10,
    faults=("rot_object", "rot_object", "rot_wal", "rot_wal", "rot_replies"),
    between_s_max=0.6,
)
"""What is stored and what peers reply changes under its readers."""
ASTRAY = Profile(
    name="astray",
    mode="wal",
    wal_file_bytes=12 << 10,
    segment_age_ms=4_000,
    flush_bytes=200,
    faults=("stray", "stray", "crash_without_store"),
    between_s_max=1.5,
)
"""Agents are started with another cluster's settings while only their WALs have records."""
OLDER = Profile(name="older", archives=True, mode="object", older_share=1.0)
"""Snapshots and archived rows are those of a history that the journal loses."""
DOUBTS = Profile(
    name="doubts",
    commit_timeout_s=0.15,
    commit_share=0.6,
    members_min=2,
    faults=("journal_away", "journal_slow", "journal_slow"),
    between_s_max=0.8,
)
"""Commits are given up as in doubt, and come to the journal later."""
RECYCLED_WAL = Profile(
    name="recycled WAL",
    mode="wal",
    wal_file_bytes=12 << 10,
    wal_files_max=2,
    segment_age_ms=200,
    flush_bytes=2_000,
    value_bytes_max=800,
    think_s=0.02,
    records_times=2,
    tail_cache_bytes=1 << 10,
    block_cache_bytes=4 << 10,
    faults=("lag", "lag", "lag"),
    between_s_max=0.4,
)
"""Agents that lag behind the journal read of WAL files that their owners have used again."""
RESTORED = Profile(
    name="restored", archives=True, mode="object", older_share=0.0, restored_share=1.0
)
"""A cluster is restored while producers hold what its parent gave out later."""
PROFILES = (
    KEPT_WAL,
    MOVING_SHARDS,
    JUMPING_CLOCK,
    ROT,
    ASTRAY,
    OLDER,
    DOUBTS,
    RECYCLED_WAL,
    RESTORED,
)
SHARE = 0.6
"""Of the runs that have one."""


def profile_of(seed: int) -> Profile:
    """Of a run."""
    chance = Chance(seed ^ STREAM)
    return chance.pick(PROFILES) if chance.happens(SHARE) else PLAIN
