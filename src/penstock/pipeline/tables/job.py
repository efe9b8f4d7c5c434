"""A table's job: from what the table holds to the topic's high watermark, exactly once.

The order of effects: files, then the commit that names them with the offsets, then dead letters,
then progress through the API. Killed anywhere, the next run reads the offsets from the table and
finds which of the later steps are missing. docs/tables.md says what happens when the topic, the
table or the log's start is not what it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from penstock.model.errors import (
    ConflictError,
    InDoubtError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.table_names import TABLE_WRITER_PREFIX
from penstock.pipeline.api_messages import Range, TableProgress, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.ranges import LogTruncatedError
from penstock.pipeline.tables.backlog import Backlog, Watch
from penstock.pipeline.tables.begin import begin_offsets, begin_property
from penstock.pipeline.tables.catalog import (
    create_table,
    load_table,
    open_catalog,
    summary_of,
    translated,
)
from penstock.pipeline.tables.commit import Change, commit_change, held_by, is_committed
from penstock.pipeline.tables.dead_letters import (
    DeadLetters,
    DeadLetterTopic,
    decode_dead_letters,
)
from penstock.pipeline.tables.files import TableFiles, files_options
from penstock.pipeline.tables.kind_choice import kind_of
from penstock.pipeline.tables.kinds import MODE_PROPERTY, TableKind, Written, target_of
from penstock.pipeline.tables.offsets import (
    TOPIC_ID_PROPERTY,
    Held,
    Holdings,
)
from penstock.pipeline.tables.plan import (
    Wanted,
    epochs_before,
    offsets_after,
    plan_wanted,
)
from penstock.pipeline.tables.settings import UPSERT, TableSettings, resolve
from penstock.pipeline.tables.table_state import (
    OK,
    STOPPED,
    UNKNOWN,
    TableState,
    decode_state,
)
from penstock.pipeline.tables.topic_table import progress_of
from penstock.pipeline.tables.watched import WatchedEngine
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from penstock.system.waiting import pause

CONFLICTS_MAX: Final = 20
TRUNCATIONS_MAX: Final = 5
_REST_S: Final = 0.2
_ROWS: Final = "total-records"
_FILES: Final = "total-data-files"
"""Iceberg's names in a snapshot's summary."""
_LOST_IN_STATE_MAX: Final = 100


class TableSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call. `lost`: ranges that retention had deleted before they were read;
    `behind`: the number of the topic's records that the table does not hold yet."""

    topic: str
    table: str
    rows: int = 0
    bad_records: int = 0
    bytes_read: int = 0
    files: int = 0
    file_bytes: int = 0
    commits: int = 0
    snapshot_id: int = -1
    offsets: dict[int, int] = {}
    lost: list[Range] = []
    columns_added: list[str] = []
    behind: int = 0
    milliseconds: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts the results of a call so far."""

    rows: int = 0
    bad_records: int = 0
    bytes_read: int = 0
    files: int = 0
    file_bytes: int = 0
    commits: int = 0
    snapshot_id: int = -1
    lost: list[Range] = field(default_factory=list)
    columns_added: list[str] = field(default_factory=list)


def run_table_once(
    client: PipelineClient,
    engine: Engine,
    settings: TableSettings,
    *,
    watch: Watch = lambda _done, _total: None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> TableSummary:
    """Bring a table up to its topic's high watermark as it is now.

    May be called at any time, by any number of drivers at once, and again after any failure.

    Args:
        watch: called with the bytes of the log that were read, and about how many there are.

    Raises:
        NotFoundError: there is no such topic.
        InvalidRequestError, CorruptDataError, ConflictError: the table is stopped until a
            person acts; its state says so too.
        RetryableError: an agent, the store or the catalog does not answer; call again later.
    """
    topics = client.topics(names=[settings.topic]).topics
    if not topics:
        raise _no_topic(settings.topic)
    topic = topics[0]
    settings = resolve(settings, topic.configs)
    job = TableJob(
        client,
        engine,
        settings,
        topic,
        watch=watch,
        clock=clock or SystemClock(),
        random=random or SystemRandom(),
    )
    return job.run()


class TableJob:
    """One call of `run_table_once`."""

    def __init__(
        self,
        client: PipelineClient,
        engine: Engine,
        settings: TableSettings,
        topic: TopicState,
        *,
        watch: Watch,
        clock: Clock,
        random: Random,
    ) -> None:
        self._client = client
        self._backlog = Backlog(client, settings, parallelism=engine.parallelism, watch=watch)
        self._engine = WatchedEngine(engine, self._backlog.note_read)
        self._settings = settings
        self._topic = topic
        self._clock = clock
        self._random = random
        self._tally = Tally()
        self._progress: TableProgress | None = None
        self._state = TableState()

    def run(self) -> TableSummary:
        """See `run_table_once`."""
        began_ms = self._clock.now_ms()
        name = self._settings.full_name
        self._progress = progress_of(self._client, self._topic.topic_id, name)
        if self._progress is not None:
            self._state = decode_state(self._progress.state)
        try:
            offsets = self._follow()
        except RetryableError:
            raise
        except PenstockError as error:
            self._save_stopped(error)
            raise
        tally = self._tally
        return TableSummary(
            topic=self._topic.name,
            table=name,
            rows=tally.rows,
            bad_records=tally.bad_records,
            bytes_read=tally.bytes_read,
            files=tally.files,
            file_bytes=tally.file_bytes,
            commits=tally.commits,
            snapshot_id=tally.snapshot_id,
            offsets=dict(offsets),
            lost=tally.lost,
            columns_added=tally.columns_added,
            behind=self._behind(offsets),
            milliseconds=self._clock.now_ms() - began_ms,
        )

    # -- the table -------------------------------------------------------------------------------

    def _follow(self) -> Mapping[int, int]:
        with open_catalog(self._settings.catalog) as catalog:
            return self._follow_in(catalog)

    def _follow_in(self, catalog: Catalog) -> Mapping[int, int]:
        kind = kind_of(self._settings, self._client, self._engine)
        table = self._find_table(catalog, kind)
        if table is None:
            # Typed columns come from the first records' schemas, and there are no records yet.
            return {}
        files = TableFiles(files_options(table.io.properties))
        letters = DeadLetterTopic(
            self._client,
            files,
            source=self._topic.name,
            source_id=self._topic.topic_id,
            name=self._settings.dead_letters,
            writer_id=(
                f"{TABLE_WRITER_PREFIX}{self._settings.full_name}:dlq:"
                f"{table.metadata.table_uuid.hex}"
            ),
            clock=self._clock,
            random=self._random,
        )
        truncations = conflicts = 0
        target = offsets_after({}, [[area] for area in self._wanted({}).ranges])
        while True:
            held = held_by(table, self._topic.topic_id, self._known_offsets())
            self._deliver(table, letters)
            # Before progress is saved: a log that never had these records must not note them.
            wanted = self._wanted(held.offsets, held.epochs)
            self._save(held.offsets, table)
            if wanted.lost:
                self._note_lost(list(wanted.lost))
            # What was produced since this call began is the next call's: a topic that never
            # rests would otherwise keep this one busy for ever.
            ranges = [area for area in wanted.ranges if area.start < target.get(area.partition, 0)]
            if not ranges:
                self._save(held.offsets, table)
                return held.offsets
            try:
                items = self._backlog.plan(ranges)
                table, written = kind.write(
                    table, target_of(table, self._settings.target_file_bytes), items
                )
                try:
                    table = self._commit(catalog, table, held, items, written, letters, files)
                finally:
                    files.delete(written.scratch)
            except ConflictError:
                # Another driver let the columns follow a schema meanwhile.
                self._count_conflict()
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise
                table = self._reload(catalog)
            except LogTruncatedError:
                # Retention went on while the items ran; planned again, the loss is seen.
                truncations += 1
                if truncations > TRUNCATIONS_MAX:
                    raise
                self._look_again()

    def _find_table(self, catalog: Catalog, kind: TableKind) -> Table | None:
        settings, topic = self._settings, self._topic
        table = load_table(catalog, settings.identifier)
        if table is None:
            held = self._known_offsets()
            if held and not settings.restart:
                raise InvalidRequestError(
                    "follow topic",
                    topic.name,
                    f"table {settings.full_name} is gone, though it held {_shown(held)}",
                    "--restart makes it again from the log's start; older records may be gone",
                )
            begin = begin_offsets(self._client, topic, settings.begin)
            first = self._backlog.plan(self._wanted(begin).ranges)
            design = kind.design(first)
            if design is None:
                return None
            table = create_table(
                catalog,
                settings.identifier,
                schema=design.schema,
                spec=design.spec,
                topic=topic.name,
                topic_id=topic.topic_id,
                properties={
                    **design.properties,
                    **begin_property(topic.topic_id, begin),
                    MODE_PROPERTY: settings.mode,
                },
            )
            if self._progress is not None:
                # Of the table that is gone: retention has to wait for this one from the start.
                self._client.drop_table(topic.topic_id, settings.full_name)
                self._progress = None
        owner = table.properties.get(TOPIC_ID_PROPERTY, "")
        is_anothers = owner != topic.topic_id
        if is_anothers:
            self._check_adoption(owner)
        mode = table.properties.get(MODE_PROPERTY, settings.mode)
        if mode != settings.mode:
            raise InvalidRequestError(
                "follow topic",
                topic.name,
                f"table {settings.full_name} was made for {mode}, not for {settings.mode}",
                "name another table",
            )
        kind.check(table)
        if is_anothers:
            # Last: refused above, it must not be this topic's already when it is asked for again.
            with (
                translated("adopt table", settings.full_name),
                table.transaction() as transaction,
            ):
                transaction.set_properties({TOPIC_ID_PROPERTY: topic.topic_id})
        return table

    def _check_adoption(self, owner: str) -> None:
        settings, topic = self._settings, self._topic
        holds = f"holds rows of topic {owner}" if owner else "is not Penstock's"
        if not settings.adopt:
            raise InvalidRequestError(
                "follow topic",
                topic.name,
                f"table {settings.full_name} {holds}, and this topic is {topic.topic_id}",
                "penstock.table.name names another one; a table that is appended to goes on from "
                "this topic's start with --adopt",
            )
        if settings.mode == UPSERT:
            # Offsets and times of another topic say nothing of which record is the newer one: its
            # rows would stay, and this topic's records be dropped.
            raise InvalidRequestError(
                "adopt table",
                settings.full_name,
                f"it {holds}, and for a table of one row per key it isn't known whether its rows "
                f"or the records of topic {topic.topic_id} are newer",
                "name another table by --table or penstock.table.name, or drop this one and make "
                "it again with --restart",
            )

    # -- plans -----------------------------------------------------------------------------------

    def _wanted(self, held: Mapping[int, int], epochs: Mapping[int, int] | None = None) -> Wanted:
        try:
            return plan_wanted(self._topic.topic_id, self._topic.partitions, held, epochs)
        except ConflictError:
            # Perhaps only this look at the topic is older than another driver's commit.
            self._look_again()
            return plan_wanted(self._topic.topic_id, self._topic.partitions, held, epochs)

    def _look_again(self) -> None:
        """Ask for the topic's state as it is now. Raises: NotFoundError: it is gone."""
        topics = self._client.topics(topic_ids=[self._topic.topic_id]).topics
        if not topics:
            raise _no_topic(self._topic.name)
        self._topic = topics[0]

    # -- effects ---------------------------------------------------------------------------------

    def _commit(
        self,
        catalog: Catalog,
        table: Table,
        held: Held,
        items: Sequence[Sequence[Range]],
        written: Written,
        letters: DeadLetterTopic,
        files: TableFiles,
    ) -> Table:
        """Commit what was written, or find out that another driver has been there."""
        offsets = offsets_after(held.offsets, items)
        topic_id = self._topic.topic_id
        epochs = epochs_before(offsets, self._topic.partitions)
        change = Change(
            name=self._random.token_bytes(16).hex(),
            after=Holdings(
                {**held.holdings.topics, topic_id: offsets},
                {**held.holdings.epochs, topic_id: epochs},
            ),
            before=held.holdings,
            added=written.added,
            removed=written.removed,
            letters=self._letters(table, written, letters),
        )
        layout = _layout(table)
        in_doubt = False
        for attempt in range(CONFLICTS_MAX):
            try:
                snapshot_id = commit_change(table, change)
            except ConflictError:
                self._count_conflict()
                snapshot_id = -1
            except InDoubtError:
                in_doubt = True
                snapshot_id = is_committed(self._reload(catalog), change.name) or -1
            table = self._reload(catalog)
            if snapshot_id != -1:
                self._count(written, snapshot_id, items)
                return table
            now = held_by(table, self._topic.topic_id, self._known_offsets())
            is_overtaken = (now.offsets, now.epochs) != (held.offsets, held.epochs)
            if is_overtaken or written.is_by_snapshot or _layout(table) != layout:
                # Another driver took these ranges, or the layout changed for which the files were
                # made. Nothing names these files, unless a commit in doubt still arrives.
                if not in_doubt:
                    files.delete(
                        [file.url for file in written.added] + [file.url for file in written.bad]
                    )
                return table
            pause((1 + self._random.below(1000) / 1000) * _REST_S * (attempt + 1))
        raise RetryableError(
            "commit", self._settings.full_name, f"another commit was first {CONFLICTS_MAX} times"
        )

    def _letters(
        self, table: Table, written: Written, letters: DeadLetterTopic
    ) -> DeadLetters | None:
        if not written.bad:
            return None
        # Before the commit, so that a missing topic stops the table while it can still be helped.
        letters.find()
        named = decode_dead_letters(table.properties)
        last = max(letters.last_batch(), named.batch_id if named is not None else 0)
        return DeadLetters(batch_id=last + 1, files=written.bad)

    def _deliver(self, table: Table, letters: DeadLetterTopic) -> None:
        named = decode_dead_letters(table.properties)
        if named is not None:
            delivered = letters.deliver(named)
            self._state = msgspec.structs.replace(
                self._state, bad_records=self._state.bad_records + delivered
            )

    def _save(self, offsets: Mapping[int, int], table: Table) -> None:
        """Tell the log how far the table is; only behind the commit and its dead letters."""
        snapshot = table.current_snapshot()
        summary = {} if snapshot is None else summary_of(snapshot)
        state = msgspec.structs.replace(
            self._state,
            status=OK,
            error="",
            rows=0 if snapshot is None else int(summary.get(_ROWS, UNKNOWN)),
            files=0 if snapshot is None else int(summary.get(_FILES, UNKNOWN)),
            snapshots=len(table.metadata.snapshots),
        )
        self._state = state
        progress = TableProgress(
            topic_id=self._topic.topic_id,
            table=self._settings.full_name,
            offsets=sorted(offsets.items()),
            snapshot_id=-1 if snapshot is None else snapshot.snapshot_id,
            state=msgspec.json.encode(state).decode(),
        )
        self._put_progress(progress)

    def _save_stopped(self, error: PenstockError) -> None:
        known = self._progress
        state = msgspec.structs.replace(self._state, status=STOPPED, error=str(error))
        self._put_progress(
            TableProgress(
                topic_id=self._topic.topic_id,
                table=self._settings.full_name,
                offsets=[] if known is None else known.offsets,
                snapshot_id=-1 if known is None else known.snapshot_id,
                state=msgspec.json.encode(state).decode(),
            )
        )

    def _put_progress(self, progress: TableProgress) -> None:
        known = self._progress
        if known is not None and msgspec.structs.replace(known, time_ms=0) == progress:
            return
        self._client.save_table(progress)
        self._progress = progress

    # -- figures ---------------------------------------------------------------------------------

    def _count(self, written: Written, snapshot_id: int, items: Sequence[Sequence[Range]]) -> None:
        tally, state = self._tally, self._state
        self._state = msgspec.structs.replace(
            state,
            followed=state.followed + sum(area.end - area.start for item in items for area in item),
            set_aside=state.set_aside + sum(file.row_count for file in written.bad),
        )
        tally.rows += written.rows
        tally.bad_records += sum(file.row_count for file in written.bad)
        tally.bytes_read += written.bytes_read
        tally.files += len(written.added)
        tally.file_bytes += sum(file.size_bytes for file in written.added)
        tally.columns_added += written.columns_added
        tally.commits += 1
        tally.snapshot_id = snapshot_id

    def _count_conflict(self) -> None:
        self._state = msgspec.structs.replace(self._state, conflicts=self._state.conflicts + 1)

    def _note_lost(self, lost: list[Range]) -> None:
        new = [area for area in lost if area not in self._tally.lost]
        self._tally.lost += new
        known = [area for area in self._state.lost if area not in new]
        self._state = msgspec.structs.replace(
            self._state, lost=[*known, *new][-_LOST_IN_STATE_MAX:]
        )

    def _known_offsets(self) -> dict[int, int] | None:
        return None if self._progress is None else dict(self._progress.offsets)

    def _behind(self, offsets: Mapping[int, int]) -> int:
        return sum(
            max(0, state.high_watermark - offsets.get(partition, state.log_start))
            for partition, state in enumerate(self._topic.partitions)
        )

    def _reload(self, catalog: Catalog) -> Table:
        table = load_table(catalog, self._settings.identifier)
        if table is None:
            raise InvalidRequestError(
                "follow topic",
                self._topic.name,
                f"table {self._settings.full_name} was dropped meanwhile",
                "--restart makes it again from the log's start",
            )
        return table


def _no_topic(name: str) -> NotFoundError:
    return NotFoundError("make a table", name, "there is no such topic", "its table stays as it is")


def _layout(table: Table) -> tuple[int, int]:
    """Return the layout for which files are made: the ids of the table's schema and partition
    spec."""
    return table.schema().schema_id, table.spec().spec_id


def _shown(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"partition {p} up to {offset}" for p, offset in sorted(offsets.items())[:8])


__all__ = ["TableSummary", "run_table_once"]
