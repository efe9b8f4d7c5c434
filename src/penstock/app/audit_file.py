"""The audit log is written here: lines of JSON, to a file that is followed by another at a size.

The file is `PATH`; those before it are `PATH.1`, the newest, to `PATH.N`. All are 0600. A line is
ASCII: whatever a client puts into a name, an entry stays one line, and no terminal obeys it.
"""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.security.audit import Audit, AuditEntry
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

ENTRIES_PER_WRITE: Final = 2_000
_MODE: Final = 0o600


class AuditFile:
    """Writes what an `Audit` has gathered. One thread at a time.

    Args:
        bytes_max: of one file, before the next is begun.
        files_max: files that are kept, the newest included.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, audit: Audit, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._audit = audit
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.written_count = 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._open()

    def write(self) -> None:
        """Write what waits. What can't be written is counted as lost."""
        while entries := self._audit.take(ENTRIES_PER_WRITE):
            body = b"".join(map(line, entries))
            try:
                self._rotate_for(len(body))
                self._append(body)
            except OSError as error:
                self._audit.lose(len(entries))
                saying = f"{len(entries)} entries of the audit log are lost"
                heard(Cause.AUDIT, error, logger, saying)
                continue
            self.written_count += len(entries)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.write()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, body: bytes) -> None:
        if self._descriptor < 0:
            self._descriptor = self._open()
        view = memoryview(body)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _rotate_for(self, byte_count: int) -> None:
        if self._descriptor < 0:
            self._descriptor = self._open()
        size_bytes = os.fstat(self._descriptor).st_size
        if not size_bytes or size_bytes + byte_count <= self._bytes_max:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._files_max == 1:
            self._path.unlink(missing_ok=True)
        self._descriptor = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, _MODE)


def line(entry: AuditEntry) -> bytes:
    """Return an entry as its line: ASCII, with a newline at its end alone."""
    when = datetime.fromtimestamp(entry.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    fields = {"time": when, **entry._asdict()}
    del fields["time_ms"]
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
