"""Questions of the pipeline to the state: runs by the page, jobs, writers, tables, what is clean.

A part of `Queries`, by inheritance. A file of a version that has no such tables answers as one
where they are empty.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from penstock.model.ids import PartitionKey
from penstock.state.read.connection import Row, StateConnection
from penstock.state.rows import (
    Backlog,
    CleanRow,
    ObjectPlace,
    PipelineJob,
    RunRows,
    TableRow,
    WriterRow,
)

KEYS_PER_STATEMENT: Final = 500
RunKey = tuple[int, int]
"""Partition key and base offset."""

_OBJECT: Final = (
    "SELECT partition_key, base_offset, end_offset, 0, object_id, position, length, max_timestamp,"
    " batch_count, coalesce(sum, -1) FROM object_runs"
)
_WAL: Final = (
    "SELECT partition_key, base_offset, end_offset, generation, 0, position, length,"
    " max_timestamp, batch_count, coalesce(sum, -1) FROM wal_runs"
)
_PAST: Final = (
    "WHERE (partition_key, base_offset) > (:key, :offset)"
    " ORDER BY partition_key, base_offset LIMIT :limit"
)
_WITHIN: Final = (
    "WHERE partition_key = :key AND end_offset > :start AND base_offset < :end"
    " AND base_offset >= coalesce((SELECT max(base_offset) FROM {table}"
    " WHERE partition_key = :key AND base_offset <= :start), :start)"
    " ORDER BY base_offset LIMIT :limit"
)


def _both(objects: str, wal: str) -> str:
    # One statement for both tables: a segment stored between two would hide a run, or show it
    # twice.
    return f"SELECT * FROM ({objects}) UNION ALL SELECT * FROM ({wal}) ORDER BY 1, 2 LIMIT :limit"  # noqa: S608


# Used while there are leftovers alone: a look-up per row would make planning a million runs slower.
_LIVE: Final = (
    " AND {run}.end_offset > coalesce((SELECT log_start FROM partitions AS p"
    " WHERE p.partition_key = {run}.partition_key), 9223372036854775807)"
)


def _live(statement: str) -> str:
    """The same, without runs of deleted topics and runs below a log start."""
    for table in ("object_runs", "wal_runs"):
        statement = statement.replace(
            f"FROM {table} WHERE", f"FROM {table} WHERE true{_LIVE.format(run=table)} AND"
        )
    return statement


_OBJECT_PAGE: Final = f"{_OBJECT} {_PAST}"
_PAGE: Final = _both(_OBJECT_PAGE, f"{_WAL} {_PAST}")
_OBJECTS_WITHIN: Final = f"{_OBJECT} {_WITHIN.format(table='object_runs')}"
_RUNS_WITHIN: Final = _both(_OBJECTS_WITHIN, f"{_WAL} {_WITHIN.format(table='wal_runs')}")
RUN_ROWS: Final = (_PAGE, _OBJECT_PAGE, _OBJECTS_WITHIN, _RUNS_WITHIN)
"""The statements that give `RunRows`, which files of older versions need in another form."""

_NEWEST: Final = (
    "(SELECT {what} FROM (SELECT length FROM object_runs AS r"
    " WHERE r.partition_key = p.partition_key ORDER BY r.base_offset DESC LIMIT :runs)"
    " WHERE length < :small)"
)
_BACKLOG: Final = (
    f"SELECT p.partition_key, {_NEWEST.format(what='count(*)')},"  # noqa: S608
    f" {_NEWEST.format(what='coalesce(sum(length), 0)')} FROM partitions AS p"
    " WHERE p.partition_key > :after ORDER BY p.partition_key LIMIT :limit"
)

_PRINCIPALS_VERSION: Final = 7
"""The format version that brought principals of jobs."""
_JOB: Final = (
    "SELECT job, kind, name, opened_position, opened_ms, renewed_ms, lease_ms, age_max_ms, last_n,"
    " principal"
    " FROM pipeline_jobs"
)
_JOBS: Final = f"{_JOB} ORDER BY job"
_JOB_OF_NUMBER: Final = f"{_JOB} WHERE job = ?"
_TABLE: Final = (
    "SELECT topic_id, table_name, offsets, snapshot_id, state, time_ms FROM table_progress"
)
_DELETABLE: Final = (
    "SELECT key, condemned_ms FROM objects WHERE condemned_position IS NOT NULL"
    " AND condemned_position < coalesce((SELECT min(opened_position) FROM pipeline_jobs),"
    " 9223372036854775807) AND bytes > ? ORDER BY condemned_position, object_id LIMIT ?"
)

_decode_offsets: Final = msgspec.json.Decoder(list[tuple[int, int]]).decode


def job_statements_of_version(version: int) -> dict[str, str]:
    """Return what to execute in place of statements, in a file of an older version: its jobs have
    no principals."""
    if version >= _PRINCIPALS_VERSION:
        return {}
    return {
        statement: statement.replace(" principal FROM", " '' FROM")
        for statement in (_JOBS, _JOB_OF_NUMBER)
    }


class PipelineQueries(StateConnection):
    """The pipeline's part of `Queries`; raises as that does."""

    @contextmanager
    def moment(self) -> Iterator[None]:
        """All answers inside are of one moment; `begin` and `end`, and may be nested."""
        if self.is_begun:
            yield
            return
        self.begin()
        try:
            yield
        finally:
            self.end()

    # -- runs ----------------------------------------------------------------------------------

    def run_rows(self, after: RunKey, *, limit: int, with_wal: bool = True) -> RunRows:
        """A page of all runs past `after`, (-1, -1) to begin; fewer than `limit` are the last."""
        key, offset = after
        return self._rows(
            _PAGE if with_wal else _OBJECT_PAGE, {"key": key, "offset": offset, "limit": limit}
        )

    def run_rows_within(
        self, key: PartitionKey, start: int, end: int, *, limit: int, with_wal: bool = True
    ) -> RunRows:
        """Runs that overlap offsets [start, end) of a partition, at most `limit`. Go on from the
        end offset of the last."""
        return self._rows(
            _RUNS_WITHIN if with_wal else _OBJECTS_WITHIN,
            {"key": key, "start": start, "end": end, "limit": limit},
        )

    def _rows(self, statement: str, parameters: dict[str, int]) -> RunRows:
        with self.moment():
            if self.has_leftovers():
                statement = _live(statement)
            rows = self._execute(statement, parameters)
            objects = self._places(sorted({row[4] for row in rows} - {0}))
            return RunRows(self.position(), rows, objects)

    def _places(self, object_ids: Sequence[int]) -> dict[int, ObjectPlace]:
        # Apart from the runs: joined, each of a million rows costs twice the time.
        places: dict[int, ObjectPlace] = {}
        for at in range(0, len(object_ids), KEYS_PER_STATEMENT):
            page = tuple(object_ids[at : at + KEYS_PER_STATEMENT])
            marks = ",".join("?" * len(page))
            for object_id, *place in self._execute(
                f"SELECT object_id, key, bytes, raw, origin FROM objects"  # noqa: S608
                f" WHERE object_id IN ({marks})",
                page,
            ):
                places[object_id] = ObjectPlace(*place)
        return places

    def compaction_backlog(
        self, after: int, *, limit: int, newest_max: int, small_bytes: int
    ) -> list[Backlog]:
        """List, by partition past `after` (-1 to begin), runs shorter than `small_bytes` among its
        newest runs in objects, at most `newest_max` of those. Costs that many rows a partition,
        however many runs there are."""
        rows = self._execute(
            _BACKLOG, {"after": after, "limit": limit, "runs": newest_max, "small": small_bytes}
        )
        return [Backlog(PartitionKey(key), count, size) for key, count, size in rows]

    def clean_rows(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, CleanRow]:
        """Return what is compacted by key, of those partitions that ever were."""
        found: dict[PartitionKey, CleanRow] = {}
        for at in range(0, len(keys), KEYS_PER_STATEMENT):
            page = tuple(keys[at : at + KEYS_PER_STATEMENT])
            marks = ",".join("?" * len(page))
            for key, clean_end, time_ms in self._execute(
                "SELECT partition_key, clean_end, time_ms FROM clean"  # noqa: S608
                f" WHERE partition_key IN ({marks})",
                page,
            ):
                found[PartitionKey(key)] = CleanRow(clean_end, time_ms)
        return found

    # -- jobs ----------------------------------------------------------------------------------

    def pipeline_jobs(self) -> list[PipelineJob]:
        """All open jobs, the oldest first."""
        rows = self._execute(_JOBS)
        return [_job(row) for row in rows]

    def pipeline_job(self, job: int) -> PipelineJob | None:
        """An open job; None: it was closed, or never opened."""
        rows = self._execute(_JOB_OF_NUMBER, (job,))
        return _job(rows[0]) if rows else None

    def has_pipeline_job(self, *, kind: str, name: str) -> bool:
        """Whether a job of this kind and name is open."""
        found = self._execute(
            "SELECT 1 FROM pipeline_jobs WHERE kind = ? AND name = ? LIMIT 1", (kind, name)
        )
        return bool(found)

    def deletable_objects(self, *, limit: int, named_only: bool = False) -> list[tuple[str, int]]:
        """(key, journal time in ms) of objects that were condemned before any open job began, the
        oldest first: an open job may read all that was live when it began.

        Args:
            named_only: leave out what no entry of the journal ever named.
        """
        return self._execute(_DELETABLE, (0 if named_only else -1, limit))

    # -- writers -------------------------------------------------------------------------------

    def writer(self, writer_id: str) -> WriterRow | None:
        """Return the state of a writer; None: it has never written."""
        rows = self._execute(
            "SELECT incarnation, batch_id, time_ms FROM writers WHERE writer_id = ?", (writer_id,)
        )
        if not rows:
            return None
        incarnation, batch_id, time_ms = rows[0]
        return WriterRow(
            writer_id=writer_id, incarnation=incarnation, batch_id=batch_id, time_ms=time_ms
        )

    def writers_page(self, after: str, *, limit: int) -> list[tuple[str, int]]:
        """A page of (writer id, journal time in ms of its last batch), past `after`."""
        return self._execute(
            "SELECT writer_id, time_ms FROM writers WHERE writer_id > ? ORDER BY writer_id LIMIT ?",
            (after, limit),
        )

    # -- tables --------------------------------------------------------------------------------

    def table_rows(self, topic_id: bytes | None = None) -> list[TableRow]:
        """Return how far tables are: all of them, or those of one topic."""
        if topic_id is None:
            rows = self._execute(f"{_TABLE} ORDER BY topic_id, table_name")
        else:
            rows = self._execute(f"{_TABLE} WHERE topic_id = ? ORDER BY table_name", (topic_id,))
        return [
            TableRow(
                topic_id=found_id,
                table=table,
                offsets=dict(_decode_offsets(offsets)),
                snapshot_id=snapshot_id,
                state=state,
                time_ms=time_ms,
            )
            for found_id, table, offsets, snapshot_id, state, time_ms in rows
        ]


def _job(row: Row) -> PipelineJob:
    job, kind, name, opened_position, opened_ms, renewed_ms, lease_ms, age_max_ms = row[:8]
    last_n, principal = row[8:]
    return PipelineJob(
        job=job,
        kind=kind,
        name=name,
        opened_position=opened_position,
        opened_ms=opened_ms,
        renewed_ms=renewed_ms,
        lease_ms=lease_ms,
        age_max_ms=age_max_ms,
        last_n=last_n,
        principal=principal,
    )
