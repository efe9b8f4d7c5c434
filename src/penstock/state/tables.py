"""The state's tables with a write-through cache of hot rows; what apply reads and writes.

Apply changes rows in memory and they are written once per transaction, however many commands
touched them. Whatever is only in memory is gone after `forget`, which a rollback calls. Code that
reads or deletes ranges by SQL calls `flush` first, so that the tables are true.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.model.ids import PARTITION_BITS, PARTITION_COUNT_MAX, TopicId, TopicKey
from penstock.records.sums import epoch_seed, seed_within, topic_seed
from penstock.replica.statements import insert_rows
from penstock.state.answers import AnyAnswer, decode_answers, encode_answers
from penstock.state.cluster_tables import ClusterTables
from penstock.state.meta import LEADER_EPOCH, META_NAMES, NEXT_PRODUCER_ID
from penstock.state.rows import AgentStatus, GroupKind
from penstock.state.schema import INTEGRITY_LEVEL, STORED_ENTRIES
from penstock.state.sequences import ProducerState, pack_ranges, unpack_ranges
from penstock.state.stored_answers import as_if_stored, decode_stored, encode_stored, restate
from penstock.state.transaction_tables import TransactionTables

PRODUCERS_CACHED_MAX: Final = 20_000
PARTITIONS_CACHED_MAX: Final = 250_000
"""Bound of rows with 250 bytes each. Where commits go over more partitions than these in turn,
each run reads one again: 1.9 us of 7."""
GROUPS_CACHED_MAX: Final = 20_000

_NEW_HEAD: Final = (
    "ON CONFLICT (partition_key) DO UPDATE SET log_start = excluded.log_start,"
    " next_offset = excluded.next_offset, bytes = excluded.bytes"
)
_NEW_OFFSET: Final = (
    "ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_ms = excluded.commit_ms"
)

KEYS_PER_LOAD: Final = 64
_MARKS: Final = ",".join("?" * KEYS_PER_LOAD)

OffsetKey = tuple[str, bytes, int]
RunValues = list[Any]
"""A row of `wal_runs` or `object_runs`: integers, but for a sum that is None."""
StoredEntry = tuple[int, int, int, list[AnyAnswer], bool]
"""Epoch, n, position and answers of an entry; whether reasons are stored without sentences."""


class TopicRow:
    """A topic, as apply changes it."""

    __slots__ = (
        "configs",
        "name",
        "partitions",
        "replication_factor",
        "topic_id",
        "topic_key",
    )

    def __init__(
        self,
        topic_key: TopicKey,
        topic_id: TopicId,
        name: str,
        partitions: int,
        configs: dict[str, str],
        replication_factor: int,
    ) -> None:
        self.replication_factor = replication_factor
        self.topic_key = topic_key
        self.topic_id = topic_id
        self.name = name
        self.partitions = partitions
        self.configs = configs


class PartitionRow:
    """A partition's head, as apply changes it. `bytes_live`: of runs not trimmed; `seed`: of the
    sums of new runs, with the leader epoch."""

    __slots__ = ("bytes_live", "log_start", "next_offset", "seed")

    def __init__(self, log_start: int, next_offset: int, bytes_live: int, seed: int) -> None:
        self.log_start = log_start
        self.next_offset = next_offset
        self.bytes_live = bytes_live
        self.seed = seed


class AgentRow:
    """An agent's epoch, whether that is over, and the last entry that was applied of it: its n
    and its position."""

    __slots__ = ("epoch", "fenced", "last_n", "position")

    def __init__(self, epoch: int, last_n: int, position: int, *, fenced: bool) -> None:
        self.epoch = epoch
        self.last_n = last_n
        self.position = position
        self.fenced = fenced


def encode_json(value: object) -> str:
    """JSON with sorted keys: equal values are equal text."""
    return msgspec.json.encode(value, order="deterministic").decode()


class Tables:
    """All tables of the state over one connection, inside the replica's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.forget()

    def forget(self) -> None:
        """Drop all that is in memory."""
        self._loaded = False
        self._cluster: ClusterTables | None = None
        self._meta: dict[str, Any] = {}
        self._dirty_meta: set[str] = set()
        self._new_entries: dict[int, StoredEntry] = {}
        self.topics_by_id: dict[bytes, TopicRow] = {}
        self.topics_by_name: dict[str, TopicRow] = {}
        self._seeds: dict[int, int] = {}
        """Seeds for the sums of new runs, with the leader epoch, by topic key."""
        self.partitions: dict[int, PartitionRow] = {}
        self.producers: dict[tuple[int, int], ProducerState] = {}
        self.agents: dict[int, AgentRow] = {}
        self._groups: set[str] = set()
        self.dirty_partitions: set[int] = set()
        self.dirty_producers: set[tuple[int, int]] = set()
        self.new_wal_runs: list[RunValues] = []
        self.new_object_runs: list[RunValues] = []
        self._new_offsets: dict[OffsetKey, tuple[int, int, str, int]] = {}
        self.transactions = TransactionTables(self._connection)

    def ensure_loaded(self) -> None:
        """Read what is kept whole: meta and topics."""
        if self._loaded:
            return
        self._meta = dict(self.execute("SELECT name, value FROM meta"))
        for key, topic_id, name, count, configs, factor in self.execute("SELECT * FROM topics"):
            topic = TopicRow(key, topic_id, name, count, msgspec.json.decode(configs), factor)
            self.topics_by_id[topic.topic_id] = self.topics_by_name[topic.name] = topic
            self._keep_seed(topic)
        self._cluster = ClusterTables(self._connection)
        self._loaded = True

    @property
    def cluster(self) -> ClusterTables:
        """Agents, WALs and shards; once loaded."""
        assert self._cluster is not None
        return self._cluster

    # -- meta ----------------------------------------------------------------------------------

    def meta_int(self, name: str) -> int:
        """A number of `meta`; 0 when it was never set."""
        value = self._meta.get(name, 0)
        assert isinstance(value, int)
        return value

    def take_producer_ids(self, count: int) -> int:
        """Take ids that were never given out; the first of them."""
        first = self.meta_int(NEXT_PRODUCER_ID)
        self.set_meta(NEXT_PRODUCER_ID, first + count)
        return first

    def meta_text(self, name: str) -> str:
        """A text of `meta`; empty when it was never set."""
        value = self._meta.get(name, "")
        assert isinstance(value, str)
        return value

    def set_meta(self, name: str, value: int | str) -> None:
        """Set one; written at the end of the transaction."""
        assert name in META_NAMES, f"{name}: list it in penstock.state.meta"
        self._meta[name] = value
        self._dirty_meta.add(name)

    # -- topics and partitions -----------------------------------------------------------------

    def save_topic(self, topic: TopicRow) -> None:
        """Insert or update."""
        self.topics_by_id[topic.topic_id] = self.topics_by_name[topic.name] = topic
        self._keep_seed(topic)
        self.execute(
            "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic_key)"
            " DO UPDATE SET partitions = excluded.partitions, configs = excluded.configs",
            (
                topic.topic_key,
                topic.topic_id,
                topic.name,
                topic.partitions,
                encode_json(topic.configs),
                topic.replication_factor,
            ),
        )

    def add_partitions(self, topic: TopicRow, start: int, end: int) -> None:
        """New, empty partitions [start, end) of a topic."""
        first = topic.topic_key << PARTITION_BITS
        self.executemany(
            "INSERT INTO partitions VALUES (?, 0, 0, 0)",
            ((first + number,) for number in range(start, end)),
        )
        epoch = self.meta_int(LEADER_EPOCH)
        if epoch:
            self.executemany(
                "INSERT INTO leader_epochs VALUES (?, ?, 0)",
                ((first + number, epoch) for number in range(start, end)),
            )

    def partition(self, key: int) -> PartitionRow | None:
        """A partition's row; call `touch` after changing it."""
        row = self.partitions.get(key)
        if row is None:
            found = self.execute(
                "SELECT log_start, next_offset, bytes FROM partitions WHERE partition_key = ?",
                (key,),
            ).fetchone()
            if found is None:
                return None
            log_start, next_offset, size = found
            row = PartitionRow(log_start, next_offset, size, self._seed(key))
            self.partitions[key] = row
        return row

    def load_partitions(self, keys: Sequence[int]) -> None:
        """Read rows that aren't in memory by few statements; those that don't exist stay unread."""
        partitions = self.partitions
        for start in range(0, len(keys), KEYS_PER_LOAD):
            some = keys[start : start + KEYS_PER_LOAD]
            marks = _MARKS if len(some) == KEYS_PER_LOAD else ",".join("?" * len(some))
            for key, log_start, next_offset, size in self.execute(
                "SELECT partition_key, log_start, next_offset, bytes FROM partitions"  # noqa: S608
                f" WHERE partition_key IN ({marks})",
                some,
            ):
                partitions[key] = PartitionRow(log_start, next_offset, size, self._seed(key))

    def _seed(self, key: int) -> int:
        return seed_within(self._seeds[key >> PARTITION_BITS], key & PARTITION_COUNT_MAX)

    def _keep_seed(self, topic: TopicRow) -> None:
        # The leader epoch changes in no entry.
        epoch = self.meta_int(LEADER_EPOCH)
        self._seeds[topic.topic_key] = epoch_seed(topic_seed(topic.topic_id), epoch)

    def remove_topic(self, topic: TopicRow) -> None:
        """Delete a topic's own rows and what is bounded by its partitions. Its runs, producers and
        groups' offsets stay: see `penstock.state.leftovers`."""
        self.flush()
        first = topic.topic_key << PARTITION_BITS
        keys = (first, first + (1 << PARTITION_BITS))
        for table in ("partitions", "clean", "leader_epochs", "lost_ranges", "rebuilt_ranges"):
            self.execute(
                f"DELETE FROM {table} WHERE partition_key >= ? AND partition_key < ?",  # noqa: S608
                keys,
            )
        self.execute("DELETE FROM table_progress WHERE topic_id = ?", (topic.topic_id,))
        self.execute("DELETE FROM topics WHERE topic_key = ?", (topic.topic_key,))
        del self.topics_by_id[topic.topic_id], self.topics_by_name[topic.name]
        del self._seeds[topic.topic_key]
        for number in range(topic.partitions):
            self.partitions.pop(first + number, None)
        self.producers = {
            key: state
            for key, state in self.producers.items()
            if key[0] >> PARTITION_BITS != topic.topic_key
        }

    # -- producers -----------------------------------------------------------------------------

    def producer(self, key: tuple[int, int]) -> ProducerState | None:
        """State of (partition key, producer id)."""
        state = self.producers.get(key)
        if state is None:
            found = self.execute(
                "SELECT epoch, sequences, last_timestamp, EXISTS (SELECT 1"
                " FROM transaction_partitions AS t WHERE t.producer_id = p.producer_id"
                " AND t.partition_key = p.partition_key AND t.first_offset >= 0)"
                " FROM producers AS p WHERE p.partition_key = ? AND p.producer_id = ?",
                key,
            ).fetchone()
            if found is None:
                return None
            epoch, sequences, last_timestamp, is_open = found
            state = ProducerState(
                epoch, unpack_ranges(sequences), last_timestamp, in_transaction=bool(is_open)
            )
            self.producers[key] = state
        return state

    def end_in_partitions(
        self, keys: Iterable[int], producer_id: int, *, epoch: int, time_ms: int
    ) -> None:
        """Note that a producer's transaction ended in partitions, by a marker of that epoch."""
        unread = []
        for key in keys:
            state = self.producers.get((key, producer_id))
            if state is None:
                unread.append((epoch, epoch, time_ms, key, producer_id))
            else:
                state.end_transaction(epoch, time_ms)
                self.dirty_producers.add((key, producer_id))
        # Without reading them: there may be 10,000.
        self.executemany(
            "UPDATE producers SET sequences = iif(epoch = ?, sequences, x''), epoch = ?,"
            " last_timestamp = ? WHERE partition_key = ? AND producer_id = ?",
            unread,
        )

    def expire_producers(self, items: list[tuple[int, int, int]]) -> None:
        """Delete (partition key, producer id) where the last timestamp is still the given one."""
        self.flush()
        # One with an open transaction in the partition has a next sequence there.
        items = [item for item in items if not self.transactions.is_written(item[1], item[0])]
        self.executemany(
            "DELETE FROM producers"
            " WHERE partition_key = ? AND producer_id = ? AND last_timestamp = ?",
            items,
        )
        for key, producer_id, _ in items:
            self.producers.pop((key, producer_id), None)

    # -- objects -------------------------------------------------------------------------------

    def object_state(self, key: str) -> tuple[int, int, bool] | None:
        """(object id, live run count, whether it is condemned), or None."""
        found = self.execute(
            "SELECT object_id, live_runs, condemned_position FROM objects WHERE key = ?", (key,)
        ).fetchone()
        return None if found is None else (found[0], found[1], found[2] is not None)

    def add_object(self, key: str, size_bytes: int, *, raw: bool = False) -> int:
        """A new object without runs; its id. `raw`: its base offsets aren't final."""
        # What is read of it is labelled with the epoch that it was appended in, however many
        # restores come after.
        label = 1 + self.meta_int(LEADER_EPOCH) if raw else 0
        cursor = self.execute(
            "INSERT INTO objects (key, bytes, live_runs, raw) VALUES (?, ?, 0, ?)",
            (key, size_bytes, label),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def add_live_runs(self, object_id: int, count: int) -> None:
        """Count runs that an object holds now."""
        if count:
            self.execute(
                "UPDATE objects SET live_runs = live_runs + ? WHERE object_id = ?",
                (count, object_id),
            )

    def drop_object_runs(self, counts: Iterable[tuple[int, int]]) -> None:
        """Count (object id, runs) that are gone."""
        self.executemany(
            "UPDATE objects SET live_runs = live_runs - ? WHERE object_id = ?",
            ((count, object_id) for object_id, count in counts),
        )

    # -- groups --------------------------------------------------------------------------------

    def group_exists(self, group_id: str) -> bool:
        """Whether there is such a group."""
        if group_id in self._groups:
            return True
        found = self.execute("SELECT 1 FROM groups WHERE group_id = ?", (group_id,)).fetchone()
        if found is not None:
            self._groups.add(group_id)
        return found is not None

    def save_group(
        self,
        group_id: str,
        generation: int,
        protocol_type: str,
        empty_since_ms: int | None,
        state: bytes,
        kind: int = GroupKind.CLASSIC,
    ) -> None:
        """Insert or replace."""
        self._groups.add(group_id)
        self.execute(
            "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?)",
            (group_id, generation, protocol_type, empty_since_ms, state, kind),
        )

    def empty_since_ms(self, group_id: str) -> int | None:
        """Return since when a group has been empty; None: it isn't, or there is none."""
        found = self.execute(
            "SELECT empty_since_ms FROM groups WHERE group_id = ?", (group_id,)
        ).fetchone()
        return None if found is None else found[0]

    def save_members(
        self, group_id: str, rows: Sequence[tuple[str, bytes]], removed: Sequence[str]
    ) -> None:
        """Delete some of a group's members, then insert or replace others."""
        self.executemany(
            "DELETE FROM group_members WHERE group_id = ? AND member_id = ?",
            [(group_id, member_id) for member_id in removed],
        )
        self.executemany(
            "INSERT OR REPLACE INTO group_members VALUES (?, ?, ?)",
            [(group_id, member_id, state) for member_id, state in rows],
        )

    def save_shares(
        self,
        group_id: str,
        rows: Sequence[tuple[bytes, int, int, bytes]],
        removed: Sequence[tuple[bytes, int]],
    ) -> None:
        """Delete some of a group's share partitions, then insert or replace others."""
        self.executemany(
            "DELETE FROM share_partitions WHERE group_id = ? AND topic_id = ? AND partition = ?",
            [(group_id, *place) for place in removed],
        )
        self.executemany(
            "INSERT OR REPLACE INTO share_partitions VALUES (?, ?, ?, ?, ?)",
            [(group_id, *row) for row in rows],
        )

    def group_configs(self, group_id: str) -> dict[str, str]:
        """A group's own configs."""
        found = self.execute(
            "SELECT configs FROM group_configs WHERE group_id = ?", (group_id,)
        ).fetchone()
        return {} if found is None else msgspec.json.decode(found[0], type=dict[str, str])

    def configured_groups(self) -> int:
        """Count the groups that have configs."""
        return int(self.execute("SELECT count(*) FROM group_configs").fetchone()[0])

    def save_group_configs(self, group_id: str, configs: dict[str, str]) -> None:
        """Replace a group's configs; none: it has no row."""
        if configs:
            self.execute(
                "INSERT OR REPLACE INTO group_configs VALUES (?, ?)",
                (group_id, encode_json(configs)),
            )
        else:
            self.execute("DELETE FROM group_configs WHERE group_id = ?", (group_id,))

    def group_times(self, group_id: str) -> tuple[int, int] | None:
        """Return since when a group has been empty and when its newest offset was committed; -1:
        it isn't, there is none. None: no such group."""
        self.flush_offsets()
        row: tuple[int, int] | None = self.execute(
            "SELECT coalesce(empty_since_ms, -1), coalesce((SELECT max(commit_ms)"
            " FROM group_offsets WHERE group_id = groups.group_id), -1)"
            " FROM groups WHERE group_id = ?",
            (group_id,),
        ).fetchone()
        return row

    def remove_group(self, group_id: str) -> None:
        """Delete with its offsets."""
        self.flush_offsets()
        self._groups.discard(group_id)
        self.execute("DELETE FROM groups WHERE group_id = ?", (group_id,))
        self.execute("DELETE FROM group_members WHERE group_id = ?", (group_id,))
        self.execute("DELETE FROM share_partitions WHERE group_id = ?", (group_id,))
        self.execute("DELETE FROM group_offsets WHERE group_id = ?", (group_id,))

    def set_offset(
        self, key: OffsetKey, offset: int, leader_epoch: int, metadata: str, commit_ms: int
    ) -> None:
        """A group's offset, written at the end of the transaction."""
        self._new_offsets[key] = (offset, leader_epoch, metadata, commit_ms)

    # -- agents --------------------------------------------------------------------------------

    def agent(self, agent_id: int) -> AgentRow | None:
        """An agent's epoch and last entry."""
        row = self.agents.get(agent_id)
        if row is None:
            # SQLite takes `position` from the row that has the greatest n.
            found = self.execute(
                "SELECT a.epoch, max(e.n), e.position, a.status FROM agents AS a"
                " JOIN agent_entries AS e ON e.epoch = a.epoch"
                " AND e.slot_key >= ? AND e.slot_key < ? WHERE a.agent = ? GROUP BY a.agent",
                (agent_id * STORED_ENTRIES, (agent_id + 1) * STORED_ENTRIES, agent_id),
            ).fetchone()
            if found is None:
                return None
            epoch, last_n, position, status = found
            row = self.agents[agent_id] = AgentRow(
                epoch, last_n, position, fenced=status == AgentStatus.FENCED
            )
        return row

    def store_entry(
        self, agent_id: int, epoch: int, n: int, position: int, answers: list[AnyAnswer]
    ) -> None:
        """An agent's last entry, and what to answer should it come again."""
        slot_key = agent_id * STORED_ENTRIES + n % STORED_ENTRIES
        # Most are overwritten before they are written, and never encoded. The form is that of the
        # level now: how entries are grouped into commits must not matter.
        self._new_entries[slot_key] = (epoch, n, position, answers, self.stores_reasons)

    def stored_answers(self, agent_id: int, epoch: int, n: int) -> list[AnyAnswer] | None:
        """Return the answers of one of the agent's last entries; None: it isn't one of the last."""
        slot_key = agent_id * STORED_ENTRIES + n % STORED_ENTRIES
        new = self._new_entries.get(slot_key)
        if new is not None:
            if new[:2] != (epoch, n):
                return None
            return as_if_stored(new[3]) if new[4] else new[3]
        found = self.execute(
            "SELECT answers FROM agent_entries WHERE slot_key = ? AND epoch = ? AND n = ?",
            (slot_key, epoch, n),
        ).fetchone()
        return None if found is None else self.decode_answers(found[0])

    @property
    def stores_reasons(self) -> bool:
        """Whether refusals are stored as their reasons, without sentences."""
        return self.meta_int("feature_level") >= INTEGRITY_LEVEL

    def encode_answers(self, answers: list[AnyAnswer]) -> bytes:
        """Answers as the state holds them at its level."""
        return encode_stored(answers) if self.stores_reasons else encode_answers(answers)

    def decode_answers(self, body: bytes) -> list[AnyAnswer]:
        """The inverse, for who sends something again."""
        return decode_stored(body) if self.stores_reasons else decode_answers(body)

    def restate_answers(self) -> None:
        """Take the sentences out of all stored answers, when the level rises: releases that worded
        them differently may have applied the entries before. At most 16 per agent and 1 per job."""
        self.flush()
        for table, key, column in (
            ("agent_entries", "slot_key", "answers"),
            ("pipeline_jobs", "job", "last_answer"),
        ):
            rows = self.execute(f"SELECT {key}, {column} FROM {table}").fetchall()  # noqa: S608
            self.executemany(
                f"UPDATE {table} SET {column} = ? WHERE {key} = ?",  # noqa: S608
                [(restate(body), found) for found, body in rows if body],
            )

    def forget_entries(self, agent_id: int) -> None:
        """Delete what `store_entry` kept of an agent."""
        span = (agent_id * STORED_ENTRIES, (agent_id + 1) * STORED_ENTRIES)
        for slot_key in range(*span):
            self._new_entries.pop(slot_key, None)
        self.execute("DELETE FROM agent_entries WHERE slot_key >= ? AND slot_key < ?", span)

    # -- the cache -----------------------------------------------------------------------------

    def flush_offsets(self) -> None:
        """Write pending group offsets."""
        if self._new_offsets:
            offsets = [key + value for key, value in self._new_offsets.items()]
            insert_rows(self.execute, "INSERT INTO group_offsets", offsets, tail=_NEW_OFFSET)
            self._new_offsets.clear()

    def flush(self) -> None:
        """Write all that is only in memory."""
        if self.new_wal_runs:
            insert_rows(self.execute, "INSERT INTO wal_runs", self.new_wal_runs)
            self.new_wal_runs.clear()
        if self.new_object_runs:
            insert_rows(self.execute, "INSERT INTO object_runs", self.new_object_runs)
            self.new_object_runs.clear()
        if self.dirty_partitions:
            heads = []
            for key in sorted(self.dirty_partitions):
                row = self.partitions[key]
                heads.append((key, row.log_start, row.next_offset, row.bytes_live))
            insert_rows(self.execute, "INSERT INTO partitions", heads, tail=_NEW_HEAD)
            self.dirty_partitions.clear()
        if self.dirty_producers:
            producers = self.producers
            states = []
            # Sorted: neighbours in the tree are written one after the other.
            for producer_key in sorted(self.dirty_producers):
                state = producers[producer_key]
                states.append(
                    (*producer_key, state.epoch, pack_ranges(state.ranges), state.last_timestamp)
                )
            insert_rows(self.execute, "INSERT OR REPLACE INTO producers", states)
            self.dirty_producers.clear()
        if self._new_offsets:
            self.flush_offsets()
        if self._dirty_meta:
            values = [(name, self._meta[name]) for name in sorted(self._dirty_meta)]
            insert_rows(self.execute, "INSERT OR REPLACE INTO meta", values)
            self._dirty_meta.clear()
        if self._new_entries:
            entries = [
                (
                    slot_key,
                    epoch,
                    n,
                    position,
                    (encode_stored if plain else encode_answers)(answers),
                )
                for slot_key, (epoch, n, position, answers, plain) in self._new_entries.items()
            ]
            insert_rows(self.execute, "INSERT OR REPLACE INTO agent_entries", entries)
            self._new_entries.clear()

    def bound_caches(self) -> None:
        """Keep memory bounded; after a flush, when nothing is dirty."""
        if len(self.producers) > PRODUCERS_CACHED_MAX:
            # A dict keeps the order of insertion: the older half goes.
            for producer_key in list(self.producers)[: PRODUCERS_CACHED_MAX // 2]:
                del self.producers[producer_key]
        if len(self.partitions) > PARTITIONS_CACHED_MAX:
            for key in list(self.partitions)[: PARTITIONS_CACHED_MAX // 2]:
                del self.partitions[key]
        if len(self._groups) > GROUPS_CACHED_MAX:
            self._groups.clear()
        self.transactions.bound()
