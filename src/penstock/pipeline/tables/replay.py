"""Dead letters become rows once their schemas let them: at their original places, each once.

The table itself makes it exact: a letter whose partition and offset are in the snapshot that a
commit goes on top of is not added again. So nothing has to be noted, and any number of drivers may
run at once and be killed at any step.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    RetryableError,
)
from penstock.pipeline.api_messages import Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.catalog import open_catalog, translated
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.commit import Change
from penstock.pipeline.tables.files import TableFiles, files_options
from penstock.pipeline.tables.followed import RowSchemas, settings_by
from penstock.pipeline.tables.kinds import MODE_PROPERTY, target_of
from penstock.pipeline.tables.letters import originals
from penstock.pipeline.tables.offsets import TOPIC_ID_PROPERTY, Held
from penstock.pipeline.tables.parquet import PartitionedWriter, WrittenFile
from penstock.pipeline.tables.rows import decode_records
from penstock.pipeline.tables.settings import (
    APPEND,
    DEAD_LETTER,
    RAW,
    UPSERT,
    TableSettings,
    resolve,
)
from penstock.pipeline.tables.topic_table import TopicTable, place_prefix, topic_named
from penstock.pipeline.tables.values import RowPlan, RowReader
from penstock.ports.random import Random
from penstock.system.heard import Cause, heard
from penstock.system.randomness import SystemRandom
from penstock.system.waiting import pause

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 64 << 20
"""Letters that become rows by one commit, about."""
_OPERATION: Final = "replay dead letters"
_AGAIN: Final = "planning the letters again"
_CONFLICTS_MAX: Final = 20
_REST_S: Final = 0.2


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The letters of one call.

    Args:
        rows: they became rows.
        known: their rows are in the table already.
        bad: they still can't be rows.
        ahead: the table has not come to their records yet, and reads them itself.
        others: they hold no record of this topic: whole batches, what was too large for its topic,
            timestamps that no column holds, records of another topic.
    """

    topic: str
    table: str
    rows: int
    known: int
    bad: int
    ahead: int
    others: int
    commits: int


@dataclass(slots=True)
class _Tally:
    rows: int = 0
    known: int = 0
    bad: int = 0
    ahead: int = 0
    others: int = 0
    commits: int = 0


@dataclass(slots=True)
class _Chunk:
    """Letters that are gathered for a commit."""

    parts: list[pa.Table] = field(default_factory=list)
    size_bytes: int = 0


def replay_dead_letters(
    client: PipelineClient, settings: TableSettings, *, random: Random | None = None
) -> ReplaySummary:
    """Add the letters of a topic to its table that can be rows by now.

    Raises:
        NotFoundError: there is no such topic, table or topic of letters.
        InvalidRequestError: the table has one row per key, or is another topic's.
        RetryableError: an agent, the store or the catalog does not answer; call again later.
    """
    topic = topic_named(client, settings.topic, _OPERATION)
    settings = resolve(settings, topic.configs)
    letters = topic_named(client, settings.dead_letters, _OPERATION)
    with (
        open_catalog(settings.catalog) as catalog,
        JobLease(client, kind="table", name=f"replay {settings.full_name}"),
        ObjectAccess(client) as objects,
    ):
        replay = _Replay(client, catalog, settings, topic, random or SystemRandom())
        replay.check()
        for records in _chunks(client, objects, letters, topic.topic_id, replay.tally):
            replay.add(records)
    tally = replay.tally
    return ReplaySummary(
        topic=topic.name,
        table=settings.full_name,
        rows=tally.rows,
        known=tally.known,
        bad=tally.bad,
        ahead=tally.ahead,
        others=tally.others,
        commits=tally.commits,
    )


class _Replay:
    """One call of `replay_dead_letters`."""

    def __init__(
        self,
        client: PipelineClient,
        catalog: Catalog,
        settings: TableSettings,
        topic: TopicState,
        random: Random,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._random = random
        self._table = TopicTable(
            client, catalog, settings, topic, operation=_OPERATION, cause=Cause.REPLAY_LETTERS
        )
        self.tally = _Tally()

    def check(self) -> None:
        """Raises: NotFoundError, InvalidRequestError: see `replay_dead_letters`."""
        table, held = self._table.load()
        name = self._settings.full_name
        owner = table.properties.get(TOPIC_ID_PROPERTY, "")
        if owner != self._topic.topic_id:
            raise InvalidRequestError(
                _OPERATION,
                name,
                f"it holds rows of topic {owner}, and {self._topic.name} is {self._topic.topic_id}",
                "--table names another one",
            )
        if set(held.holdings.topics) - {self._topic.topic_id}:
            raise InvalidRequestError(
                _OPERATION,
                name,
                "it holds rows of a deleted topic too, whose partitions and offsets are those of "
                f"{self._topic.name} again: which rows are there can't be said",
                "produce the letters' values again where they are still wanted",
            )
        if table.properties.get(MODE_PROPERTY, APPEND) == UPSERT:
            raise InvalidRequestError(
                _OPERATION,
                name,
                "it has one row per key: whether a letter is older than what became of its key, "
                "which may be deleted, only the log says",
                "produce the letters' values again where they are still wanted",
            )

    def add(self, records: pa.Table) -> None:
        """Make rows of records (RECORD_SCHEMA) by one commit, as far as they can be, and are not
        there."""
        records = _each_once(records)
        for attempt in range(_CONFLICTS_MAX):
            if self._try(records):
                return
            pause((1 + self._random.below(1000) / 1000) * _REST_S * (attempt + 1))
        raise RetryableError(
            "commit", self._settings.full_name, f"another commit was first {_CONFLICTS_MAX} times"
        )

    def _try(self, records: pa.Table) -> bool:
        """Return whether it is through; if not, another commit was first."""
        table, held = self._table.load()
        is_held = _is_held(records, held)
        try:
            table, rows, bad = self._rows(table, records.filter(is_held))
        except ConflictError as error:
            # Another driver let the columns follow a schema meanwhile.
            heard(Cause.REPLAY_LETTERS, error, logger, _AGAIN)
            return False
        is_new = _is_new(table, rows, place_prefix(table))
        new = rows.filter(is_new)
        if new.num_rows and not self._commit(table, held, new):
            return False
        self.tally.rows += new.num_rows
        self.tally.known += rows.num_rows - new.num_rows
        self.tally.bad += bad
        self.tally.ahead += records.num_rows - int(np.count_nonzero(is_held))
        return True

    def _rows(self, table: Table, records: pa.Table) -> tuple[Table, pa.Table, int]:
        """The rows that records are by now, with the table that has their columns, and how many
        records are none."""
        plain = msgspec.structs.replace(self._settings, incompatible=DEAD_LETTER)
        settings = settings_by(table, plain)
        if settings.schema == RAW:
            read = RowReader(RowPlan(), arrow_schema(table.schema())).read(records)
            return table, read.rows, 0
        schemas = RowSchemas(settings)
        schemas.check(table)
        table = schemas.follow_files(table)
        while True:
            reader = RowReader(schemas.plan(table), arrow_schema(table.schema()))
            read = reader.read(records)
            if not read.unknown:
                return table, read.rows, read.bad.num_rows
            table = schemas.follow(table, read.unknown)

    def _commit(self, table: Table, held: Held, rows: pa.Table) -> bool:
        files = TableFiles(files_options(table.io.properties))
        written = self._write(table, files, rows)
        change = Change(
            name=self._random.token_bytes(16).hex(),
            after=held.holdings,
            before=held.holdings,
            added=written,
        )
        if not self._table.commit(table, change, _AGAIN):
            return False
        self.tally.commits += 1
        return True

    def _write(self, table: Table, files: TableFiles, rows: pa.Table) -> list[WrittenFile]:
        target = target_of(table, self._settings.target_file_bytes)
        stem = f"replayed-{self._random.token_bytes(12).hex()}"
        with PartitionedWriter(target, files, name=lambda n: f"{stem}-{n:03}") as writer:
            writer.add(rows)
            return writer.finish()


def _chunks(
    client: PipelineClient, objects: ObjectAccess, letters: TopicState, topic_id: str, tally: _Tally
) -> Iterator[pa.Table]:
    """The records of all letters that are there now, in pieces of bounded size."""
    chunk = _Chunk()
    for partition, state in enumerate(letters.partitions):
        if state.log_start >= state.high_watermark:
            continue
        wanted = Range(letters.topic_id, partition, state.log_start, state.high_watermark)
        for part in read_range(client, objects, wanted):
            for found in decode_records(
                part.body, partition=partition, start=wanted.start, end=wanted.end
            ):
                read = originals(found.rows, topic_id)
                tally.others += read.others + found.bad.num_rows
                chunk.parts.append(read.records)
                chunk.size_bytes += read.records.nbytes
                if chunk.size_bytes >= CHUNK_BYTES:
                    yield pa.concat_tables(chunk.parts)
                    chunk = _Chunk()
    if any(part.num_rows for part in chunk.parts):
        yield pa.concat_tables(chunk.parts)


def _each_once(records: pa.Table) -> pa.Table:
    """The records by partition and offset; of a letter that is there twice, one."""
    order = np.lexsort(
        (records.column("offset").to_numpy(), records.column("partition").to_numpy())
    )
    ordered = records.take(pa.array(order))
    partitions, offsets = (ordered.column(name).to_numpy() for name in ("partition", "offset"))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(partitions) != 0) | (np.diff(offsets) != 0)
    return ordered.filter(pa.array(is_first))


def _is_held(records: pa.Table, held: Held) -> pa.Array:
    """Whether the table has passed each record."""
    partitions = records.column("partition").to_numpy()
    ends = np.zeros(len(partitions), dtype=np.int64)
    for partition, end in held.offsets.items():
        ends[partitions == partition] = end
    return pa.array(records.column("offset").to_numpy() < ends)


def _is_new(table: Table, rows: pa.Table, prefix: str) -> pa.Array:
    """Whether the table's snapshot lacks each row, by its partition and offset."""
    partition_name, offset_name = f"{prefix}partition", f"{prefix}offset"
    partitions = rows.column(partition_name).to_numpy()
    offsets = rows.column(offset_name).to_numpy()
    is_new = np.ones(len(offsets), dtype=bool)
    for partition in np.unique(partitions).tolist():
        of_it = partitions == partition
        within = (
            f"{partition_name} = {partition} and {offset_name} >= {offsets[of_it].min()} "
            f"and {offset_name} <= {offsets[of_it].max()}"
        )
        with translated("read", ".".join(table.name())):
            stored = table.scan(row_filter=within, selected_fields=(offset_name,)).to_arrow()
        is_stored = pc.is_in(
            pa.array(offsets[of_it]), value_set=stored.column(offset_name).combine_chunks()
        )
        is_new[of_it] = ~is_stored.to_numpy(zero_copy_only=False)
    return pa.array(is_new)
