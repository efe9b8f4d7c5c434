"""Writes a large snapshot in a process of its own.

Digests are computed row by row in Python: about 2.5 s of CPU per million runs, during which a
thread of a server would take the interpreter from the event loop again and again.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec

from penstock.replica.marks import RowMark
from penstock.replica.snapshot import SnapshotInfo, write_snapshot
from penstock.system.apart import answer_apart, run_apart

APART_BYTES: Final = 16 << 20
"""A database as large as this is worth a process, whose start costs about 0.3 s of CPU."""
_SECONDS_MIN: Final = 300
_BYTES_PER_S_MIN: Final = 1 << 20


class _Done(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    time_ms: int
    digest: bytes
    format_version: int
    mark: str | None = None


def write_snapshot_apart(
    live: Path, target: Path, *, apart_bytes: int = APART_BYTES
) -> SnapshotInfo:
    """Do as `write_snapshot`, in another process if the database is large. Blocking.

    Raises:
        RetryableError: the process was ended, or took far too long.
        PenstockError: as `write_snapshot`.
    """
    size_bytes = _size(live)
    if size_bytes < apart_bytes:
        return write_snapshot(live, target)
    done = run_apart(
        "penstock.replica.snapshot_process",
        [str(live), str(target)],
        _Done,
        operation="write snapshot",
        subject=str(target),
        timeout_s=_SECONDS_MIN + size_bytes / _BYTES_PER_S_MIN,
    )
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


def _write(live: Path, target: Path) -> _Done:
    info = write_snapshot(live, target)
    return _Done(
        position=info.position,
        time_ms=info.time_ms,
        digest=info.digest,
        format_version=info.format_version,
        mark=None if info.mark is None else info.mark.text,
    )


def main(live: str, target: str) -> int:
    """Do `write_snapshot` in the other process. Returns: its exit status."""
    return answer_apart(lambda: _write(Path(live), Path(target)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
