"""The state of a new cluster is made from a cluster's bucket alone, as of some moment.

The parent is only read. docs/formats/archive.md, "Restore", has the steps. The result is a snapshot
file, which `penstock.recovery.cluster` puts into a new prefix or a data directory.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.objects.origins import inherited_key
from penstock.ports.clock import Clock
from penstock.ports.journal import JournalRow
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.recovery.due_runs import DueOf, due_runs
from penstock.recovery.set_backs import last_set_back
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SnapshotName
from penstock.replica.beginning import RESTORED_POSITION, Beginning
from penstock.replica.bootstrap import Bootstrapped, bootstrap, drop_replica, replay
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo, write_snapshot
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.machine import LogMachine
from penstock.state.apply.segments import store_segment
from penstock.state.commands import AnyCommand, Relay, StoreSegment
from penstock.state.entries import decode_entry
from penstock.state.leftovers import ROWS_PER_COMMAND, clear
from penstock.state.read.queries import Queries
from penstock.state.restored import begin_restored

T = TypeVar("T")

TakeObjects = Callable[[Sequence[tuple[str, int]], DueOf], None]
"""A function that reads the parent's own objects, and copies them if the caller wants copies. It
gets keys, sizes in bytes, and the runs that must lie in each object. Blocking. Raises:
CorruptDataError: some objects aren't whole."""

logger = logging.getLogger(__name__)

_SEGMENTS_PREFIX: Final = "segments/"
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The wanted state: that of a position, or the last one not after a time; with neither, the
    last state that the archive holds."""

    position: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """A new log's state, in a snapshot file at the position that was asked for.

    `parent_position` and `time_ms`: position and journal time of the moment; `archived_position`:
    the end of the parent's archive; `lost`: records that were in no segment ("topic-3 offsets 5 to
    9").
    """

    snapshot: Path
    info: SnapshotInfo
    cluster_id: str
    parent_cluster_id: str
    parent_position: int
    archived_position: int
    time_ms: int
    objects: int
    bytes: int
    lost: list[str]

    @property
    def beginning(self) -> Beginning:
        """The beginning that the new cluster's journal records."""
        return Beginning(
            cluster_id=self.cluster_id, position=self.info.position, digest=self.info.digest
        )


async def restore_state(
    parent: ObjectStore,
    parent_url: str,
    *,
    cluster_id: str,
    moment: Moment,
    scratch: Path,
    executor: Executor | None,
    clock: Clock,
    random: Random,
    allow_loss: bool = False,
    take: TakeObjects | None = None,
    copies: bool = False,
) -> RestoredState:
    """Make the state of a new cluster, equal to the parent's state at a moment.

    Args:
        parent: the store of the parent's prefix.
        parent_url: the URL, without credentials, at which the new cluster finds the parent's store.
        cluster_id: the new cluster's id.
        scratch: a folder for temporary files, which also gets the result.
        clock, random: give the numbers with which the new cluster goes on. They differ from the
            parent's numbers and from those of another restore.
        allow_loss: leave gaps where records were only in a WAL.
        take: reads all objects; None: only their presence and sizes are checked.
        copies: whether `take` puts the objects under the same keys into the new cluster's store, so
            that the parent's objects are no longer needed, except those that it inherited itself.

    Raises:
        NotFoundError: there is no archive, or it has no state that old.
        InvalidRequestError: the moment is past the archive's end; or a newer release wrote the
            archive.
        CorruptDataError: the archive is not whole, or objects or records are missing.
    """
    work = _Restore(
        parent=parent,
        parent_url=parent_url,
        archive=Archive(parent, cluster_id="", scratch=scratch, executor=executor),
        database=scratch / "restored.sqlite",
        executor=executor,
    )
    scratch.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a command, which serves no client
    made, archived = await work.state_at(moment)
    lost = await work.locate(made.position, archived, allow_loss=allow_loss)
    parent_cluster_id = await work.run(work.read_cluster_id)
    count, size_bytes = await work.check_objects()
    if take is not None:
        named = await work.run(work.named_objects)
        own = [(key, size) for key, size, origin in named if not origin]
        await work.run(partial(work.hand_over, take, own))
    await work.run(
        partial(
            work.make_another,
            cluster_id,
            inherits=not copies,
            now_ms=clock.now_ms(),
            random=random,
        )
    )
    snapshot = scratch / "restored-snapshot.sqlite"
    info = await work.run(partial(write_snapshot, work.database, snapshot))
    drop_replica(work.database)
    return RestoredState(
        snapshot=snapshot,
        info=info,
        cluster_id=cluster_id,
        parent_cluster_id=parent_cluster_id,
        parent_position=made.position,
        archived_position=archived,
        time_ms=made.time_ms,
        objects=count,
        bytes=size_bytes,
        lost=lost,
    )


@dataclass(slots=True)
class _Restore:
    parent: ObjectStore
    parent_url: str
    archive: Archive
    database: Path
    executor: Executor | None

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    # -- the state of the moment -------------------------------------------------------------------

    async def state_at(self, moment: Moment) -> tuple[Bootstrapped, int]:
        """Make the parent's state at the moment in the database; also return the archive's end."""
        made = await bootstrap(
            self.archive,
            self.database,
            LogMachine,
            executor=self.executor,
            at_most=moment.position,
            no_later_ms=moment.time_ms,
        )
        if made is None:
            # The archive of a young cluster has no snapshot yet, but all of the journal's rows.
            made = Bootstrapped(SnapshotName(0, ""), 0, 0)
            if not any(name.first == 1 for name in await self.archive.stretches()):
                raise NotFoundError(
                    "restore",
                    self.parent_url,
                    "there is no archive from that moment or before",
                    "check the URL, which is the cluster's setting `objects`",
                )
        end = await self._end(made.position)
        until = end if moment.position is None else moment.position
        if until > end:
            raise InvalidRequestError(
                "restore",
                self.parent_url,
                f"the archive ends at position {end}, before position {until}",
                "only the journal's database had the entries after the archive's end",
            )

        if moment.time_ms is None:
            made = await self._replay(made, until=until)
        else:
            made = await self._replay_to_time(made, until=until, time_ms=moment.time_ms)
        if made.position == 0:
            raise NotFoundError(
                "restore", self.parent_url, "the cluster did not exist yet at that time"
            )
        return made, end

    async def _replay(
        self,
        made: Bootstrapped,
        *,
        until: int,
        wanted: Callable[[JournalRow, int], bool] = lambda _row, _time_ms: True,
    ) -> Bootstrapped:
        return await replay(
            self.archive,
            self.database,
            LogMachine,
            made,
            executor=self.executor,
            until=until,
            wanted=wanted,
        )

    async def _replay_to_time(
        self, made: Bootstrapped, *, until: int, time_ms: int
    ) -> Bootstrapped:
        """Apply rows up to the last one whose journal time isn't above `time_ms`.

        Journal time may have been ahead and set back: then rows above it lie before that one.
        """
        last = made.position

        def is_not_above(row: JournalRow, at_ms: int) -> bool:
            nonlocal last
            if at_ms <= time_ms:
                last = row.position
            return at_ms <= time_ms

        made = await self._replay(made, until=until, wanted=is_not_above)
        back = await last_set_back(self.archive, after=last, until=until, time_ms=time_ms)
        if back is None:
            return made

        def is_before_or_not_above(row: JournalRow, at_ms: int) -> bool:
            return is_not_above(row, at_ms) or row.position <= back

        made = await self._replay(made, until=until, wanted=is_before_or_not_above)
        if made.position == last:
            return made
        # The command did not lower journal time. Rows that were applied to find that out must go,
        # so the state is made again up to the last row that is early enough.
        again = await bootstrap(
            self.archive, self.database, LogMachine, executor=self.executor, at_most=last
        )
        return await self._replay(again or Bootstrapped(SnapshotName(0, ""), 0, 0), until=last)

    async def _end(self, position: int) -> int:
        """Return the last position up to which the archive has all rows after `position`."""
        for name in await self.archive.stretches():
            if name.first > position + 1:
                break
            position = max(position, name.last)
        return position

    # -- where the bytes are -----------------------------------------------------------------------

    async def locate(self, position: int, archived: int, *, allow_loss: bool) -> list[str]:
        """Find the bytes that lay in a WAL at the moment: later rows say to which object they
        moved.

        Returns:
            The names of runs that are lost.
        """
        await self.run(self._clear_leftovers)
        if not await self.run(self._wal_runs):
            return []
        async for rows in self.archive.rows(after=position, until=archived):
            # A move may have been refused, and its object deleted or never put.
            moves = [
                command
                for row in rows
                for command in _store_segments(row)
                if await self._size(command.object_key) == command.object_bytes
            ]
            await self.run(partial(self._apply_moves, moves))
        lost = await self.run(self._wal_runs)
        if lost and not allow_loss:
            shown = "; ".join(lost[:_NAMED_MAX])
            raise CorruptDataError(
                "restore",
                self.parent_url,
                f"{len(lost)} of the runs were only in a WAL at that moment: {shown}",
                "choose an earlier moment, or leave gaps with --allow-loss",
            )
        return lost

    def _wal_runs(self) -> list[str]:
        with closing(Queries(self.database)) as queries:
            names = {topic.topic_key: topic.name for topic in queries.topic_rows()}
            return [
                f"{_partition_name(names, run.partition_key)} offsets {run.base_offset} to"
                f" {run.end_offset - 1}"
                for wal_key in (0, *(wal.wal_key for wal in queries.wals()))
                for run in queries.wal_runs(wal_key)
            ]

    def _clear_leftovers(self) -> None:
        """Delete rows of deleted topics' runs, which no reader will miss."""
        machine = LogMachine()
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            machine.bind(connection)
            machine.tables.ensure_loaded()
            connection.execute("BEGIN IMMEDIATE")
            while clear(machine.tables, ROWS_PER_COMMAND)[1]:
                machine.flush()
            machine.flush()
            connection.execute("COMMIT")

    def _apply_moves(self, moves: Sequence[StoreSegment]) -> None:
        if not moves:
            return
        machine = LogMachine()
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            machine.bind(connection)
            machine.tables.ensure_loaded()
            connection.execute("BEGIN IMMEDIATE")
            for command in moves:
                store_segment(ApplyContext(machine.tables, 0, 0, agent=0, epoch=0), command)
            machine.flush()
            connection.execute("COMMIT")

    async def _size(self, key: str) -> int | None:
        try:
            return await self.parent.size(key)
        except NotFoundError:
            return None

    async def check_objects(self) -> tuple[int, int]:
        """Check that the parent still has every object that the state names.

        Returns:
            The number of objects, and their bytes.
        """
        stored = {info.key: info.size_bytes async for info in self.parent.list(_SEGMENTS_PREFIX)}
        named = await self.run(self.named_objects)
        missing = [
            key for key, size_bytes, origin in named if not origin and stored.get(key) != size_bytes
        ]
        if missing:
            raise CorruptDataError(
                "restore",
                self.parent_url,
                f"objects missing or of another size: {len(missing)}, the first is {missing[0]}",
                "the moment lies before the restore window; choose a later one",
            )
        return len(named), sum(size_bytes for _, size_bytes, _ in named)

    def named_objects(self) -> list[tuple[str, int, str]]:
        """List key, size in bytes and origin of each object that runs name."""
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(
                "SELECT key, bytes, origin FROM objects"
                " WHERE live_runs > 0 AND condemned_position IS NULL"
            ).fetchall()

    def hand_over(self, take: TakeObjects, objects: Sequence[tuple[str, int]]) -> None:
        with due_runs(self.database) as due:
            take(objects, due)

    def read_cluster_id(self) -> str:
        with closing(Queries(self.database)) as queries:
            return queries.cluster_id()

    # -- another cluster ---------------------------------------------------------------------------

    def make_another(self, cluster_id: str, *, inherits: bool, now_ms: int, random: Random) -> None:
        """Turn the state of the parent into one of a new cluster.

        Args:
            inherits: whether the parent's objects stay in the parent's store.
            now_ms: the time of the restore.
        """
        replica = Replica.open(self.database, LogMachine(), fsync=False, keeps_journal=False)
        time_ms = replica.time_ms
        replica.close()
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            execute = connection.execute
            execute("BEGIN IMMEDIATE")
            execute("INSERT OR REPLACE INTO meta VALUES ('cluster_id', ?)", (cluster_id,))
            # This comes before agents are deleted, since it looks at their epochs.
            begin_restored(connection, now_ms=now_ms, random=random)
            # Records that were in no segment leave gaps, which the caller has allowed.
            execute(
                "UPDATE partitions SET bytes = partitions.bytes - lost.bytes FROM"
                " (SELECT partition_key, sum(length) AS bytes FROM wal_runs WHERE generation >= 0"
                " GROUP BY partition_key)"
                " AS lost WHERE lost.partition_key = partitions.partition_key"
            )
            # Markers stay: their rows are all there is of them.
            execute("DELETE FROM wal_runs WHERE generation >= 0")
            for table in ("agents", "agent_entries", "wals", "group_shards"):
                execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
            execute("DELETE FROM objects WHERE live_runs = 0 OR condemned_position IS NOT NULL")
            inherited = (
                execute("SELECT object_id, key FROM objects WHERE origin = ''").fetchall()
                if inherits
                else []
            )
            connection.executemany(
                "UPDATE objects SET key = ?, origin = ? WHERE object_id = ?",
                (
                    (inherited_key(self.parent_url, key), self.parent_url, object_id)
                    for object_id, key in inherited
                ),
            )
            # The new journal begins after this state, at any position of the parent's journal.
            for table in ("journal", "tail", "snapshots", "local"):
                execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
            execute("UPDATE replica SET position = ?, time_ms = ?", (RESTORED_POSITION, time_ms))
            execute("COMMIT")


def _store_segments(row: JournalRow) -> Iterator[StoreSegment]:
    if row.body:
        yield from _segments_of(decode_entry(row.body, position=row.position).commands)


def _segments_of(commands: Sequence[AnyCommand]) -> Iterator[StoreSegment]:
    for command in commands:
        if isinstance(command, StoreSegment):
            yield command
        elif isinstance(command, Relay):
            yield from _segments_of(command.commands)


def _partition_name(names: dict[int, str], key: PartitionKey) -> str:
    return f"{names.get(topic_key_of(key), '?')}-{partition_of(key)}"
