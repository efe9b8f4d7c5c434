"""Repair of damage that was found: what is right again, what is left of a run, what is lost.

`look` reads each run that is known to be damaged once more, from where it lies, and says what a
reader would get of it. `accept_loss` gives up what is not right of them, by `AcceptLoss`: consumers
then step over the gap. Nothing is given up that could not be read for another reason than damage.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.log.checking import EpochStarts
from penstock.log.damage import DamagedError, Damages
from penstock.log.fetch.examine import Examiner
from penstock.log.fetch.run_checks import RunChecks, place_of
from penstock.log.salvage import Kept, salvage
from penstock.metadata.answers import LossAccepted
from penstock.metadata.apply_loss import offsets_between
from penstock.metadata.commands import AcceptLoss
from penstock.metadata.committer import Committer
from penstock.metadata.queries import Queries
from penstock.metadata.rows import StoredRun
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey

logger = logging.getLogger(__name__)

RUN_BYTES_MAX: Final = 1 << 30
"""Read into memory at once."""


@dataclass(slots=True)
class DamagedRun:
    """What was found of one run.

    `state`: "right" (again), "damaged", "lost" (its loss is accepted now), or "unknown" with the
    reason in `note`. `lost`: offsets [start, end) that can't be served; `kept_batches`: of the run,
    those that can.
    """

    partition_key: PartitionKey
    start: int
    end: int
    place: str
    state: str
    lost: list[tuple[int, int]] = field(default_factory=list)
    kept_batches: int = 0
    note: str = ""


class DamageRepair:
    """Event loop only; runs are read in the storage pool, one at a time."""

    def __init__(
        self,
        *,
        damages: Damages,
        examiner: Examiner,
        checks: RunChecks,
        queries: Callable[[], Queries],
        let_queries_find: Callable[[], Awaitable[None]],
        committer: Committer,
        epochs: Callable[[PartitionKey], EpochStarts],
    ) -> None:
        self._damages = damages
        self._examiner = examiner
        self._checks = checks
        self._queries = queries
        self._let_queries_find = let_queries_find
        self._committer = committer
        self._epochs = epochs

    async def look(self) -> list[DamagedRun]:
        """Read again all runs that are known to be damaged, and change nothing."""
        return [report for report, _, _ in await self._found()]

    async def accept_loss(self) -> list[DamagedRun]:
        """Give up what is damaged of the runs that are known to be.

        Raises:
            RetryableError: the journal is away. What was given up before stays so.
        """
        reports = []
        for report, run, kept in await self._found():
            reports.append(report)
            if report.state != "damaged":
                continue
            command = AcceptLoss(
                partition_key=run.partition_key,
                base_offset=run.base_offset,
                end_offset=run.end_offset,
                position=run.position,
                length=run.length,
                wal=run.generation,
                object_key=run.object_key,
                kept=[number for one in kept for number in one],
            )
            (answer,) = await self._committer.commit([command])
            if not isinstance(answer, LossAccepted):
                report.state, report.note = "unknown", f"the run has moved: {answer}"
                continue
            report.state = "lost"
            self._damages.given_up(run.partition_key, run.base_offset, run.end_offset)
            self._checks.forget(run.partition_key)
            logger.warning(
                "the loss of %s offsets %s in %s was accepted",
                self._damages.partition_name(run.partition_key),
                ", ".join(f"{start} to {end - 1}" for start, end in report.lost),
                report.place,
            )
        return reports

    async def _found(self) -> list[tuple[DamagedRun, StoredRun, list[Kept]]]:
        await self._let_queries_find()
        found = []
        seen: set[tuple[int, int]] = set()
        for damage in self._damages.known():
            key = damage.partition_key
            runs = await self._checks.in_pool(partial(self._runs, key, damage.start))
            if not runs or runs[0].base_offset >= damage.end:
                self._damages.given_up(key, damage.start, damage.end)
                continue
            run = runs[0]
            if (key, run.base_offset) not in seen:
                seen.add((key, run.base_offset))
                report = DamagedRun(key, run.base_offset, run.end_offset, place_of(run), "right")
                found.append((report, run, await self._judge(run, report)))
        return found

    async def _judge(self, run: StoredRun, report: DamagedRun) -> list[Kept]:
        """Set the report's state; what could be kept of the run."""
        kept: list[Kept] = []
        try:
            if run.origin:
                report.state = "unknown"
                report.note = "the object is another cluster's: repair it there"
            elif not self._examiner.can_read(run):
                report.state = "unknown"
                report.note = "the run lies in another agent's WAL: ask that agent"
            elif run.length > RUN_BYTES_MAX:
                report.state = "unknown"
                report.note = f"the run has {run.length} bytes, {RUN_BYTES_MAX} are read at most"
            else:
                await self._examiner.examine(run)
        except DamagedError:
            data = await self._examiner.stored_bytes(run)
            seed, epochs = self._checks.seed_of(run.partition_key), self._epochs(run.partition_key)
            kept = await self._checks.in_pool(partial(salvage, data, run, seed, epochs))
            report.state = "damaged"
            report.lost = offsets_between(
                run.base_offset, run.end_offset, ((one.base_offset, one.end_offset) for one in kept)
            )
            report.kept_batches = sum(one.batch_count for one in kept)
            if not report.lost:
                # Only the sum of the run or a label is wrong where each batch seems right.
                report.state, report.note = "unknown", "no single batch of the run is damaged"
        except PenstockError as error:
            report.state, report.note = "unknown", str(error)
        return kept

    def _runs(self, key: PartitionKey, offset: int) -> list[StoredRun]:
        return self._queries().runs_from(key, offset, limit=1)
