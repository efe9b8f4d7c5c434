"""Writes a large snapshot in a process of its own.

Digests are computed row by row in Python: about 2.5 s of CPU per million runs, during which a
thread of a server would take the interpreter from the event loop again and again.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.replica.marks import RowMark
from penstock.replica.snapshot import SnapshotInfo, write_snapshot

APART_BYTES: Final = 16 << 20
"""A database as large as this is worth a process, whose start costs about 0.3 s of CPU."""
_NICENESS: Final = 10
_SECONDS_MIN: Final = 300
_BYTES_PER_S_MIN: Final = 1 << 20
_FAILED: Final = 3
_ERRORS: Final[dict[str, type[PenstockError]]] = {
    kind.__name__: kind
    for kind in (CorruptDataError, NotFoundError, RetryableError, StorageFullError)
}


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    operation: str
    subject: str
    detail: str
    hint: str


class _Done(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    time_ms: int
    digest: bytes
    format_version: int
    mark: str | None = None


def write_snapshot_apart(
    live: Path, target: Path, *, apart_bytes: int = APART_BYTES
) -> SnapshotInfo:
    """As `write_snapshot`, in another process if the database is large. Blocking.

    Raises:
        RetryableError: the process was ended, or took far too long.
        PenstockError: as `write_snapshot`.
    """
    size_bytes = _size(live)
    if size_bytes < apart_bytes:
        return write_snapshot(live, target)
    try:
        ended = subprocess.run(  # noqa: S603 - this very program, with paths of ours
            [sys.executable, "-m", "penstock.replica.snapshot_process", str(live), str(target)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS_MIN + size_bytes / _BYTES_PER_S_MIN,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryableError("write snapshot", str(target), str(error)) from error
    if ended.returncode == _FAILED:
        failure = msgspec.json.decode(ended.stdout, type=_Failure)
        kind = _ERRORS.get(failure.kind, RetryableError)
        raise kind(failure.operation, failure.subject, failure.detail, failure.hint)
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip()[-300:]
        raise RetryableError(
            "write snapshot", str(target), f"its process ended with {ended.returncode}: {said}"
        )
    done = msgspec.json.decode(ended.stdout, type=_Done)
    return SnapshotInfo(
        position=done.position,
        time_ms=done.time_ms,
        digest=done.digest,
        format_version=done.format_version,
        mark=RowMark.parse(done.mark),
    )


def _size(live: Path) -> int:
    """Bytes of a database, what is only in its WAL included."""
    found = 0
    for path in (live, live.with_name(live.name + "-wal")):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def main(live: str, target: str) -> int:
    """The other process. Returns: its exit status; it says on standard output what came of it."""
    os.nice(_NICENESS)
    answer: _Done | _Failure
    try:
        info = write_snapshot(Path(live), Path(target))
        answer = _Done(
            position=info.position,
            time_ms=info.time_ms,
            digest=info.digest,
            format_version=info.format_version,
            mark=None if info.mark is None else info.mark.text,
        )
    except PenstockError as error:
        answer = _Failure(
            kind=type(error).__name__,
            operation=error.operation,
            subject=error.subject,
            detail=error.detail,
            hint=error.hint,
        )
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return _FAILED if isinstance(answer, _Failure) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
