"""Upkeep of a table: small files are joined, old snapshots expired, orphans deleted.

Joining is a commit like any other: its rows are the same, so offsets don't change, and it is laid
aside when somebody else was faster. Orphans are what killed attempts of tasks left behind, and what
expired snapshots alone named; a file's age guards those that a commit is about to name.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

from penstock.model.errors import ConflictError, NotFoundError, PenstockError, RetryableError
from penstock.pipeline.client import DoorClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.catalog import (
    ancestry,
    end_retries,
    lineage_of,
    load_table,
    open_catalog,
    summary_of,
    translated,
)
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.dead_letters import decode_dead_letters
from penstock.pipeline.tables.files import FilesOptions, TableFiles, files_options, split_url
from penstock.pipeline.tables.kinds import live_files, target_of
from penstock.pipeline.tables.native import expire_natively, join_natively, session_of
from penstock.pipeline.tables.offsets import (
    COMMIT_PROPERTY,
    OFFSETS_PROPERTY,
    is_property_current,
)
from penstock.pipeline.tables.parquet import (
    FileTarget,
    PartitionedWriter,
    WrittenFile,
    read_data_file,
)
from penstock.pipeline.tables.settings import TableSettings, resolve
from penstock.pipeline.tables.values import fit_rows
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL: Final = 2
"""A file of less than the target's 1/_SMALL is small."""
_FILES_MIN: Final = 4
"""Fewer small files of a partition are left alone: each rewrite is read and written bytes."""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """What is old. `files_min`: small files of a partition that are worth joining."""

    snapshot_age_ms: int = 86_400_000
    orphan_age_ms: int = 3 * 86_400_000
    files_min: int = _FILES_MIN


class MaintenanceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one call did. `not_expired`: why snapshots were left alone, where they were."""

    table: str
    files_joined: int = 0
    files_written: int = 0
    snapshots_expired: int = 0
    not_expired: str = ""
    orphans_deleted: int = 0
    orphan_bytes: int = 0


class JoinItem(msgspec.Struct, frozen=True):
    """One task: data files of one partition into few. Holds no secret."""

    files: FilesOptions
    target: FileTarget
    urls: list[str]


def join_files(item: JoinItem) -> list[WrittenFile]:
    """Copy rows into new files. Raises: NotFoundError: a file is gone."""
    files = TableFiles(item.files)
    attempt = SystemRandom().token_bytes(8).hex()
    schema = arrow_schema(item.target.iceberg_schema())
    with PartitionedWriter(item.target, files, name=lambda n: f"join-{attempt}-{n:03}") as writer:
        for url in item.urls:
            for rows in read_data_file(files, url, item.target):
                writer.add(fit_rows(rows, schema))
        return writer.finish()


def maintain_table(
    client: DoorClient,
    engine: Engine,
    settings: TableSettings,
    maintenance: Maintenance,
    *,
    is_native: bool = False,
    clock: Clock | None = None,
    random: Random | None = None,
) -> MaintenanceSummary:
    """Join, expire, delete.

    Args:
        is_native: whether joining and expiring is left to Iceberg's own procedures.

    Raises:
        NotFoundError: there is no such topic or table.
        InvalidRequestError: the engine has no session with Iceberg's runtime.
        RetryableError: catalog or store don't answer, or a procedure failed; orphans are deleted
            even so, where expiring failed alone.
    """
    clock, random = clock or SystemClock(), random or SystemRandom()
    answer = client.topics(names=[settings.topic])
    topics = answer.topics
    # Two clocks: by this process's own alone one that is ahead would delete what is in use.
    now_ms = min(clock.now_ms(), answer.time_ms)
    if not topics:
        raise NotFoundError("maintain table", settings.topic, "there is no such topic")
    settings = resolve(settings, topics[0].configs)
    with open_catalog(settings.catalog) as catalog:
        table = load_table(catalog, settings.identifier)
        if table is None:
            raise NotFoundError("maintain table", settings.full_name, "there is no such table")
        upkeep = (
            _NativeUpkeep(session_of(engine), settings, maintenance)
            if is_native
            else _Upkeep(engine, settings, maintenance, random)
        )
        return _maintain(table, upkeep, settings, maintenance, now_ms)


class _Way(Protocol):
    """Ours, or Iceberg's own procedures."""

    def join(self, table: Table) -> tuple[int, int]:
        """How many files became how many. Raises: ConflictError, NotFoundError: the table moved on
        meanwhile."""
        ...

    def expire(self, table: Table, before_ms: int) -> tuple[int, str]:
        """How many snapshots went, or why they were left alone. Raises: RetryableError, and
        ConflictError where the table moved on meanwhile."""
        ...


def _maintain(
    table: Table, way: _Way, settings: TableSettings, maintenance: Maintenance, now_ms: int
) -> MaintenanceSummary:
    joined = written = 0
    # Where the table moved on meanwhile, its small files are still there next time.
    with suppress(ConflictError, NotFoundError):
        joined, written = way.join(table)
    table.refresh()
    failure: PenstockError | None = None
    expired, not_expired = 0, ""
    try:
        expired, not_expired = way.expire(table, now_ms - maintenance.snapshot_age_ms)
    except (ConflictError, RetryableError) as error:
        # Orphans are no part of what failed.
        failure = error
    table.refresh()
    files = TableFiles(files_options(table.io.properties))
    deleted, deleted_bytes = _sweep(table, files, now_ms - maintenance.orphan_age_ms)
    if failure is not None:
        raise failure
    return MaintenanceSummary(
        table=settings.full_name,
        files_joined=joined,
        files_written=written,
        snapshots_expired=expired,
        not_expired=not_expired,
        orphans_deleted=deleted,
        orphan_bytes=deleted_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Upkeep:
    """Ours."""

    engine: Engine
    settings: TableSettings
    maintenance: Maintenance
    random: Random

    def join(self, table: Table) -> tuple[int, int]:
        return _join(table, self.engine, self.settings, self.maintenance, self.random)

    def expire(self, table: Table, before_ms: int) -> tuple[int, str]:
        return _expire(table, before_ms), ""


@dataclass(frozen=True, slots=True)
class _NativeUpkeep:
    """Iceberg's."""

    session: "SparkSession"
    settings: TableSettings
    maintenance: Maintenance

    def join(self, table: Table) -> tuple[int, int]:  # noqa: ARG002 - Spark loads it itself
        return join_natively(self.session, self.settings, files_min=self.maintenance.files_min)

    def expire(self, table: Table, before_ms: int) -> tuple[int, str]:
        if not is_property_current(
            lineage_of(table), table.properties, table=".".join(table.name())
        ):
            # Ours keep the newest snapshot with offsets, Iceberg's don't know of it.
            return 0, (
                "the table was rolled back, and only its snapshots say up to where: its next rows "
                "end that"
            )
        return expire_natively(self.session, self.settings, before_ms=before_ms), ""


def _join(
    table: Table,
    engine: Engine,
    settings: TableSettings,
    maintenance: Maintenance,
    random: Random,
) -> tuple[int, int]:
    everything = list(live_files(table))
    if any(file.content != DataFileContent.DATA for file in everything):
        # Somebody's row-level deletes: joined without them, deleted rows would come back.
        return 0, 0
    small: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for file in everything:
        is_small = file.file_size_in_bytes * _SMALL < settings.target_file_bytes
        if is_small and file.spec_id == table.spec().spec_id:
            values = tuple(file.partition[index] for index in range(len(file.partition)))
            small[values].append(file)
    target = target_of(table, settings.target_file_bytes)
    items: list[JoinItem] = []
    removed: list[DataFile] = []
    for group in small.values():
        if len(group) < maintenance.files_min:
            continue
        removed += group
        items.append(
            JoinItem(
                files=files_options(table.io.properties),
                target=target,
                urls=[file.file_path for file in group],
            )
        )
    if not items:
        return 0, 0
    end_retries(table)
    added = [file for _, result in engine.run(join_files, items) for file in result]
    # The same offsets again, so that they are found however far others expire snapshots.
    held = lineage_of(table).said
    summary = {COMMIT_PROPERTY: random.token_bytes(16).hex()}
    if held is not None:
        summary[OFFSETS_PROPERTY] = held
    with (
        translated("join files", settings.full_name),
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=summary).overwrite() as producer,
    ):
        for written in added:
            producer.append_data_file(written.data_file())
        for data_file in removed:
            producer.delete_data_file(data_file)
    return len(removed), len(added)


def _expire(table: Table, before_ms: int) -> int:
    """Expire snapshots, but none of a branch or tag, and none from the current one back to the
    newest with offsets: without those between, nobody would find it."""
    kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
    for snapshot in ancestry(table):
        kept.add(snapshot.snapshot_id)
        if OFFSETS_PROPERTY in summary_of(snapshot):
            break
    old = [
        snapshot.snapshot_id
        for snapshot in table.metadata.snapshots
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in kept
    ]
    if old:
        with translated("expire snapshots", ".".join(table.name())):
            table.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def _sweep(table: Table, files: TableFiles, before_ms: int) -> tuple[int, int]:
    """Delete old files below the table's location that nothing names."""
    named = {_key(url) for url in _named_files(table)}
    orphans = [
        file
        for file in files.list(table.location())
        if file.modified_ms < before_ms and _key(file.url) not in named
    ]
    files.delete([file.url for file in orphans])
    return len(orphans), sum(file.size_bytes for file in orphans)


def _named_files(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    for logged in metadata.metadata_log:
        yield logged.metadata_file
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    letters = decode_dead_letters(table.properties)
    if letters is not None:
        yield from (file.url for file in letters.files)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                yield entry.data_file.file_path


def _key(url: str) -> tuple[str, str]:
    """One spelling of a file's place: file:///a, file:/a and /a are the same."""
    _, host, path = split_url(url)
    return host, path
