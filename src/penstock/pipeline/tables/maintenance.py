"""Upkeep of a table: small files are joined, old snapshots expired, orphans deleted.

Orphans are what killed attempts of tasks left behind, and what
expired snapshots alone named; a file's age guards those that a commit is about to name.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np
from pyiceberg.table import Table

from penstock.model.errors import ConflictError, NotFoundError, PenstockError, RetryableError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.catalog import (
    ancestry,
    lineage_of,
    load_table,
    open_catalog,
    summary_of,
    translated,
)
from penstock.pipeline.tables.dead_letters import decode_dead_letters
from penstock.pipeline.tables.files import TableFiles, files_options, split_url
from penstock.pipeline.tables.join import Joined, join_small_files
from penstock.pipeline.tables.native import expire_natively, join_natively, session_of
from penstock.pipeline.tables.offsets import (
    OFFSETS_PROPERTY,
    is_property_current,
    offsets_file,
)
from penstock.pipeline.tables.pins import kept_from_ms, pinned_since_ms
from penstock.pipeline.tables.settings import TableSettings, resolve
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.clock import SystemClock
from penstock.system.heard import Cause, heard
from penstock.system.randomness import SystemRandom

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SNAPSHOT_CONFIG: Final = "penstock.table.snapshot.retention.ms"
ORPHAN_CONFIG: Final = "penstock.table.orphan.retention.ms"
_SNAPSHOT_AGE_MS: Final = 86_400_000
_ORPHAN_AGE_MS: Final = 3 * 86_400_000
"""Where an agent of an older release answers without these configs."""
_DELETED_AT_ONCE: Final = 1000
_FILES_MIN: Final = 4
"""Fewer small files of a partition are left alone: each rewrite is read and written bytes."""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """The ages of what is old; None: the topic's config says it. `files_min`: small files of a
    partition that are worth joining."""

    snapshot_age_ms: int | None = None
    orphan_age_ms: int | None = None
    files_min: int = _FILES_MIN

    def ages_ms(self, configs: Mapping[str, str]) -> tuple[int, int]:
        """Return the ages from which snapshots expire and orphans are deleted."""
        snapshot_ms, orphan_ms = self.snapshot_age_ms, self.orphan_age_ms
        if snapshot_ms is None:
            snapshot_ms = int(configs.get(SNAPSHOT_CONFIG, _SNAPSHOT_AGE_MS))
        if orphan_ms is None:
            orphan_ms = int(configs.get(ORPHAN_CONFIG, _ORPHAN_AGE_MS))
        return snapshot_ms, orphan_ms


class MaintenanceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call. `joins_given_up`: tasks whose files another program changed
    meanwhile; `damaged`: files that can't be read, and the reasons; `not_expired`: why snapshots
    were left alone, "": they weren't."""

    table: str
    files_joined: int = 0
    files_written: int = 0
    joins_given_up: int = 0
    damaged: list[str] = []
    snapshots_expired: int = 0
    not_expired: str = ""
    orphans_deleted: int = 0
    orphan_bytes: int = 0


def maintain_table(
    client: PipelineClient,
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
    ages_ms = maintenance.ages_ms(topics[0].configs)
    with open_catalog(settings.catalog) as catalog:
        table = load_table(catalog, settings.identifier)
        if table is None:
            raise NotFoundError("maintain table", settings.full_name, "there is no such table")
        upkeep = (
            _NativeUpkeep(session_of(engine), settings, maintenance)
            if is_native
            else _Upkeep(engine, settings, maintenance, random)
        )
        topic_id = topics[0].topic_id
        return _maintain(
            table, upkeep, settings, ages_ms, now_ms, lambda: pinned_since_ms(client, topic_id)
        )


class _Way(Protocol):
    """Ours, or Iceberg's own procedures."""

    def join(self, table: Table) -> Joined:
        """Join small files; return how many became how many. Raises: ConflictError, NotFoundError:
        the table moved on meanwhile."""
        ...

    def expire(self, table: Table, before_ms: int) -> tuple[int, str]:
        """Expire snapshots; return how many, or the reason why they were left alone. Raises:
        RetryableError, and ConflictError if the table moved on meanwhile."""
        ...


def _maintain(
    table: Table,
    way: _Way,
    settings: TableSettings,
    ages_ms: tuple[int, int],
    now_ms: int,
    pinned_ms: Callable[[], int | None],
) -> MaintenanceSummary:
    joined = Joined()
    try:
        joined = way.join(table)
    except (ConflictError, NotFoundError) as error:
        joined = Joined(gave_up=1)
        heard(
            Cause.JOIN_FILES,
            error,
            logger,
            f"the small files of table {settings.full_name} are left for the next maintenance",
        )
    table.refresh()
    failure: PenstockError | None = None
    expired, not_expired = 0, ""
    before_ms = now_ms - ages_ms[0]
    # After the table is loaded: a reader whose pin isn't there yet will load no older snapshot.
    held_ms = pinned_ms()
    if held_ms is not None:
        before_ms = min(before_ms, kept_from_ms(table.metadata.snapshot_log, held_ms))
    try:
        expired, not_expired = way.expire(table, before_ms)
    except (ConflictError, RetryableError) as error:
        # Orphans don't depend on what failed.
        failure = error
    table.refresh()
    files = TableFiles(files_options(table.io.properties))
    deleted, deleted_bytes = _sweep(table, files, now_ms - ages_ms[1])
    if failure is not None:
        raise failure
    return MaintenanceSummary(
        table=settings.full_name,
        files_joined=joined.files_joined,
        files_written=joined.files_written,
        joins_given_up=joined.gave_up,
        damaged=list(joined.damaged),
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

    def join(self, table: Table) -> Joined:
        return join_small_files(
            table,
            self.engine,
            target_file_bytes=self.settings.target_file_bytes,
            files_min=self.maintenance.files_min,
            random=self.random,
        )

    def expire(self, table: Table, before_ms: int) -> tuple[int, str]:
        return _expire(table, before_ms), ""


@dataclass(frozen=True, slots=True)
class _NativeUpkeep:
    """Iceberg's."""

    session: "SparkSession"
    settings: TableSettings
    maintenance: Maintenance

    def join(self, table: Table) -> Joined:  # noqa: ARG002 - Spark loads it itself
        joined, written = join_natively(
            self.session, self.settings, files_min=self.maintenance.files_min
        )
        return Joined(files_joined=joined, files_written=written)

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


def _expire(table: Table, before_ms: int) -> int:
    """Expire snapshots, but none of a branch or tag, and none from the current one back to the
    newest with offsets: without those between, no driver would find it."""
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
    """Delete old files below the table's location that nothing names.

    Of files that are named a digest of eight bytes is kept, and files are deleted as they are
    listed, so that a table of a million files takes some megabytes. Two names of one digest would
    only leave an orphan.
    """
    named = np.unique(np.fromiter((_digest(url) for url in _named_files(table)), dtype=np.uint64))
    count = size_bytes = 0
    orphans: list[str] = []
    for file in files.list(table.location()):
        if file.modified_ms >= before_ms:
            continue
        digest = np.uint64(_digest(file.url))
        place = int(np.searchsorted(named, digest))
        if place < len(named) and named[place] == digest:
            continue
        orphans.append(file.url)
        count += 1
        size_bytes += file.size_bytes
        if len(orphans) == _DELETED_AT_ONCE:
            files.delete(orphans)
            orphans.clear()
    files.delete(orphans)
    return count, size_bytes


def _named_files(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    for logged in metadata.metadata_log:
        yield logged.metadata_file
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    # Of snapshots and of the table: the document of offsets where it is long.
    said = [summary_of(snapshot).get(OFFSETS_PROPERTY) for snapshot in metadata.snapshots]
    yield from filter(None, map(offsets_file, (*said, table.properties.get(OFFSETS_PROPERTY))))
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


def _digest(url: str) -> int:
    """A file's place in one spelling: file:///a, file:/a and /a are the same."""
    _, host, path = split_url(url)
    return int.from_bytes(blake2b(f"{host}\0{path}".encode(), digest_size=8).digest(), "big")
