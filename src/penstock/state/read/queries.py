"""Questions to the state, on a read-only connection of the calling thread.

Each answer comes from one statement, so from one moment, unless said otherwise. Read transactions
are short: a long one keeps SQLite's WAL from being reused.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.model.ids import PartitionKey
from penstock.security.acl import AclBinding
from penstock.security.api_key import ApiKey
from penstock.security.quota import QuotaChange
from penstock.security.scram.credential import ScramCredential
from penstock.state import time_jumps
from penstock.state.apply.api_keys import SELECT_API_KEYS, api_key_of_row
from penstock.state.apply.credentials import SELECT_CREDENTIALS, credential_of_row
from penstock.state.apply.digests import SELECT_DIGESTS, round_of_rows
from penstock.state.apply.histories import SELECT_HISTORIES, history_of_row
from penstock.state.apply.quotas import SELECT_QUOTAS, quota_of_row
from penstock.state.cluster_tables import (
    SELECT_AGENTS,
    SELECT_SHARDS,
    SELECT_WALS,
    agent_of_row,
)
from penstock.state.digest_plan import DigestRound
from penstock.state.leader_epochs import EpochStart, epoch_starts
from penstock.state.leftovers import TRIM
from penstock.state.meta import EPOCH_FLOOR, LEADER_EPOCH, TIME_JUMP, TIME_WALK
from penstock.state.read.group_statements import (
    GROUP,
    GROUPS,
    GROUPS_PAGE,
    group_statements_of_version,
)
from penstock.state.read.loss_queries import LossQueries
from penstock.state.read.pipeline_queries import (
    KEYS_PER_STATEMENT,
    PipelineQueries,
    job_statements_of_version,
)
from penstock.state.read.run_statements import (
    FIRST_RUN_AT_TIME,
    FIRST_RUN_IN_A_WAL,
    MARKERS_PAST,
    MARKERS_UP_TO,
    OBJECTS,
    RUN_WITH_MAX_TIMESTAMP,
    RUNS_FROM,
    RUNS_OF_OBJECT,
    WAL_GENERATIONS,
    WAL_RUNS,
    statements_of_version,
)
from penstock.state.read.topic_statements import TOPICS, topic_statements_of_version
from penstock.state.read.transaction_queries import TransactionQueries
from penstock.state.rows import (
    GENERATION_BITS,
    ActiveProducer,
    Agent,
    GroupKind,
    GroupRow,
    LostHistory,
    ObjectRow,
    OffsetRow,
    PartitionProducer,
    Shard,
    ShareRow,
    StoredRun,
    StoredTopic,
    Wal,
)
from penstock.state.schema import STORED_ENTRIES
from penstock.state.sequences import NO_SEQUENCE, unpack_ranges

__all__ = [
    "ActiveProducer",
    "Agent",
    "GroupRow",
    "ObjectRow",
    "OffsetRow",
    "Queries",
    "Shard",
    "StoredRun",
    "Wal",
]

_NEWEST: Final = 2**63 - 1
_PRODUCERS: Final = "SELECT producer_id, epoch, sequences, last_timestamp FROM producers"


class Queries(PipelineQueries, LossQueries, TransactionQueries):
    """Use by one thread, the one that made it.

    Raises (all methods):
        CorruptDataError: the database is damaged.
        FatalStorageError: it can't be read.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            NotFoundError: there is no such file.
            InvalidRequestError: it belongs to another program, or to a release whose files this
                one doesn't open.
        """
        super().__init__(
            path,
            lambda version: (
                statements_of_version(version)
                | group_statements_of_version(version)
                | topic_statements_of_version(version)
                | job_statements_of_version(version)
            ),
        )

    # -- runs ----------------------------------------------------------------------------------

    def runs_from(self, key: PartitionKey, offset: int, *, limit: int) -> list[StoredRun]:
        """Runs that end past an offset, ascending, at most `limit`."""
        return [
            StoredRun(*row)
            for row in self._execute(RUNS_FROM, {"key": key, "offset": offset, "limit": limit})
        ]

    def leftover_runs(self) -> dict[str, int]:
        """Count the runs of deleted topics in each object, by key. Reads all runs in objects."""
        return dict(
            self._execute(
                "SELECT o.key, count(*) FROM object_runs AS r JOIN objects AS o USING (object_id)"
                " WHERE partition_key NOT IN (SELECT partition_key FROM partitions) GROUP BY o.key"
            )
        )

    def trims_left(self) -> set[PartitionKey]:
        """Partitions with runs below their log start, which count in their bytes until cleared."""
        if not self._has_integrity:
            return set()
        rows = self._execute("SELECT key FROM leftovers WHERE kind = ?", (TRIM,))
        return {PartitionKey(key) for (key,) in rows}

    def wal_runs(self, wal_key: int = 0) -> list[StoredRun]:
        """All runs whose bytes are in a WAL, by generation and position."""
        return [StoredRun(*row) for row in self._execute(WAL_RUNS, _generations(wal_key))]

    def markers_up_to(
        self, ends: Sequence[tuple[PartitionKey, int]], *, limit: int
    ) -> list[StoredRun]:
        """Markers that are rows, of some partitions and at or below an offset of each, by partition
        and offset."""
        if not self._has_transactions or not self.markers_page((-1, -1), limit=1):
            return []  # as nearly always
        rows = self._execute(MARKERS_UP_TO, (msgspec.json.encode(ends).decode(), limit))
        return [StoredRun(*row) for row in rows]

    def markers_page(self, after: tuple[int, int], *, limit: int) -> list[StoredRun]:
        """A page of all markers that are rows, by partition and offset, past `after` ((-1, -1) to
        begin)."""
        if not self._has_transactions:
            return []
        return [StoredRun(*row) for row in self._execute(MARKERS_PAST, (*after, limit))]

    def first_offset_in_a_wal(self, key: PartitionKey) -> int | None:
        """The base offset of a partition's first run whose bytes are in a WAL; None: there is none.
        Markers are in none."""
        rows = self._execute(FIRST_RUN_IN_A_WAL, (key,))
        return rows[0][0] if rows else None

    def runs_of_object(self, key: str) -> list[StoredRun]:
        """All runs that lie in an object, by position. Reads all runs that there are: the tables
        have no index by object."""
        return [StoredRun(*row) for row in self._execute(RUNS_OF_OBJECT, (key,))]

    def wal_generations(self, wal_key: int = 0) -> set[int]:
        """The places (WAL key << 32 | generation) of a WAL that runs lie in."""
        return {row[0] for row in self._execute(WAL_GENERATIONS, _generations(wal_key))}

    def last_wal_generation(self, wal_key: int = 0) -> int:
        """The highest file generation of a WAL that a command ever named; 0: none."""
        if wal_key:
            rows = self._execute("SELECT last_generation FROM wals WHERE wal_key = ?", (wal_key,))
            return int(rows[0][0]) if rows else 0
        value = self._meta("last_wal_generation", 0)
        assert isinstance(value, int)
        return value

    def first_run_at_time(self, key: PartitionKey, timestamp_ms: int) -> StoredRun | None:
        """The first run by offset that holds a record of this time or later."""
        return self._run(FIRST_RUN_AT_TIME, {"key": key, "time_ms": timestamp_ms})

    def run_with_max_timestamp(
        self, key: PartitionKey, *, before: StoredRun | None = None
    ) -> StoredRun | None:
        """The run with the partition's newest record; the first of several. With `before` the one
        that comes next in that order."""
        newest = _NEWEST if before is None else before.max_timestamp
        base = -1 if before is None else before.base_offset
        return self._run(RUN_WITH_MAX_TIMESTAMP, {"key": key, "newest": newest, "base": base})

    def partition_bytes(self, keys: Sequence[PartitionKey] | None) -> dict[PartitionKey, int]:
        """Bytes of live runs per partition; all partitions when `keys` is None."""
        if keys is None:
            return dict(self._execute("SELECT partition_key, bytes FROM partitions"))
        sizes: dict[PartitionKey, int] = {}
        for start in range(0, len(keys), KEYS_PER_STATEMENT):
            page = keys[start : start + KEYS_PER_STATEMENT]
            marks = ",".join("?" * len(page))
            sizes.update(
                self._execute(
                    "SELECT partition_key, bytes FROM partitions"  # noqa: S608
                    f" WHERE partition_key IN ({marks})",
                    tuple(page),
                )
            )
        return sizes

    # -- objects -------------------------------------------------------------------------------

    def unreferenced_objects(self, *, limit: int) -> list[str]:
        """List keys of objects without a live run that are not condemned yet."""
        rows = self._execute(
            "SELECT key FROM objects WHERE live_runs = 0 AND condemned_position IS NULL"
            " ORDER BY object_id LIMIT ?",
            (limit,),
        )
        return [key for (key,) in rows]

    def kept_objects(self, *, limit: int) -> list[str]:
        """Keys of this store's objects without a live run that aren't deleted yet, condemned or
        not, the newest first."""
        rows = self._execute(
            "SELECT key FROM objects WHERE object_id IN ("
            " SELECT object_id FROM objects WHERE live_runs = 0 AND condemned_position IS NULL"
            " UNION ALL SELECT object_id FROM objects WHERE condemned_position IS NOT NULL)"
            " AND origin = '' ORDER BY object_id DESC LIMIT ?",
            (limit,),
        )
        return [key for (key,) in rows]

    def object_known(self, key: str) -> bool:
        """Whether the state has this object, live or condemned."""
        return bool(self._execute("SELECT 1 FROM objects WHERE key = ?", (key,)))

    def known_objects(self, keys: Sequence[str]) -> set[str]:
        """Return the keys whose objects the state has, live or condemned."""
        known: set[str] = set()
        for start in range(0, len(keys), KEYS_PER_STATEMENT):
            page = keys[start : start + KEYS_PER_STATEMENT]
            marks = ",".join("?" * len(page))
            known.update(
                key
                for (key,) in self._execute(
                    f"SELECT key FROM objects WHERE key IN ({marks})",  # noqa: S608
                    tuple(page),
                )
            )
        return known

    def objects(self, after: str, limit: int) -> list[ObjectRow]:
        """A page of all objects by key, past `after` ("" to begin)."""
        rows = self._execute(OBJECTS, (after, limit))
        return [ObjectRow(*row) for row in rows]

    def origins(self) -> list[str]:
        """URLs of the stores of other clusters that objects lie in. Reads all objects' rows."""
        rows = self._execute("SELECT DISTINCT origin FROM objects WHERE origin != ''")
        return sorted(url for (url,) in rows)

    # -- access rules --------------------------------------------------------------------------

    def acls(self) -> list[AclBinding]:
        """All access rules, in order."""
        columns = "resource_type, name, pattern_type, principal, host, operation, permission"
        rows = self._of_transactions(f"SELECT {columns} FROM acls ORDER BY {columns}")  # noqa: S608
        return [AclBinding(*row) for row in rows]

    # -- quotas --------------------------------------------------------------------------------

    def quotas(self) -> list[QuotaChange]:
        """All quotas, as the changes that make them."""
        return [quota_of_row(row) for row in self._of_transactions(SELECT_QUOTAS)]

    # -- producers -----------------------------------------------------------------------------

    def producers_page(
        self, after: tuple[int, int], *, limit: int
    ) -> list[tuple[PartitionKey, int, int]]:
        """A page of (partition key, producer id, last timestamp), past (key, id) `after`."""
        return self._execute(
            "SELECT partition_key, producer_id, last_timestamp FROM producers"
            " WHERE (partition_key, producer_id) > (?, ?)"
            " ORDER BY partition_key, producer_id LIMIT ?",
            (*after, limit),
        )

    def producers_of(self, key: PartitionKey) -> list[ActiveProducer]:
        """Producers of a partition, by id."""
        rows = self._execute(f"{_PRODUCERS} WHERE partition_key = ? ORDER BY producer_id", (key,))
        return [_active_producer(*row) for row in rows]

    def partition_producers(
        self, key: PartitionKey, after: int, *, limit: int
    ) -> list[PartitionProducer]:
        """A page of a partition's producers by id, past `after` (-1 to begin), with what is open of
        them there."""
        rows = self._of_transactions(
            "SELECT p.producer_id, p.epoch, p.sequences, p.last_timestamp,"
            " coalesce(t.first_offset, -1) FROM producers AS p"
            " LEFT JOIN transaction_partitions AS t USING (producer_id, partition_key)"
            " WHERE p.partition_key = ? AND p.producer_id > ? ORDER BY p.producer_id LIMIT ?",
            (key, after, limit),
        )
        return [PartitionProducer(_active_producer(*row[:4]), row[4]) for row in rows]

    def producer_count(self, key: PartitionKey) -> int:
        """Count a partition's producers."""
        rows = self._execute("SELECT count(*) FROM producers WHERE partition_key = ?", (key,))
        count: int = rows[0][0]
        return count

    def producer(self, key: PartitionKey, producer_id: int) -> ActiveProducer | None:
        """One producer of a partition."""
        rows = self._execute(
            f"{_PRODUCERS} WHERE partition_key = ? AND producer_id = ?", (key, producer_id)
        )
        return _active_producer(*rows[0]) if rows else None

    def first_wal_run(self, key: PartitionKey) -> int | None:
        """The base offset of a partition's first run in a WAL; None: all lie in objects."""
        rows = self._execute(
            "SELECT min(base_offset) FROM wal_runs WHERE partition_key = ?", (key,)
        )
        first: int | None = rows[0][0]
        return first

    def producer_ranges(self, key: PartitionKey, producer_id: int) -> tuple[int, list[int]] | None:
        """A producer's epoch in a partition, and its last sequence ranges as
        `penstock.state.sequences.unpack_ranges` gives them; None: it isn't known there."""
        rows = self._execute(
            f"{_PRODUCERS} WHERE partition_key = ? AND producer_id = ?", (key, producer_id)
        )
        return (rows[0][1], unpack_ranges(rows[0][2])) if rows else None

    # -- groups --------------------------------------------------------------------------------

    def group(self, group_id: str) -> GroupRow | None:
        """One group."""
        rows = self._execute(GROUP, (group_id,))
        return _group(rows[0]) if rows else None

    def group_count(self, most: int) -> int:
        """Count the groups, but no further than `most`."""
        rows = self._execute("SELECT count(*) FROM (SELECT 1 FROM groups LIMIT ?)", (most,))
        return int(rows[0][0])

    def groups(self) -> list[GroupRow]:
        """All groups, by id."""
        return [_group(row) for row in self._execute(GROUPS)]

    def groups_page(self, after: str, *, limit: int) -> list[GroupRow]:
        """A page of all groups by id, past `after` ("" to begin)."""
        return [_group(row) for row in self._execute(GROUPS_PAGE, (after, limit))]

    def group_members(self, group_id: str) -> list[tuple[str, bytes]]:
        """Member ids of a group, in order, with what is stored of each."""
        return self._execute(
            "SELECT member_id, state FROM group_members WHERE group_id = ? ORDER BY member_id",
            (group_id,),
        )

    def share_partitions(self, group_id: str) -> list[ShareRow]:
        """The share partitions of a group, in order."""
        return [
            ShareRow(*row)
            for row in self._execute(
                "SELECT topic_id, partition, start_offset, state FROM share_partitions"
                " WHERE group_id = ? ORDER BY topic_id, partition",
                (group_id,),
            )
        ]

    def group_offsets_page(
        self, group_id: str, after: tuple[bytes, int], *, limit: int
    ) -> dict[tuple[bytes, int], OffsetRow]:
        """A page of a group's committed offsets past `after` ((b"", -1) to begin), in order."""
        rows = self._execute(
            "SELECT topic_id, partition, committed_offset, leader_epoch, metadata, commit_ms"
            " FROM group_offsets WHERE group_id = ? AND (topic_id, partition) > (?, ?)"
            " ORDER BY topic_id, partition LIMIT ?",
            (group_id, *after, limit),
        )
        return {(row[0], row[1]): OffsetRow(*row[2:]) for row in rows}

    # -- the cluster ---------------------------------------------------------------------------

    def digests(self) -> DigestRound:
        """The last round of digests."""
        return round_of_rows(self._execute(SELECT_DIGESTS) if self._has_integrity else [])

    def feature_level(self) -> int:
        """The feature level of apply's semantics, at least 1."""
        level = self._meta("feature_level", 1)
        assert isinstance(level, int)
        return max(1, level)

    def next_epoch(self, agent_id: int, *, floor: int = 0) -> int:
        """The epoch that an agent may open. See `penstock.state.apply.agents.next_epoch`."""
        rows = self._execute("SELECT epoch FROM agents WHERE agent = ?", (agent_id,))
        known: int = rows[0][0] if rows else 0
        removed: int = self._meta(EPOCH_FLOOR, 0)
        return max(1 + max(known, removed), floor)

    def agents(self) -> list[Agent]:
        """All agents that are known, fenced ones too, by id."""
        return [agent_of_row(row) for row in self._execute(SELECT_AGENTS)]

    def last_positions(self) -> dict[int, int]:
        """Return, by agent, the position of its last applied entry."""
        rows = self._execute("SELECT slot_key, position FROM agent_entries")
        positions: dict[int, int] = {}
        for slot_key, position in rows:
            agent = slot_key // STORED_ENTRIES
            positions[agent] = max(position, positions.get(agent, 0))
        return positions

    def wals(self) -> list[Wal]:
        """All WALs that were claimed, by key."""
        return [Wal(*row) for row in self._execute(SELECT_WALS)]

    def shards(self) -> list[Shard]:
        """The shards of groups that were ever claimed, by number."""
        return [Shard(*row) for row in self._execute(SELECT_SHARDS)]

    def lost_histories(self) -> list[LostHistory]:
        """Histories that the journal has lost, closed ones too, by number."""
        if not self._has_integrity:
            return []
        rows = self._execute(f"{SELECT_HISTORIES} ORDER BY history")
        return [history_of_row(row) for row in rows]

    # -- leader epochs -------------------------------------------------------------------------

    def leader_epoch(self) -> int:
        """Return the leader epoch of all partitions; 0: the log was never restored."""
        epoch = self._meta(LEADER_EPOCH, 0)
        assert isinstance(epoch, int)
        return epoch

    def epoch_starts(self) -> dict[PartitionKey, tuple[EpochStart, ...]]:
        """The epochs of those partitions that have had others than 0. Reads a row for each of a
        partition's."""
        rows = self._execute(
            "SELECT partition_key, epoch, start_offset FROM leader_epochs"
            " ORDER BY partition_key, epoch"
        )
        return {
            key: epoch_starts([(epoch, start) for _, epoch, start in group])
            for key, group in groupby(rows, key=itemgetter(0))
        }

    # -- the whole -----------------------------------------------------------------------------

    def is_time_walked(self) -> bool:
        """Whether times above journal time are still to be lowered (`SetJournalTime`)."""
        return bool(self._meta(TIME_WALK, ""))

    def steady_ms(self, time_ms: int) -> int:
        """Return a journal time as it would be without a jump that is young (`time_jumps`)."""
        return time_jumps.without(time_jumps.decoded(self._meta(TIME_JUMP, "")), time_ms)

    def cluster_id(self) -> str:
        """The cluster's id; empty before the first entry."""
        value = self._meta("cluster_id", "")
        assert isinstance(value, str)
        return value

    def cluster_configs(self) -> dict[str, str]:
        """All cluster-wide configs."""
        return msgspec.json.decode(self._meta("cluster_configs", "{}"), type=dict[str, str])

    def credentials(self) -> list[tuple[str, ScramCredential]]:
        """All credentials with their users' names."""
        return [credential_of_row(row) for row in self._of_transactions(SELECT_CREDENTIALS, ())]

    def api_keys(self) -> list[ApiKey]:
        """All API keys."""
        return [api_key_of_row(row) for row in self._of_transactions(SELECT_API_KEYS, ())]

    def topic_rows(self) -> list[StoredTopic]:
        """All topics, in the order of their creation."""
        decode = msgspec.json.Decoder(dict[str, str]).decode
        return [
            StoredTopic(key, topic_id, name, partitions, decode(configs), factor)
            for key, topic_id, name, partitions, configs, factor in self._execute(TOPICS)
        ]

    def heads(self) -> list[tuple[PartitionKey, int, int]]:
        """(partition key, log start, next offset) of all partitions."""
        return self._execute(
            "SELECT partition_key, log_start, next_offset FROM partitions ORDER BY partition_key"
        )

    def integrity_problems(self) -> list[str]:
        """List what SQLite's own check finds wrong; empty when nothing. Reads the whole file."""
        found = [text for (text,) in self._execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    # -- inside --------------------------------------------------------------------------------

    def _run(self, statement: str, parameters: dict[str, int]) -> StoredRun | None:
        rows = self._execute(statement, parameters)
        return StoredRun(*rows[0]) if rows else None

    def _meta(self, name: str, default: int | str) -> Any:
        rows = self._execute("SELECT value FROM meta WHERE name = ?", (name,))
        return rows[0][0] if rows else default


def _generations(wal_key: int) -> tuple[int, int]:
    """The half-open range of a WAL's places."""
    return wal_key << GENERATION_BITS, (wal_key + 1) << GENERATION_BITS


def _active_producer(
    producer_id: int, epoch: int, sequences: bytes, last_timestamp: int
) -> ActiveProducer:
    ranges = unpack_ranges(sequences)
    # A marker of a new epoch leaves no sequence.
    last_sequence = ranges[-2] if ranges else NO_SEQUENCE
    return ActiveProducer(producer_id, epoch, last_sequence, last_timestamp)


def _group(row: tuple[Any, ...]) -> GroupRow:
    group_id, generation, protocol_type, empty_since_ms, state, kind = row
    return GroupRow(group_id, generation, protocol_type, empty_since_ms, state, GroupKind(kind))
