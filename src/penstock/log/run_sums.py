"""Comparing the bytes of a whole run with the sum that the state keeps of the run. Pure.

For whoever has read all of a run and is about to serve, move or copy the bytes. The batches' CRCs
are checked apart: a sum is made of what their headers say.
"""

from penstock.metadata.rows import StoredRun
from penstock.model.errors import CorruptDataError
from penstock.records.sums import run_sum


def is_raw(run: StoredRun) -> bool:
    """Whether the stored headers of a run aren't final: in a WAL or a raw object."""
    return bool(run.generation or run.raw)


def place_of(run: StoredRun) -> str:
    """The file or object that a run lies in, for errors."""
    if run.object_key:
        return run.object_key
    wal = f" of WAL {run.wal_key}" if run.wal_key else ""
    return f"WAL generation {run.file_generation}{wal}"


def check_run(run: StoredRun, data: memoryview, seed: int | None, *, operation: str) -> None:
    """See that `data`, all bytes of a run, are the batches that the journal named there.

    Nothing is compared where the sum isn't known (stored below feature level 4).

    Args:
        data: as stored, or with final headers: both have the same sum.
        seed: `MetadataView.seed` of the run's partition; None: its topic is gone.
        operation: what is being done, for the error.

    Raises:
        CorruptDataError: they aren't. The subject names the file or object.
    """
    if run.sum is None or seed is None:
        return
    subject = place_of(run)
    found = run_sum(
        data,
        seed,
        base_offset=run.base_offset if is_raw(run) else None,
        leader_epoch=run.leader_epoch,
        subject=subject,
    )
    if found != run.sum:
        raise other_batches(run, operation=operation)


def other_batches(run: StoredRun, *, operation: str) -> CorruptDataError:
    """The error of a run whose sum differs."""
    return CorruptDataError(
        operation,
        place_of(run),
        f"the {run.length} bytes from byte {run.position} on are not the batches of offsets"
        f" {run.base_offset} to {run.end_offset - 1} of partition key {run.partition_key}:"
        " their sum differs from the journal's",
        "another run's bytes, another object or an older one lie there",
    )
