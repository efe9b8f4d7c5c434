"""The names of `meta`, and what becomes of each in a log that was restored. Pure.

A counter of `meta` says what the state gives out next. What the parent of a restored log gave out
after the moment is still in use out there, and another restore of the same backup gives out
numbers, too. So a restore moves every counter on to a place of its own
(`penstock.state.restored`). `Tables.set_meta` takes no name that isn't listed here: a new one is
listed as a counter or not, and docs/formats/journal.md ("What is given out") names it.
"""

from dataclasses import dataclass
from typing import Final

CLUSTER_ID: Final = "cluster_id"
CLUSTER_CONFIGS: Final = "cluster_configs"
FEATURE_LEVEL: Final = "feature_level"
NEXT_TOPIC_KEY: Final = "next_topic_key"
NEXT_PRODUCER_ID: Final = "next_producer_id"
LAST_WAL_GENERATION: Final = "last_wal_generation"
"""Last generation of the embedded server's WAL, which has the key 0."""
NEXT_WAL_KEY: Final = "next_wal_key"
"""Keys aren't given out twice: a late commit may name that of a WAL that is gone."""
NEXT_JOB: Final = "next_job"
"""Numbers aren't given out twice: a late commit or a forgotten object may carry that of a job that
is gone."""
EPOCH_FLOOR: Final = "agent_epoch_floor"
"""No agent opens this epoch or an earlier one: the greatest that a removed agent had, or that any
agent of a restored log's parent may have."""
LEADER_EPOCH: Final = "leader_epoch"
"""The leader epoch (KIP-320) of all partitions; absent: 0, the log was never restored."""

OPEN_HISTORIES: Final = "open_histories"
"""How many lost histories are open."""
LAST_HISTORY: Final = "last_history"
"""The greatest number of a lost history. Only this cluster's own archive carries such numbers."""
TIME_WALK: Final = "time_walk"
"""How far rows have been walked whose times come down with journal time (`apply_time`); empty or
absent: no walk is under way."""
TIME_MARK: Final = "time_mark"
TIME_JUMP: Final = "time_jump"
"""See `penstock.state.time_jumps`."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows.

    `first`: where it begins; absent from `meta`, it is there. `limit`: the state, or what carries
    it, holds no number from there on. `after_loss`: how far it moves when the journal is found to
    have lost rows, in which some may have been given out that are still in use: more than any
    journal loses. 0: its numbers are used inside the state alone.
    """

    first: int
    limit: int
    after_loss: int = 0


COUNTERS: Final = {
    # Partition keys, which are 20 bits longer, are SQLite's integers.
    NEXT_TOPIC_KEY: Counter(first=1, limit=1 << 43),
    NEXT_PRODUCER_ID: Counter(first=0, limit=1 << 63, after_loss=1 << 32),
    # 32 bits each of a run's place, whose highest bit is the sign.
    LAST_WAL_GENERATION: Counter(first=0, limit=1 << 32),
    NEXT_WAL_KEY: Counter(first=1, limit=1 << 31, after_loss=1 << 10),
    # Drivers and people read it as JSON, whose numbers are exact up to here.
    NEXT_JOB: Counter(first=1, limit=1 << 53, after_loss=1 << 20),
}
"""A restore moves each on, at random, so that no two logs give out the same."""
EPOCHS: Final = frozenset({EPOCH_FLOOR, LEADER_EPOCH})
"""A restore raises these to its own time: seconds since 2020."""
SETTINGS: Final = frozenset(
    {CLUSTER_ID, CLUSTER_CONFIGS, FEATURE_LEVEL, TIME_WALK, TIME_MARK, TIME_JUMP}
)
"""Nothing is given out of these."""
HISTORIES: Final = frozenset({OPEN_HISTORIES, LAST_HISTORY})
"""A restore forgets them with the rows of lost histories: those are the parent's to repair."""
META_NAMES: Final = COUNTERS.keys() | EPOCHS | SETTINGS | HISTORIES
