"""The keeper: retention, expiry of producers, and deletion of objects, as bounded commands.

Nothing expires by itself in apply. Each pass pages through the state and proposes commands of
bounded size; what they result in is decided by apply. Deletion is in three steps, each of which
may be repeated after a crash: condemned by an entry -> deleted from the store after the grace ->
forgotten by an entry.

In a cluster every agent has a keeper, and one of them, which rendezvous hashing picks, proposes;
two that do so at once propose the same. What other agents' epochs put and never named is an
orphan once that epoch is over: apply refuses what it might still send. Of a live epoch only its
own agent knows what came to nothing, and condemns that by itself. It is the same with jobs of the
pipeline: an open one may still name what it has put, and a closed one can't.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from penstock.log.numbers import ObjectNumbers
from penstock.log.retention.oldest import OldestRuns
from penstock.log.retention.orphans import Orphans
from penstock.log.retention.plan import Held, new_log_start
from penstock.log.retention.table_waits import TableWaits, Wanted
from penstock.log.retention.time_setting import TimeSetting
from penstock.log.settings import LogSettings
from penstock.model.ids import PartitionKey, partition_key, partition_of
from penstock.model.table_names import PIN_JOB, TABLE_WRITER_PREFIX, table_name
from penstock.model.topic_configs import TopicSettings, topic_settings
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.answers import Condemned, LeftoversCleared
from penstock.state.commands import (
    ClearLeftovers,
    CondemnObjects,
    ExpireProducers,
    ForgetObjects,
    TrimLog,
)
from penstock.state.journal_time import AGREEMENT_MS
from penstock.state.leftovers import ROWS_PER_COMMAND
from penstock.state.order_types import Committer
from penstock.state.pipeline_commands import CloseJob, ExpireWriters
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView, Topic

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE: Final = 1000
ONCE_PREFIX: Final = "once-"
"""Begins the id of a writer that was made for one write, and that no job uses after a day."""


class Keeper:
    """Makes one pass each time that `run_once` is called.

    Args:
        numbers: the numbers of this epoch's objects.
        ages: measures ages. While the clock is in doubt nothing expires by age, and nothing is
            condemned or deleted; retention by size and count goes on.
        journal_ms: returns journal time as this process knows it.
        may_propose: returns whether this agent does the work for which one agent is enough.
        confirm_head: returns once the state is at a head of the journal read after the call.
        compare_history: see `Orphans`.
        held_since_ms: returns the journal time of the oldest position at which a job still
            reads; what was condemned then or later stays. None: no job reads.
    """

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        store: ObjectStore,
        committer: Committer,
        ages: Ages,
        journal_ms: Callable[[], int],
        pool: Executor,
        limits: LogSettings,
        numbers: ObjectNumbers,
        may_propose: Callable[[], bool] = lambda: True,
        confirm_head: Callable[[], Awaitable[None]] | None = None,
        compare_history: Callable[[], Awaitable[None]] | None = None,
        held_since_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._queries = queries
        self._view = view
        self._store = store
        self._committer = committer
        self._ages = ages
        self._may_propose = may_propose
        self._held_since_ms = held_since_ms
        self._pool = pool
        self._limits = limits
        self._numbers = numbers
        self._orphans = Orphans(
            queries=queries,
            view=view,
            store=store,
            pool=pool,
            numbers=numbers,
            confirm_head=confirm_head,
            condemn=self._condemn,
            compare_history=compare_history,
            grace_ms=limits.delete_grace_ms,
        )
        self.time_setting = TimeSetting(
            queries=queries,
            view=view,
            committer=committer,
            ages=ages,
            journal_ms=journal_ms,
            pool=pool,
        )
        self._holds = 0
        self._waits = TableWaits()
        self._oldest = OldestRuns()
        self.lost_to_tables: dict[tuple[str, int], tuple[int, int]] = {}
        """The offsets [start, end), by topic and partition, that retention last deleted before an
        enabled table had followed them, since the bound of its patience had passed."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delete no object while this is open: a backup reads them."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    async def run_once(self) -> None:
        """One pass of everything. Raises: PenstockError, to be tried again at the next pass."""
        await self.condemn_failed()
        self._orphans.look()
        if not self._may_propose():
            return
        await self.time_setting.run_once()
        await self.trim_expired()
        await self.expire_producers()
        await self.expire_writers()
        await self.close_silent_jobs()
        await self.clear_leftovers()
        await self.condemn_unreferenced()
        await self.delete_condemned()
        # Last: it alone asks the archive, which may be away.
        await self.condemn_orphans()

    async def trim_expired(self) -> int:
        """Raise log starts by retention; returns how many partitions were trimmed."""
        trimmed = 0
        waiting: list[PartitionKey] = []
        limited: set[int] = set()
        self._oldest.begin_pass()
        for topic in list(self._view.topics()):
            settings = topic_settings(topic.configs, self._view.cluster_configs)
            if settings.has_retention:
                trimmed += await self._trim_topic(topic)
                limited.update(partition_keys(topic))
                if settings.table:
                    waiting += partition_keys(topic)
        self._oldest.keep(limited)
        self._waits.forget(waiting)
        for topic_name, number in list(self.lost_to_tables):
            if self._view.topic(topic_name) is None:
                del self.lost_to_tables[topic_name, number]
        return trimmed

    @property
    def partitions_kept_for_tables(self) -> int:
        """Partitions with records that have outlived their retention, and that a table hasn't
        followed yet."""
        return self._waits.partitions

    async def _trim_topic(self, topic: Topic) -> int:
        settings = topic_settings(topic.configs, self._view.cluster_configs)
        keys = partition_keys(topic)
        now_ms = self._ages.now_ms()
        bounds: dict[PartitionKey, tuple[int, int]] = {}
        for key in keys:
            head = self._view.head(key)
            bounds[key] = (0, 0) if head is None else (head.log_start, head.next_offset)

        def plan() -> list[int]:
            queries = self._queries()
            if _is_pinned(queries, topic):
                return []
            sizes = queries.partition_bytes(keys)
            trimming = queries.trims_left()
            items: list[int] = []
            for key in keys:
                # What is being cleared still counts in the bytes, by which too much would go.
                if key not in trimming:
                    held = Held(*bounds[key], bytes_total=sizes.get(key, 0))
                    start = self._new_log_start(queries, topic, settings, key, held, now_ms)
                    if start is not None:
                        items += (key, start)
            return items

        items = await self._in_pool(plan)
        for at in range(0, len(items), 2 * _PAGE):
            await self._committer.commit([TrimLog(items=items[at : at + 2 * _PAGE])])
        return len(items) // 2

    def _new_log_start(
        self,
        queries: Queries,
        topic: Topic,
        settings: TopicSettings,
        key: PartitionKey,
        held: Held,
        now_ms: int | None,
    ) -> int | None:
        if not self._oldest.may_be_due(key, settings, held, now_ms=now_ms):
            return None
        # Bounded: what is beyond these runs leaves at the next pass.
        runs = queries.runs_from(key, held.log_start, limit=_PAGE)
        self._oldest.note(key, runs[0] if runs else None, log_start=held.log_start)
        if not runs:
            return None  # SQLite is behind the view
        start = new_log_start(runs, settings, held, now_ms=now_ms)
        if start is None or not settings.table:
            return start
        wanted = Wanted(
            partition_key=key, runs=runs, log_start=start, retention_ms=settings.retention_ms
        )
        return self._after_tables(queries, topic, settings, wanted, now_ms)

    def _after_tables(
        self,
        queries: Queries,
        topic: Topic,
        settings: TopicSettings,
        wanted: Wanted,
        now_ms: int | None,
    ) -> int | None:
        if now_ms is None:
            return None
        # This is the table that the topic's configs name. Tables that were run by hand, or under an
        # earlier name, may no longer be followed.
        name = table_name(topic.name, settings.table_name)
        rows = queries.table_rows(topic.topic_id)
        table = next((row for row in rows if row.table == name), None)
        number = partition_of(PartitionKey(wanted.partition_key))
        followed = 0 if table is None else table.offsets.get(number, 0)
        start = self._waits.new_log_start(
            wanted,
            followed=followed,
            newest_ms=None if table is None else table.time_ms,
            now_ms=now_ms,
            wait_ms=settings.table_retention_wait_ms,
        )
        if start is not None and start > followed:
            lost = (max(followed, wanted.runs[0].base_offset), start)
            self.lost_to_tables[topic.name, number] = lost
            logger.warning(
                "retention takes offsets %d to %d of %s-%d, which its table hasn't followed in"
                " %d ms",
                lost[0],
                lost[1] - 1,
                topic.name,
                number,
                settings.table_retention_wait_ms,
            )
        return start

    async def expire_producers(self) -> int:
        """Forget producers that have been silent; returns how many were proposed."""
        after = (-1, -1)
        proposed = 0
        while (now_ms := self._ages.now_ms()) is not None:
            page = await self._in_pool(partial(self._producers_page, after))
            if not page:
                break
            before_ms = now_ms - self._limits.producer_id_expiration_ms
            expired = [row for row in page if row[2] < before_ms]
            if expired:
                await self._committer.commit(
                    [ExpireProducers(items=[value for row in expired for value in row])]
                )
                proposed += len(expired)
            after = (page[-1][0], page[-1][1])
        return proposed

    async def expire_writers(self) -> int:
        """Forget writers of the pipeline that have been silent; returns how many were proposed."""
        after = ""
        proposed = 0
        while (now_ms := self._ages.now_ms()) is not None:
            page = await self._in_pool(partial(self._writers_page, after))
            if not page:
                break
            expired = [
                (writer_id, time_ms)
                for writer_id, time_ms in page
                if not writer_id.startswith(TABLE_WRITER_PREFIX)
                and time_ms < now_ms - self._writer_expiration_ms(writer_id)
            ]
            if expired:
                await self._committer.commit([ExpireWriters(writers=expired)])
                proposed += len(expired)
            after = page[-1][0]
        return proposed

    async def close_silent_jobs(self) -> int:
        """Close jobs of the pipeline whose lease is over, or their age; returns how many were
        proposed. Apply looks again: one that was renewed since goes on."""
        jobs = await self._in_pool(lambda: self._queries().pipeline_jobs())
        now_ms = self._ages.now_ms()
        if now_ms is None:
            return 0
        over = [job for job in jobs if job.over_ms <= now_ms]
        for at in range(0, len(over), _PAGE):
            page = over[at : at + _PAGE]
            await self._committer.commit(
                [CloseJob(job=job.job, seen_renewed_ms=job.renewed_ms) for job in page]
            )
        for job in over:
            logger.warning(
                "job %d (%s %s) is over: it was not renewed", job.job, job.kind, job.name
            )
        return len(over)

    async def clear_leftovers(self) -> int:
        """Go on with deletions of many rows, entry by entry; returns how many rows went."""
        count = 0
        while self._may_propose() and await self._in_pool(self._has_leftovers):
            (answer,) = await self._committer.commit([ClearLeftovers(rows_max=ROWS_PER_COMMAND)])
            if not isinstance(answer, LeftoversCleared):
                return count
            count += answer.rows
        return count

    def _has_leftovers(self) -> bool:
        return self._queries().has_leftovers()

    async def condemn_unreferenced(self) -> int:
        """Condemn objects of which no run is left; returns how many."""
        count = 0
        while await self._settled_now_ms() is not None:
            keys = await self._in_pool(lambda: self._queries().unreferenced_objects(limit=_PAGE))
            condemned = await self._condemn(keys)
            count += condemned
            if not condemned:
                break
        return count

    async def condemn_failed(self) -> int:
        """Condemn what this epoch put, or tried to, and never named; returns how many."""
        count = 0
        if self._view.open_histories:
            return count  # apply would leave them out: they are condemned once it is closed
        while keys := self._numbers.take_orphans(_PAGE):
            try:
                count += await self._condemn(keys)
            except BaseException:
                self._numbers.put_back(keys)
                raise
        return count

    async def condemn_orphans(self) -> int:
        """Condemn stored objects that were never named; returns how many. See `Orphans`."""
        now_ms = self._ages.now_ms()
        if now_ms is None or self._view.open_histories:
            # To this state what a lost history alone names looks like orphans.
            return 0
        return await self._orphans.condemn(now_ms)

    async def delete_condemned(self) -> int:
        """Delete what was condemned longer than the grace ago, and before any job began that is
        open; returns how many."""
        count = 0
        while not self._holds:
            now_ms = await self._settled_now_ms()
            rows = await self._in_pool(self._deletable)
            if now_ms is None:
                break
            before_ms = now_ms - self._limits.delete_grace_ms
            held_ms = self._held_since_ms()
            if held_ms is not None:
                before_ms = min(before_ms, held_ms - 1)
            keys = [key for key, condemned_ms in rows if condemned_ms <= before_ms]
            if not keys:
                break
            await self._store.delete(keys)
            await self._committer.commit([ForgetObjects(keys=keys)])
            count += len(keys)
        return count

    def _deletable(self) -> list[tuple[str, int]]:
        # What no row of the journal ever named may be of the lost history: condemned before that
        # was noted.
        return self._queries().deletable_objects(
            limit=_PAGE, named_only=bool(self._view.open_histories)
        )

    async def _settled_now_ms(self) -> int | None:
        """Return the time by which ages are measured. Journal time that is ahead is set back first,
        since a grace that began in the future would never be over."""
        if self.time_setting.ahead_ms() > AGREEMENT_MS:
            await self.time_setting.run_once()
        return self._ages.now_ms()

    def _producers_page(self, after: tuple[int, int]) -> list[tuple[PartitionKey, int, int]]:
        return self._queries().producers_page(after, limit=_PAGE)

    def _writers_page(self, after: str) -> list[tuple[str, int]]:
        return self._queries().writers_page(after, limit=_PAGE)

    def _writer_expiration_ms(self, writer_id: str) -> int:
        limits = self._limits
        if writer_id.startswith(ONCE_PREFIX):
            return limits.once_writer_expiration_ms
        return limits.writer_expiration_ms

    async def _condemn(self, keys: list[str]) -> int:
        if not keys:
            return 0
        (answer,) = await self._committer.commit([CondemnObjects(keys=keys)])
        assert isinstance(answer, Condemned), answer
        return len(answer.keys)

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _is_pinned(queries: Queries, topic: Topic) -> bool:
    """Whether a read of the topic and its table is under way: see `PIN_JOB`."""
    return queries.has_pipeline_job(kind=PIN_JOB, name=topic.topic_id.hex())


def partition_keys(topic: Topic) -> list[PartitionKey]:
    """The keys of a topic's partitions."""
    return [partition_key(topic.topic_key, number) for number in range(topic.partitions)]
