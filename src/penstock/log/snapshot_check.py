"""Compares a new snapshot with what the archive gives for its position, before it is archived.

A live replica may be damaged for long before its damage shows. So the archiver replays the archived
rows past the newest archived snapshot, apart from its own state: docs/formats/archive.md,
"Comparing a snapshot". Large replays run in a process of their own.
"""

import asyncio
import logging
import mmap
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    NotFoundError,
    RetryableError,
)
from penstock.ports.journal import Journal, JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import encode_rows, rows_of
from penstock.replica.beginning import read_beginning
from penstock.replica.bootstrap import bootstrap, drop_replica
from penstock.replica.database import connect_reader, translate
from penstock.replica.dump import state_digest, table_digests
from penstock.replica.history import PresentHistory
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo
from penstock.state.apply.machine import LogMachine
from penstock.state.digest_plan import differing_tables
from penstock.state.meta import FEATURE_LEVEL
from penstock.state.schema import INTEGRITY_LEVEL
from penstock.system.apart import answer_apart, run_apart
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

T = TypeVar("T")

logger = logging.getLogger(__name__)

APART_BYTES: Final = 16 << 20
APART_ROWS_BYTES: Final = 1 << 20
"""A database, or rows, as large as this are worth a process, whose start costs 0.3 s of CPU."""
ROWS_AT_ONCE: Final = 1000
"""Rows of one transaction."""
_AGAIN_S: Final = (0.5, 1.5, 3.0)
"""How long to wait before an archive that seems not to be whole is listed again."""
_TIMEOUT_S: Final = 6 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`base`: the key of the archived snapshot that was gone on from; "": from nothing.
    `tables`: names of those that differ."""

    base: str
    tables: list[str]


class SnapshotCheck:
    """Compares snapshots; one call at a time. Event loop only.

    Args:
        scratch: a folder for the replayed state.
        apart_bytes, apart_rows_bytes: sizes from which another process does the work.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        archive: Archive,
        scratch: Path,
        executor: Executor | None,
        apart_bytes: int = APART_BYTES,
        apart_rows_bytes: int = APART_ROWS_BYTES,
    ) -> None:
        self._journal = journal
        self._archive = archive
        self._scratch = scratch
        self._executor = executor
        self._apart_bytes = apart_bytes
        self._apart_rows_bytes = apart_rows_bytes

    async def compare(self, snapshot: Path, info: SnapshotInfo) -> Compared | None:
        """Compare a snapshot with the state that the archive gives for its position.

        Returns:
            None: there is nothing to compare below the feature level of digests.
        Raises:
            CorruptDataError, NotFoundError, InvalidRequestError: no whole snapshot that this
                release reads, with whole rows past it, leads to that position.
            PenstockError: to be tried again.
        """
        if await self._in_executor(partial(_level, snapshot)) < INTEGRITY_LEVEL:
            return None
        for again_s in _AGAIN_S:
            try:
                return await self._compare(snapshot, info)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_LISTING, error, logger, "the archive is listed again")
                await wait(again_s)
        return await self._compare(snapshot, info)

    async def _compare(self, snapshot: Path, info: SnapshotInfo) -> Compared:
        self._scratch.mkdir(parents=True, exist_ok=True)
        made = self._scratch / "compared.sqlite"
        rows = self._scratch / "compared.rows"
        try:
            head = await self._journal.head()
            history = PresentHistory(self._journal, self._archive, head)
            base = await bootstrap(
                self._archive,
                made,
                LogMachine,
                executor=self._executor,
                at_most=info.position,
                history=history,
                beginning=await read_beginning(self._journal, head),
            )
            after = 0 if base is None else base.position
            with rows.open("wb") as file:
                async for page in self._archive.rows(
                    after=after, until=info.position, lost=history.lost_stretch
                ):
                    await self._in_executor(partial(_write_rows, file, page))
            tables = await self._in_executor(
                partial(self._differing, made, rows, snapshot, info.digest.hex())
            )
            return Compared(base="" if base is None else base.snapshot.key, tables=tables)
        finally:
            drop_replica(made)
            rows.unlink(missing_ok=True)

    def _differing(self, made: Path, rows: Path, snapshot: Path, digest: str) -> list[str]:
        is_much = (
            rows.stat().st_size >= self._apart_rows_bytes
            or snapshot.stat().st_size >= self._apart_bytes
        )
        work = _differing_apart if is_much else differing_from_replay
        try:
            return work(made, rows, snapshot, digest)
        except FatalStorageError as error:
            # Of files that are made again the next time, not of the agent's replica.
            raise RetryableError(error.operation, error.subject, error.detail) from error

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def differing_from_replay(made: Path, rows: Path, snapshot: Path, digest: str) -> list[str]:
    """Names of the tables in which a snapshot differs from what replaying gives; blocking.

    Args:
        made: a database that the rows are applied to; with no such file, to nothing.
        rows: what `encode_rows` gave of the rows up to the snapshot's position.
        digest: the snapshot's, hexadecimal.
    Raises:
        CorruptDataError: a row is unknown, or a file is damaged.
    """
    with closing(Replica.open(made, LogMachine(), fsync=False, keeps_journal=False)) as replica:
        with _mapped(rows) as data:
            for row in rows_of(data, first=replica.position + 1, subject=str(rows)):
                replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
                if replica.uncommitted_count >= ROWS_AT_ONCE:
                    replica.commit()
        replica.commit()
    with (
        closing(connect_reader(made)) as replayed,
        closing(connect_reader(snapshot)) as found,
    ):
        try:
            if state_digest(replayed).hex() == digest:
                return []
            return differing_tables(table_digests(replayed), table_digests(found))
        except sqlite3.Error as error:
            raise translate(error, "compare snapshot", str(snapshot)) from error


def _write_rows(file: BinaryIO, rows: Sequence[JournalRow]) -> None:
    file.write(encode_rows(rows))


def _level(snapshot: Path) -> int:
    with closing(connect_reader(snapshot)) as connection:
        (level,) = connection.execute(
            "SELECT max(value) FROM meta WHERE name = ?", (FEATURE_LEVEL,)
        ).fetchone()
        return level or 0


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """A file's bytes; it may be larger than memory."""
    if not path.stat().st_size:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _differing_apart(made: Path, rows: Path, snapshot: Path, digest: str) -> list[str]:
    return run_apart(
        "penstock.log.snapshot_check",
        [str(made), str(rows), str(snapshot), digest],
        list[str],
        operation="compare snapshot",
        subject=str(snapshot),
        timeout_s=_TIMEOUT_S,
    )


def main(made: str, rows: str, snapshot: str, digest: str) -> int:
    """Do `differing_from_replay` in the other process. Returns: its exit status."""
    return answer_apart(
        lambda: differing_from_replay(Path(made), Path(rows), Path(snapshot), digest)
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
