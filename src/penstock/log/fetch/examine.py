"""Reads a whole run from where it lies, past every cache, and checks it.

For what looks at stored bytes without serving them: the scrubber and repair. What is found damaged
or missing is noted like what a reader finds, and what is right again is noted as well.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.log.checking import OTHERS, Fault, Pieces, check_and_label, ends_early
from penstock.log.fetch.placed import Proof
from penstock.log.fetch.read_again import LoadFailed
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.whole_runs import BadRunError, read_wal_run
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.state.rows import StoredRun
from penstock.state.transactions import is_marker
from penstock.wal import WalReader

PIECE_BYTES: Final = 4 << 20
"""Read at once of an object whose base offsets are final."""


class Examiner:
    """Event loop only; checks run in the storage pool.

    Args:
        wals: of the WALs that this process reads, by key; may change later.
        load_failed: what it means that a place hasn't what the state says.
    """

    def __init__(
        self,
        *,
        wals: Mapping[int, WalReader],
        checks: RunChecks,
        load_failed: LoadFailed,
    ) -> None:
        self._wals = wals
        self._checks = checks
        self._load_failed = load_failed

    def can_read(self, run: StoredRun) -> bool:
        """Return whether the run's place can be read here: not a WAL of another host."""
        return run.generation <= 0 or run.wal_key in self._wals

    async def examine(self, run: StoredRun) -> None:
        """Return once all of the run was read and is right.

        Raises:
            DamagedError: bytes are damaged or missing; it is noted.
            RetryableError: the store is away, or the run lies elsewhere by now.
        """
        if is_marker(run.generation):
            return  # its row is all there is of it
        try:
            if run.generation:
                wal = self._wals[run.wal_key]
                await self._checks.in_pool(
                    partial(read_wal_run, wal, run, self._checks.seed_of(run.partition_key))
                )
                fault = None
            elif run.raw:
                fault = await self._raw(run)
            else:
                fault = await self._final(run)
                if fault is not None and self._checks.look_up(run):
                    # A gap that compaction by key left, in a partition that was not read yet.
                    fault = await self._final(run)
        except BadRunError as error:
            raise await self._load_failed(run, run.base_offset, error) from error
        except (NotFoundError, CorruptDataError) as error:
            raise await self._load_failed(run, run.base_offset, error) from error
        if fault is not None:
            subject = f"{run.object_key} at {run.position}"
            bad = BadRunError(subject, fault, memoryview(b""))
            raise await self._load_failed(run, run.base_offset, bad)
        self._checks.right(run, run.position, run.position + run.length)

    async def stored_bytes(self, run: StoredRun) -> tuple[memoryview, bool]:
        """All bytes of a run as they are stored, right or not; empty where they are missing. And
        whether right batches among them are the run's: those of a WAL are, and those of an object
        whose index, of the same version, names the run.

        Raises:
            RetryableError: the store is away, or the run lies elsewhere by now.
        """
        end = run.position + run.length
        try:
            if run.generation:
                wal = self._wals[run.wal_key]
                read = partial(wal.read, run.file_generation, run.position, run.length)
                return memoryview(await self._checks.in_pool(read)), True
            # Once more, where the object is replaced meanwhile.
            for _ in range(2):
                data, version = await self._checks.reads.get_directly(
                    run.object_key, run.position, end
                )
                proof = await self._checks.look_at_index(run, version)
                if proof is not Proof.OTHER_VERSION:
                    break
            return memoryview(data), proof is Proof.NAMED
        except (NotFoundError, CorruptDataError):
            return memoryview(b""), False

    async def _raw(self, run: StoredRun) -> Fault | None:
        end = run.position + run.length
        found = await self._checks.reads.get_directly(run.object_key, run.position, end)
        data = memoryview(bytearray(found.data))
        seed = self._checks.seed_of(run.partition_key)
        fault = await self._checks.in_pool(partial(check_and_label, data, run, seed))
        return None if fault is None else fault._replace(position=run.position + fault.position)

    async def _final(self, run: StoredRun) -> Fault | None:
        for _ in range(2):
            is_one, fault = await self._final_once(run)
            # What the sum proves is right, whatever versions the store names.
            if is_one or (fault is None and self._checks.has_sum(run)):
                return fault
        detail = "the object was replaced again and again while the run was read"
        return Fault(run.position, run.base_offset, run.end_offset, detail)

    async def _final_once(self, run: StoredRun) -> tuple[bool, Fault | None]:
        """Whether all was of one version of the object, and what is wrong with it."""
        rules = self._checks.rules(run)
        pieces = Pieces(rules, run.base_offset, run.position)
        end = run.position + run.length
        versions: set[str | None] = set()
        for start in range(run.position, end, PIECE_BYTES):
            data, found = await self._checks.reads.get_directly(
                run.object_key, start, min(start + PIECE_BYTES, end)
            )
            versions.add(found)
            await self._checks.in_pool(partial(pieces.add, memoryview(data)))
            if pieces.fault is not None:
                return len(versions) == 1, pieces.fault
        fault = pieces.finish() or ends_early(run, pieces)
        if fault is None and self._checks.has_sum(run) and pieces.sum != run.sum:
            fault = Fault(run.position, run.base_offset, run.end_offset, OTHERS)
        return len(versions) == 1, fault
