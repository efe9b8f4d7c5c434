"""What some runs are bent towards: states that plain chance meets too seldom.

A profile adds to what a run has drawn and takes nothing away, save the WAL's mode. It comes from a
stream of chance of its own, so that the runs without one are what they would be without profiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.kafka.settings import KafkaSettings
from penstock.state.schema import CLUSTER_LEVEL, FEATURE_LEVEL_MAX, PIPELINE_LEVEL
from sim.chance import Chance

STREAM = 0x70726F66696C65
LATER_STREAM = 0x6578747261
LAST_STREAM = 0x6C6F7374
NEAR_STREAM = 0x6E656172
REPLACED_STREAM = 0x7265711B
DIFFERING_STREAM = 0x646966666575
CONNECTIONS_STREAM = 0x6361626C6573
DRILLS_STREAM = 0x6C6F6F6B6564
TRANSACTIONS_STREAM = 0x74786EF6
GROUPS_STREAM = 0x67727090
"""Such that the seeds which tests and planted bugs name stay what they are."""

KAFKA = KafkaSettings(auto_create_topics=False, confirm_timeout_s=2.0)


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
    differing_share: float = 0.0
    """Of the other runs at whose end a replica comes to differ from the others."""
    differing_in_life: bool = False
    """Whether replicas come to differ while there are faults."""
    digest_interval_ms: int = 60_000
    """Between comparisons of the agents' states."""
    restore_window_ms: int = -1
    """For which what a moment names is kept; -1: as drawn."""
    restored_in_life: bool = False
    """Whether the cluster is lost in mid-life, restored, and goes on with the same clients."""
    level: int = FEATURE_LEVEL_MAX
    """The feature level that the agents' first release knows; the next one knows all."""
    reply_rot_permille: int = 0
    """Of peers' replies in which a bit changes on the way, while there are faults."""
    session_share: float = 0.1
    """Of a producer's turns before which it begins anew, with another producer id."""
    races: bool = False
    """Whether WAL files are used again under their readers."""
    has_lane: bool = False
    """Whether flushes are ordered as those of an embedded server."""
    between_s_max: float = 10.0
    """Mean time between two faults."""
    has_streams: bool = False
    """Whether clients' connections are streams (`sim.sockets`)."""
    has_transactions: bool = False
    """Whether there are transactional producers (`sim.transactor`)."""
    has_groups: bool = False
    """Whether there are groups whose members change their protocol, and share groups."""
    has_drills: bool = False
    """Whether an operator restores the cluster to moments again and again (`sim.drills`)."""
    compactors_min: int = 0
    producers_min: int = 0
    beat_s: float = 0.0
    """Producers send at multiples of this time; 0: whenever they like."""
    slow_share_min: float = 0.0
    break_share_min: float = 0.0
    """Least shares of a client's messages that are late, and that break their connection."""
    kafka: KafkaSettings = KAFKA


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
    mode="wal",
    segment_age_ms=600,
    value_bytes_max=40,
    tail_cache_bytes=1 << 10,
    block_cache_bytes=4 << 10,
    faults=("rot_object", "rot_object", "rot_wal", "rot_wal", "rot_wal", "rot_replies"),
    between_s_max=0.3,
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
NO_WINDOW = Profile(name="no window", restore_window_ms=0, segment_age_ms=300)
"""Nothing but the grace holds a deletion back."""
UPGRADED = tuple(
    Profile(
        name=f"upgraded from {level}",
        level=level,
        faults=("upgrade", "upgrade", "upgrade"),
        between_s_max=1.5,
    )
    for level in (CLUSTER_LEVEL, PIPELINE_LEVEL)
)
"""Agents of an older release are replaced one by one, and the feature level rises in mid-life."""
DIFFERING = Profile(
    name="differing",
    archives=True,
    older_share=0.0,
    restored_share=0.0,
    differing_share=1.0,
    digest_interval_ms=3_000,
)
"""A cell of one agent's replica changes, perhaps of the one that snapshots are made of."""
CLOCKS_TOGETHER = Profile(
    name="clocks together",
    faults=("all_clocks", "all_clocks", "skew"),
    clock_days=30,
    restore_window_ms=0,
    segment_age_ms=300,
    between_s_max=1.0,
)
"""All clocks are ahead together, or one of them."""
LANE = Profile(
    name="lane", mode="object", has_lane=True, flush_bytes=200, think_s=0.01, session_share=0.5
)
"""Flushes are ordered by a lane that refuses some, as an embedded server's does on a full disk."""
RACES = replace(
    RECYCLED_WAL,
    name="used again",
    races=True,
    reply_rot_permille=300,
    segment_age_ms=100,
    think_s=0.01,
    faults=("read_behind", "read_behind", "read_behind"),
    between_s_max=0.1,
)
"""WAL files are used again while they are read, and replies of peers change on their way."""
SWAPPED = Profile(
    name="swapped",
    mode="object",
    flush_bytes=200,
    value_bytes_max=1,
    tail_cache_bytes=1 << 10,
    block_cache_bytes=4 << 10,
    faults=("swap_objects", "swap_objects", "swap_objects"),
    between_s_max=0.5,
)
"""Two objects of the same length change places, and each fits where the other was."""
LATER = (NO_WINDOW, *UPGRADED, DIFFERING, CLOCKS_TOGETHER, LANE, RACES, SWAPPED)
"""Drawn before the others, by a stream of their own: the other runs stay what they are."""
LATER_SHARE = 0.3


RESTORED_IN_LIFE = Profile(
    name="restored in life",
    mode="object",
    archives=True,
    records_times=3,
    older_share=0.0,
    restored_share=0.0,
    restored_in_life=True,
    between_s_max=2.0,
)
"""The cluster is lost and restored under clients that go on with what they hold."""
LAST_SHARE = 0.05
NEAR_CLOCKS = Profile(
    name="near clocks",
    faults=("near_skew", "near_skew", "near_skew"),
    restore_window_ms=0,
    segment_age_ms=300,
    between_s_max=1.0,
)
"""Agents' clocks are off by so little that they write on, and by more than the grace."""
NEAR_SHARE = 0.03
REPLACED = Profile(
    name="replaced",
    mode="wal",
    segment_age_ms=800,
    value_bytes_max=800,
    records_times=3,
    think_s=0.02,
    tail_cache_bytes=1 << 10,
    block_cache_bytes=8 << 10,
    faults=("replace_object", "replace_object", "replace_object"),
    between_s_max=0.2,
)
"""Objects are replaced by another cluster's of the same layout while agents have parts of them:
runs are longer than blocks, and are not in memory whole."""
REPLACED_SHARE = 0.04
DIFFERING_IN_LIFE = Profile(
    name="differing in life",
    archives=True,
    older_share=0.0,
    restored_share=0.0,
    differing_in_life=True,
    digest_interval_ms=3_000,
    faults=("damage_replica", "damage_replica"),
    between_s_max=1.0,
)
"""Cells of replicas change under agents that crash, bootstrap, hang and are cut off."""
DIFFERING_SHARE = 0.03
CONNECTIONS = Profile(
    name="connections",
    agents_max=2,
    has_streams=True,
    producers_min=20,
    beat_s=0.2,
    slow_share_min=0.003,
    break_share_min=0.02,
    think_s=0.02,
    kafka=replace(
        KAFKA,
        gather_ms=10,
        connection_budget_bytes=4 << 10,
        server_budget_bytes=64 << 10,
        stall_timeout_s=2.0,
        request_timeout_s=2.0,
        connections_max_idle_s=3.0,
    ),
)
"""Clients' connections drip, pause, are held up and cut off in the middle of frames; so many
producers are at work that their requests are gathered in waves."""
CONNECTIONS_SHARE = 0.05
DRILLS = Profile(
    name="drills",
    archives=True,
    older_share=0.0,
    restored_share=0.5,
    segment_age_ms=300,
    # Longer than the archive keeps anything in any case.
    restore_window_ms=7_000,
    compactors_min=1,
    has_drills=True,
)
"""Moments of the restore window are restored while objects are condemned and deleted."""
DRILLS_SHARE = 0.04


TRANSACTIONS = Profile(
    name="transactions",
    older_share=0.0,
    restored_share=0.0,
    has_transactions=True,
    segment_age_ms=300,
    members_min=0,
    slow_share_min=0.01,
    break_share_min=0.01,
)
"""Producers of both protocols with transactions, whose requests come late, twice or not at all."""
TRANSACTIONS_SHARE = 0.06


ALL_GROUPS = Profile(
    name="all groups",
    older_share=0.0,
    restored_share=0.0,
    has_groups=True,
    records_times=2,
    faults=("drain_paused", "drain_paused"),
    between_s_max=2.0,
    slow_share_min=0.005,
    break_share_min=0.005,
)
"""Groups whose members change their protocol one by one, share groups, and streams groups."""
ALL_GROUPS_SHARE = 0.05


def profile_of(seed: int) -> Profile:
    """Of a run."""
    if Chance(seed ^ GROUPS_STREAM).happens(ALL_GROUPS_SHARE):
        return ALL_GROUPS
    if Chance(seed ^ TRANSACTIONS_STREAM).happens(TRANSACTIONS_SHARE):
        return TRANSACTIONS
    if Chance(seed ^ CONNECTIONS_STREAM).happens(CONNECTIONS_SHARE):
        return CONNECTIONS
    if Chance(seed ^ DRILLS_STREAM).happens(DRILLS_SHARE):
        return DRILLS
    if Chance(seed ^ DIFFERING_STREAM).happens(DIFFERING_SHARE):
        return DIFFERING_IN_LIFE
    if Chance(seed ^ REPLACED_STREAM).happens(REPLACED_SHARE):
        return REPLACED
    if Chance(seed ^ NEAR_STREAM).happens(NEAR_SHARE):
        return NEAR_CLOCKS
    if Chance(seed ^ LAST_STREAM).happens(LAST_SHARE):
        return RESTORED_IN_LIFE
    chance = Chance(seed ^ LATER_STREAM)
    if chance.happens(LATER_SHARE):
        return chance.pick(LATER)
    chance = Chance(seed ^ STREAM)
    return chance.pick(PROFILES) if chance.happens(SHARE) else PLAIN
