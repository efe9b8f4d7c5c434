"""The journal's entries in append-only files: docs/formats/journal-files.md.

What the database has committed is written here by its bodies in memory, without a sync; `sync`
makes it durable before the other place that holds the entries (a WAL file) is used again.
"""

import contextlib
import errno
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    PenstockError,
    StorageFullError,
)
from penstock.ports.device import Device, File
from penstock.replica.journal_format import (
    ALIGNMENT,
    BLOCK_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FOLDER,
    TORN_SUFFIX,
    BlockHeader,
    FileHeader,
    Row,
    align,
    decode_block_header,
    decode_file_header,
    decode_rows,
    encode_block,
    encode_file_header,
    file_name,
    first_of_name,
)
from penstock.replica.snapshot import JournalEntry
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 16 << 20
_ROOM_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True)
class _Known:
    """A file whose header is whole."""

    name: str
    header: FileHeader


class JournalFiles:
    """The journal files of one directory. Any thread; one process.

    Args:
        fsync: false skips every sync, and nothing else.
    """

    def __init__(self, device: Device, *, fsync: bool = True) -> None:
        """Use `open`."""
        self._device = device
        self._fsync = fsync
        self._lock = threading.RLock()
        self._syncing = threading.Lock()
        """Held while a file is synced; taken before `_lock`."""
        self._files: list[_Known] = []
        self._file: File | None = None
        self._at = 0
        self._is_new = False
        """Whether the file's name may not be durable yet."""
        self._is_roll_due = False
        self._is_last_synced = False
        """Whether the file that an earlier process wrote last is durable."""
        self._chain = 0
        """The link of the last block; 0: the next file begins a stretch."""
        self._pending: list[Row] = []
        self.last = 0
        """Position of the last entry that was noted."""
        self._written = 0
        """Position of the last entry in a file."""
        self._synced = 0
        self._failure: FatalStorageError | None = None
        self.format_version = 0
        """The format version in the headers of new files; see `FileHeader`."""
        self.agent_id = 0
        """The agent whose journal it is; 0: unknown."""
        self.cluster_id = ""
        """The cluster whose journal it is; empty: unknown."""
        self.damaged: list[tuple[str, str]] = []
        """Damage, or strange files, found when the files were opened: where and what."""
        self.newest_name = ""
        """Name of the file with the highest number, whole or not; empty: there is none."""

    @classmethod
    def open(cls, device: Device, *, fsync: bool = True) -> "JournalFiles":
        """Find the files and where their entries end. Writes nothing."""
        files = cls(device, fsync=fsync)
        files._find()
        return files

    @property
    def faults(self) -> list[str]:
        """Return what was found damaged, for people."""
        return [f"{subject}: {detail}" for subject, detail in self.damaged]

    # -- what there is -------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Return whether there is no journal file, so that `last` says nothing."""
        return not self._files

    @property
    def floor(self) -> int:
        """The position of the first entry from which on all are here."""
        with self._lock:
            for known in reversed(self._files):
                if not known.header.chain:
                    return known.header.first
            return self._files[0].header.first if self._files else 0

    @property
    def known_format_version(self) -> int:
        """Return what the newest file says of the state's format; 0: there is none."""
        return self._files[-1].header.format_version if self._files else 0

    def entries(self, after: int) -> Iterator[JournalEntry]:
        """Entries past a position, oldest first, up to the last that was noted before the call.

        Raises:
            CorruptDataError: one is damaged or missing; names the file and position.
            StorageFullError: those noted last can't be written.
        """
        with self._lock:
            self.write()
            files, last = list(self._files), self._written
        if after >= last:
            return
        fitting = [known for known in files if known.header.first <= after + 1]
        if not fitting:
            first = files[0].header.first
            raise _gap(files[0].name, f"the first entry here is {first}, {after + 1} is due")
        files = files[files.index(fitting[-1]) :]
        expected = after + 1
        chain: int | None = None
        for index, known in enumerate(files):
            following = files[index + 1].header.first if index + 1 < len(files) else last + 1
            if chain is not None and known.header.chain != chain:
                raise _gap(known.name, "it does not follow the file before")
            for block in self._blocks(known, until=following):
                chain = block.header.link
                for entry in block.entries():
                    if entry.position >= expected:
                        expected += 1
                        yield entry
            if expected < following:
                raise _gap(
                    known.name, f"entries {expected} to {following - 1} are damaged or missing"
                )

    # -- writing -------------------------------------------------------------------------------

    def begin_at(self, position: int) -> None:
        """Go on at a position past the last one: entries between are in no journal file."""
        with self._lock:
            assert not self._pending, "entries wait to be written"
            self._close_file()
            self._chain = 0
            self.last = self._written = self._synced = position - 1

    def note(self, rows: Sequence[Row]) -> None:
        """Take note of committed entries; those that are known are passed over."""
        if not rows:
            return
        with self._lock:
            if rows[0][0] <= self.last:
                rows = [row for row in rows if row[0] > self.last]
                if not rows:
                    return
            assert rows[0][0] == self.last + 1, (rows[0][0], self.last)
            self._pending += rows
            self.last = rows[-1][0]

    def write(self) -> None:
        """Write what was noted, without a sync. Costs nothing when there is nothing.

        Raises:
            StorageFullError: no space; it is kept and written by a later call.
            FatalStorageError: it failed in another way; all later calls do.
        """
        with self._lock:
            while self._pending:
                self._check()
                count = length = 0
                for row in self._pending:
                    if count and length + len(row[2]) > BLOCK_BYTES_MAX:
                        break
                    count += 1
                    length += len(row[2])
                self._write_block(self._pending[:count])
                del self._pending[:count]

    def sync(self) -> int:
        """Write what was noted and make it durable. Returns the position of the last entry of it.

        Appends go on meanwhile.

        Raises: as `write`; a sync that failed is fatal.
        """
        with self._syncing:
            with self._lock:
                self._check()
                self.write()
                written, file = self._written, self._file
            if self._fsync and written > self._synced and file is not None:
                self._sync_file(file)
            self._synced = written
            with self._lock:
                # Only where all of it is durable: no file but the last ever lacks what was
                # written to it.
                if self._written == written and (self._is_roll_due or self._at >= FILE_BYTES_MAX):
                    self._close_file()
            return written

    def append_synced(self, row: Row) -> None:
        """Make one more entry durable, with all that was noted before.

        Raises: as `sync`; after a StorageFullError it is not noted.
        """
        with self._lock:
            self._check()
            self.write()
            self.note([row])
        try:
            self.sync()
        except StorageFullError as error:
            with self._lock:
                if not self._pending:
                    self._failure = FatalStorageError("sync", FOLDER, str(error))
                    raise self._failure from error
                self._pending.pop()
                self.last -= 1
            raise

    def roll(self) -> None:
        """Begin another file soon, so that what is before it can be deleted."""
        with self._lock:
            self._is_roll_due = self._file is not None or bool(self._pending)

    def trim(self, position: int) -> int:
        """Delete files whose entries are all at or below a position. Returns how many.

        The last file stays, since it says where the entries end.

        Raises: as `sync`; files that are still there stay known.
        """
        with self._lock:
            gone = [
                known
                for known, following in zip(self._files, self._files[1:], strict=False)
                if following.header.first <= position + 1
            ]
        for known in gone:
            if self._fsync:
                # Also before the first: a power cut could else bring back a file that an earlier
                # call or process deleted, without this one that follows it.
                try:
                    self._device.sync_directory(FOLDER)
                except OSError as error:
                    raise self._translated("trim", error) from error
            with self._lock:
                self._files.remove(known)
            with contextlib.suppress(FileNotFoundError):
                self._device.remove(known.name)
        for name in self._device.list(FOLDER):
            first = first_of_name(name.removesuffix(TORN_SUFFIX))
            if name.endswith(TORN_SUFFIX) and first is not None and first <= position:
                self._device.remove(f"{FOLDER}/{name}")
        return len(gone)

    def close(self) -> None:
        """Write what was noted, if it can be, and close. Idempotent."""
        with self._syncing, self._lock:
            if self._failure is None:
                try:
                    self.write()
                except PenstockError as error:
                    heard(Cause.JOURNAL_FILE, error, logger, "entries are left to the WAL")
            self._close_file()
            if self._failure is None:
                self._failure = FatalStorageError("append", FOLDER, "the journal is closed")

    # -- inside --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _find(self) -> None:
        for entry in self._device.list(FOLDER):
            first = first_of_name(entry)
            if first is None:
                continue
            name = self.newest_name = f"{FOLDER}/{entry}"
            file = self._device.open(name)
            try:
                header = decode_file_header(file.read_at(0, FILE_HEADER_BYTES), subject=name)
            except CorruptDataError as error:
                # Torn where it is the last one; else a reader of its entries finds them missing.
                self.damaged.append((error.subject, error.detail))
                continue
            finally:
                file.close()
            if header.first != first:
                self.damaged.append((name, f"it says that it begins at {header.first}"))
                continue
            self._files.append(_Known(name, header))
        if self._files:
            known = self._files[-1]
            self.last = known.header.first - 1
            self._chain = known.header.chain
            try:
                for block in self._blocks(known, until=None):
                    for _ in block.entries():
                        pass
                    self.last, self._chain = block.header.end - 1, block.header.link
            except CorruptDataError as error:
                self.damaged.append((error.subject, error.detail))
            self.agent_id = known.header.agent_id
            self.cluster_id = known.header.cluster_id
        self._written = self._synced = self.last

    def _blocks(self, known: _Known, *, until: int | None) -> Iterator["_Block"]:
        """Whole blocks of a file, in order, below position `until`.

        Raises:
            CorruptDataError: what follows the last whole one is not the end of the file.
        """
        try:
            file = self._device.open(known.name)
        except FileNotFoundError as error:
            raise _gap(known.name, "the file is missing") from error
        try:
            at, expected, chain = ALIGNMENT, known.header.first, known.header.chain
            size_bytes = file.size()
            while at < size_bytes and (until is None or expected < until):
                subject = f"{known.name} at byte {at}"
                header = decode_block_header(file.read_at(at, BLOCK_HEADER_BYTES), subject=subject)
                if header.first != expected or header.chain != chain:
                    raise CorruptDataError(
                        "read journal",
                        subject,
                        f"a block of entry {header.first} where entry {expected} is due",
                    )
                payload = file.read_at(at + BLOCK_HEADER_BYTES, header.length)
                yield _Block(header, payload, subject)
                at = align(at + BLOCK_HEADER_BYTES + header.length)
                expected, chain = header.end, header.link
        finally:
            file.close()

    def _write_block(self, rows: Sequence[Row]) -> None:
        try:
            if self._file is None:
                self._begin_file(rows[0][0])
            assert self._file is not None
            data, link = encode_block(rows, self._chain)
            # What a failed write leaves is written over by the next.
            self._file.write_at(self._at, [data])
        except OSError as error:
            raise self._translated("append", error) from error
        self._at += len(data)
        self._chain = link
        self._written = rows[-1][0]

    def _begin_file(self, first: int) -> None:
        if self._fsync and not self._is_last_synced and self._files:
            # Else a power cut could take its end and leave the file that follows it.
            last = self._device.open(self._files[-1].name)
            try:
                self._sync_file(last)
            finally:
                last.close()
        self._is_last_synced = True
        name = file_name(first)
        header = FileHeader(
            first=first,
            chain=self._chain,
            format_version=self.format_version,
            agent_id=self.agent_id,
            cluster_id=self.cluster_id,
        )
        self._keep_torn(name)
        file = self._device.open(name, create=True)
        try:
            file.write_at(0, [encode_file_header(header)])
        except OSError:
            file.close()
            try:
                self._device.remove(name)
            except OSError as error:
                heard(Cause.REMOVE_FILE, error, logger, f"{name} stays as it was begun")
            raise
        self._file, self._at, self._is_new = file, ALIGNMENT, True
        self._files = [known for known in self._files if known.header.first < first]
        self._files.append(_Known(name, header))

    def _keep_torn(self, name: str) -> None:
        """A file of that name has no whole block; where it is not empty it is kept aside."""
        try:
            file = self._device.open(name)
        except FileNotFoundError:
            return
        size_bytes = file.size()
        file.close()
        if size_bytes > ALIGNMENT:
            self._device.rename(name, name + TORN_SUFFIX)
        else:
            self._device.remove(name)

    def _sync_file(self, file: File) -> None:
        try:
            file.sync()
            if self._is_new:
                self._device.sync_directory(FOLDER)
                self._is_new = False
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise self._translated("sync", error) from error
            self._failure = FatalStorageError("sync", FOLDER, str(error))
            raise self._failure from error

    def _close_file(self) -> None:
        file, self._file = self._file, None
        self._is_roll_due = False
        if file is not None:
            file.close()

    def _translated(self, operation: str, error: OSError) -> PenstockError:
        if error.errno in _ROOM_ERRORS:
            return StorageFullError(
                operation, FOLDER, str(error), "free some space; writing goes on by itself"
            )
        self._failure = FatalStorageError(operation, FOLDER, str(error))
        return self._failure


@dataclass(frozen=True, slots=True)
class _Block:
    header: BlockHeader
    payload: bytes
    subject: str

    def entries(self) -> Iterator[JournalEntry]:
        """Raises: CorruptDataError: the payload is damaged."""
        return decode_rows(self.payload, self.header, subject=self.subject)


def _gap(subject: str, detail: str) -> CorruptDataError:
    return CorruptDataError("read journal", subject, detail)
