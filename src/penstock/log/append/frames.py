"""One group commit: a WAL frame that holds batches and the entry that names them, in one sync.

The entry is applied in memory before its frame is written, since only applying tells whether it
can be; if the frame then can't be written it is taken back. The database gets both behind
(`commit_behind`): what is durable is the frame.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.log.append.group_commit import GroupCommit
from penstock.log.append.plan import FramePlan, run_commits
from penstock.model.errors import InvalidRequestError, StorageFullError
from penstock.order.local_journal import Prepared
from penstock.ports.clock import Clock
from penstock.state.commands import AnyCommand, CommitRuns, Relay
from penstock.state.order_types import AppliedEntry
from penstock.state.orders import LocalJournal
from penstock.system.heard import Cause, heard
from penstock.wal import WalPlace

logger = logging.getLogger(__name__)

ENTRY_BYTES: Final = 128
ENTRY_BYTES_PER_BATCH: Final = 48
"""About what an entry takes; where it is more, another place is asked for."""

UNCOMMITTED_MAX: Final = 1000
UNCOMMITTED_BYTES_MAX: Final = 2 << 20
"""Entries, and their bytes, that the database may be behind."""

QUICK_SYNC_S: Final = 0.0005
_RECENT: Final = 0.2
"""Weight of the newest write in the mean of them."""


class WalFullError(StorageFullError):
    """The WAL has no room for the frame; nothing was applied."""


def too_large_error(length: int, *, frame_bytes_max: int) -> InvalidRequestError | None:
    """Return the error of an append of `length` bytes that no frame can hold, however long it
    waits; None where one can."""
    if length <= frame_bytes_max:
        return None
    return InvalidRequestError(
        "append",
        "WAL",
        f"{length} bytes in one append, and one file of the WAL takes {frame_bytes_max}",
        "send smaller batches, or raise wal_file_bytes",
    )


class FrameWriter(Protocol):
    """The part of `penstock.wal.WalWriter` that this module uses."""

    @property
    def frame_bytes_max(self) -> int:
        """The longest payload."""
        ...

    @property
    def room(self) -> int:
        """The longest payload that fits into the active file."""
        ...

    def place(self, length: int, *, position: int = 0) -> WalPlace:
        """Return the place at which the next frame's payload will begin."""
        ...

    def write(
        self,
        buffers: Sequence[memoryview],
        *,
        length: int,
        entry: bytes = b"",
        position: int = 0,
        time_ms: int = 0,
    ) -> WalPlace:
        """Write one frame durably."""
        ...


class FrameCommitter:
    """Writes frames and applies their entries. One thread at a time."""

    def __init__(self, wal: FrameWriter, journal: LocalJournal, clock: Clock) -> None:
        self._wal = wal
        self._journal = journal
        self._clock = clock
        self._write_s = 0.0
        """Seconds that writing the last frame took."""
        self._mean_write_s = 0.0
        self.hidden_position = 0
        """The position of the last entry with commands for which the database had no space when the
        entry was applied; 0: none. Callers that wait for such commands may find older state than
        their answers had."""

    def is_quick(self, length: int) -> bool:
        """Whether a frame with so many bytes of batches can be written without waiting long."""
        return (
            self._mean_write_s < QUICK_SYNC_S
            and self._wal.room > 2 * length + 4096
            and not self._journal.is_busy
        )

    def commit(self, group: GroupCommit, commands: Sequence[AnyCommand]) -> AppliedEntry:
        """Make a group's batches and commands durable and apply them, as one entry. What became
        of them is in the group then.

        Raises:
            WalFullError: the WAL has no room for the batches; nothing was applied.
            StorageFullError: the journal has no room; nothing was applied.
            FatalStorageError: what is durable is unknown; the process must end.
        """
        started_s = self._clock.monotonic_s()
        self._write_s = 0.0
        if group.plan is not None:
            applied, group.place = self._commit_batches(group.plan, commands)
        else:
            applied, group.place = self._commit_commands(commands)
        group.applied = applied
        # Callers that wait for commands read the database next. Batches are found in memory.
        is_read_next = not all(map(_names_batches_only, commands))
        if is_read_next and not self.commit_behind():
            self.hidden_position = applied.position
        self._mean_write_s += _RECENT * (self._write_s - self._mean_write_s)
        group.wal_s = self._write_s
        group.journal_s = self._clock.monotonic_s() - started_s - self._write_s
        return applied

    @property
    def is_far_ahead(self) -> bool:
        """Whether the database should follow now."""
        journal = self._journal
        return (
            journal.uncommitted_count >= UNCOMMITTED_MAX
            or journal.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
        )

    @property
    def uncommitted_count(self) -> int:
        """Entries that the database is behind."""
        return self._journal.uncommitted_count

    def commit_behind(self) -> bool:
        """Bring the database to what was applied; whether it is there.

        Raises:
            FatalStorageError: the process must end.
        """
        try:
            self._journal.commit()
        except StorageFullError as error:
            # It is in the WAL. Appends are refused for want of space until this succeeds.
            heard(Cause.DATABASE_FULL, error, logger, "the database stays behind")
            return False
        return True

    # -- inside --------------------------------------------------------------------------------

    def _commit_batches(
        self, plan: FramePlan, commands: Sequence[AnyCommand]
    ) -> tuple[AppliedEntry, WalPlace]:
        wal = self._wal
        batch_count = sum(len(group) for _, _, group in plan.runs)
        guess = plan.length + ENTRY_BYTES + ENTRY_BYTES_PER_BATCH * batch_count
        place = self._place(min(guess, wal.frame_bytes_max))
        entry = self._prepare(plan, place, commands)
        needed = plan.length + len(entry.body)
        if needed > wal.room:
            # In another file its numbers may be a few bytes longer.
            needed += ENTRY_BYTES
            if needed > wal.frame_bytes_max:
                return self._commit_apart(plan, commands)
            place = self._place(needed)
            entry = self._prepare(plan, place, commands)
        return self._append(entry, plan.buffers, plan.length), place

    def _commit_commands(
        self, commands: Sequence[AnyCommand]
    ) -> tuple[AppliedEntry, WalPlace | None]:
        entry = self._journal.prepare(commands)
        if len(entry.body) <= self._wal.frame_bytes_max:
            try:
                place = self._place(len(entry.body))
                return self._append(entry, [], 0), place
            except WalFullError:
                # They may be what makes room in it.
                pass
        return self._journal.append(commands), None

    def _commit_apart(
        self, plan: FramePlan, commands: Sequence[AnyCommand]
    ) -> tuple[AppliedEntry, WalPlace]:
        """The entry of very many small batches is longer than they are: two syncs, then."""
        place = self._place(plan.length)
        self._write(plan.buffers, plan.length, b"", 0, 0)
        return self._journal.append(_entry(plan, place, commands)), place

    def _prepare(
        self, plan: FramePlan, place: WalPlace, commands: Sequence[AnyCommand]
    ) -> Prepared:
        return self._journal.prepare(_entry(plan, place, commands))

    def _append(self, entry: Prepared, buffers: Sequence[memoryview], length: int) -> AppliedEntry:
        def write(position: int, time_ms: int) -> None:
            self._write(buffers, length, entry.body, position, time_ms)

        return self._journal.append_written(entry, write)

    def _place(self, length: int) -> WalPlace:
        try:
            return self._wal.place(length, position=self._journal.position + 1)
        except StorageFullError as error:
            raise _wal_full(error) from error

    def _write(
        self,
        buffers: Sequence[memoryview],
        length: int,
        entry: bytes,
        position: int,
        time_ms: int,
    ) -> None:
        started_s = self._clock.monotonic_s()
        try:
            self._wal.write(buffers, length=length, entry=entry, position=position, time_ms=time_ms)
        except StorageFullError as error:
            raise _wal_full(error) from error
        self._write_s = self._clock.monotonic_s() - started_s


def _entry(plan: FramePlan, place: WalPlace, commands: Sequence[AnyCommand]) -> list[AnyCommand]:
    runs = run_commits(plan, position=place.position)
    return [CommitRuns(runs=runs, wal=place.generation), *commands]


def _wal_full(error: StorageFullError) -> WalFullError:
    return WalFullError(error.operation, error.subject, error.detail, error.hint)


def _names_batches_only(command: AnyCommand) -> bool:
    """Another worker's flush, which it holds in memory, too."""
    return type(command) is Relay and all(type(inner) is CommitRuns for inner in command.commands)
