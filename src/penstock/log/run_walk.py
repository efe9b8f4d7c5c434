"""Walk the bytes of one stored run by the row that names it, and say what is wrong. Pure.

Everything that reads a log whole uses this walk: `penstock.recovery.verify` for a directory or a
bucket, `penstock.pipeline.verify_task` next to a live cluster, and backups and restores, which copy
objects, by `penstock.recovery.due_runs`. A run is right if

1. its batches have the magic byte, lengths that lead from one to the next, and right CRC-32Cs;
2. they follow one another from the run's first to its last offset, both included. A gap lies only
   before a batch that ends in what compaction by key has cleaned. No run begins or ends with one:
   the journal names the offsets of the first and of the last batch, and compaction keeps the last
   one of what it rewrites even where it holds no record;
3. each is labelled with the leader epoch of its offset;
4. each has a record per offset, unless it was cleaned, or an import wrote it (no producer id);
5. there are as many as the row says, and their sum is the row's.

Rules 1 to 3 and the sum are `penstock.log.checking`'s, which fetches, the scrubber and repair use
as they are: a fetch reads parts of runs, and scrubber and repair must call damaged what a fetch
does. They don't go by rule 4, count no batches, and leave a run's beginning to its sum, since what
a wrong row or a wrong writer has left there can still be served.
"""

from msgspec import Struct

from penstock.log.checking import OTHERS, Fault, Pieces, Rules, check_and_label, ends_early
from penstock.records.batch import HEADER, LENGTH_END
from penstock.state.leader_epochs import EpochStart
from penstock.state.rows import StoredRun


class DueRun(Struct, frozen=True, array_like=True):
    """A run's row, and what its batches are checked by: see `penstock.log.checking.Rules`. Goes to
    executors."""

    run: StoredRun
    gap_end: int
    epochs: tuple[EpochStart, ...]
    seed: int | None
    partition: str
    """Its name for people, such as `flights-3`."""


class RunWalk:
    """Walks a run piece by piece, in order.

    `batches`, `records` and `bytes` count what is right so far, of batches that end past
    `counted_from`.

    Args:
        is_final: whether base offsets in the bytes are final. None: as the row says; they aren't in
            a WAL, nor in a raw object.
        counted_from: an offset.
    """

    def __init__(
        self, due: DueRun, *, is_final: bool | None = None, counted_from: int = -1
    ) -> None:
        run = due.run
        if is_final is None:
            is_final = not run.generation and not run.raw
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self._due = due
        self._counted_from = counted_from
        self._position = run.position
        self._fault: Fault | None = None
        self._whole = None if is_final else bytearray()
        rules = Rules(run.end_offset, due.gap_end, due.epochs, due.seed, run.base_offset)
        self._pieces = Pieces(rules, run.base_offset, run.position, right=self._take)

    @property
    def fault(self) -> Fault | None:
        """The first fault so far; its position counts from the first byte of the object or WAL."""
        return self._fault or self._pieces.fault

    def add(self, piece: memoryview) -> None:
        """Walk on. What comes after a fault isn't looked at."""
        if self._whole is not None:
            # Only all of them together show whose batches they are.
            self._whole += piece
        elif self.fault is None:
            self._pieces.add(piece)

    def end(self) -> Fault | None:
        """Compare with the row, once all of the run's bytes were added.

        Returns:
            The first fault; None: the run is right.
        """
        run, pieces = self._due.run, self._pieces
        if self._whole is not None:
            self._walk_whole(memoryview(self._whole))
        elif self.fault is None and pieces.finish() is None:
            self._fault = ends_early(run, pieces)
            detail = ""
            if pieces.batch_count != run.batch_count:
                detail = f"{pieces.batch_count} batches, the journal names {run.batch_count}"
            elif self._due.seed is not None and run.sum not in {None, pieces.sum}:
                detail = OTHERS
            if detail and self._fault is None:
                self._fault = Fault(run.position, run.base_offset, run.end_offset, detail)
        return self.fault

    def _walk_whole(self, data: memoryview) -> None:
        run = self._due.run
        fault = check_and_label(data, run, self._due.seed)
        self._take(data if fault is None else data[: fault.position])
        if fault is not None and self._fault is None:
            self._fault = fault._replace(position=run.position + fault.position)

    def _take(self, batches: memoryview) -> None:
        """Look at whole batches, with final offsets, whose bytes and places are right."""
        unpack = HEADER.unpack_from
        at = 0
        while at < len(batches) and self._fault is None:
            base, length, _, _, _, _, delta, _, _, producer_id, _, _, records = unpack(batches, at)
            end_offset = base + delta + 1
            if records != delta + 1 and producer_id >= 0 and end_offset > self._due.gap_end:
                detail = f"{records} of {delta + 1} records"
                self._fault = Fault(self._position, base, self._due.run.end_offset, detail)
                return
            at += LENGTH_END + length
            self._position += LENGTH_END + length
            if end_offset > self._counted_from:
                self.batches += 1
                self.records += records
                self.bytes += LENGTH_END + length
