"""Repair of damage that was found: what is right again, what is left of a run, what is lost.

`look` reads each run that is known to be damaged once more, from where it lies, and says what a
reader would get of it. `accept_loss` gives up what is not right of them, by `AcceptLoss`: consumers
then step over the gap. Nothing is given up that could not be read for another reason than damage.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.log.checking import EpochStarts
from penstock.log.damage.loss_steps import loss_steps
from penstock.log.damage.run_restorer import Found, RunRestorer
from penstock.log.damage.salvage import Kept, salvage
from penstock.log.fetch.examine import Examiner
from penstock.log.fetch.run_checks import RunChecks, place_of
from penstock.log.findings import DamagedError, Damages
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.state.answers import LossAccepted
from penstock.state.apply.loss import offsets_between
from penstock.state.commands import RestoreRuns
from penstock.state.levels import Levels, refuse_below_level
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun

logger = logging.getLogger(__name__)

Place = tuple[PartitionKey, int]
"""A run, by its partition and an offset in it."""

RUN_BYTES_MAX: Final = 1 << 30
"""Read into memory at once."""


@dataclass(slots=True)
class DamagedRun:
    """The result of looking at one run.

    `state`: "right" (again), "damaged", "restored" (from `copy`), "lost" (its loss is accepted
    now), or "unknown" with the reason in `note`. `lost`: offsets [start, end) that can't be served;
    `kept_batches`: the number of the run's batches that can.
    """

    partition_key: PartitionKey
    start: int
    end: int
    place: str
    state: str
    lost: list[tuple[int, int]] = field(default_factory=list)
    kept_batches: int = 0
    note: str = ""
    copy: str = ""
    """Where a copy of all of the run was found."""


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
        restorer: RunRestorer,
        levels: Levels,
    ) -> None:
        self._damages = damages
        self._examiner = examiner
        self._checks = checks
        self._queries = queries
        self._let_queries_find = let_queries_find
        self._committer = committer
        self._epochs = epochs
        self._restorer = restorer
        self._levels = levels
        self.lock = asyncio.Lock()
        """One repair changes something at a time."""

    async def look(self, places: Sequence[Place] | None = None) -> list[DamagedRun]:
        """Read runs again, and change nothing.

        Args:
            places: an offset of each run. None: all runs that are known here to be damaged.
        """
        return [report async for report, _, _ in self._found(places)]

    async def find(
        self, places: Sequence[Place] | None = None, *, source: str = ""
    ) -> list[DamagedRun]:
        """Look as `look` does, and say of which runs there is a copy, and where.

        Args:
            source: a directory or URL of an operator's that may hold copies; "": none.
        """
        found = [(report, run) async for report, run, _ in self._found(places)]
        reports = _by_run(found)

        async def use(copy: Found) -> None:
            reports[name_of(copy.run)].copy = copy.place

        await self._restorer.find(_damaged(found), source, use)
        return [report for report, _ in found]

    async def restore(
        self, places: Sequence[Place] | None = None, *, source: str = ""
    ) -> list[DamagedRun]:
        """Bring back from copies what is damaged of runs, wherever copies are found.

        Args:
            places, source: as of `find`.

        Raises:
            RetryableError: journal or store is away, or the feature level too low. What was
                brought back before stays so.
        """
        self.refuse_below_level()
        async with self.lock:
            found = [(report, run) async for report, run, _ in self._found(places)]
            reports = _by_run(found)
            for restored in await self._restorer.restore(_damaged(found), source):
                report = reports[name_of(restored.run)]
                report.copy = restored.place
                if restored.refusal is not None:
                    report.state = "unknown"
                    report.note = f"the run has moved: {restored.refusal}. Look again"
                    continue
                report.state, report.lost, report.kept_batches = "restored", [], 0
                key = report.partition_key
                self._damages.given_up(key, report.start, report.end)
                logger.warning(
                    "%s offsets %d to %d in %s were restored from %s",
                    self._damages.partition_name(key),
                    report.start,
                    report.end - 1,
                    report.place,
                    restored.place,
                )
            return [report for report, _ in found]

    async def accept_loss(self, places: Sequence[Place] | None = None) -> list[DamagedRun]:
        """Give up what is damaged of runs.

        Args:
            places: as of `look`.

        Raises:
            RetryableError: the journal is away. What was given up before stays so.
        """
        async with self.lock:
            return await self._accept_loss(places)

    async def _accept_loss(self, places: Sequence[Place] | None) -> list[DamagedRun]:
        reports = []
        async for report, run, kept in self._found(places):
            reports.append(report)
            if report.state != "damaged":
                continue
            refused = None
            for command in loss_steps(run, kept):
                (answer,) = await self._committer.commit([command])
                if not isinstance(answer, LossAccepted):
                    refused = answer
                    break
            if refused is not None:
                report.state, report.note = "unknown", f"the run has moved: {refused}"
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

    async def _found(
        self, places: Sequence[Place] | None
    ) -> AsyncIterator[tuple[DamagedRun, StoredRun, list[Kept]]]:
        """One after the other: what can be kept of a run may be much, and is dropped with it."""
        await self._let_queries_find()
        reported: dict[PartitionKey, list[tuple[int, int]]] = {}
        for key, start, end in self._known() if places is None else _ranges(places):
            ranges = reported.setdefault(key, [])
            if any(base <= start < base_end for base, base_end in ranges):
                continue
            runs = await self._checks.in_pool(partial(self._runs, key, start))
            if not runs or runs[0].base_offset >= end:
                self._damages.given_up(key, start, end)
                continue
            run = runs[0]
            if (run.base_offset, run.end_offset) not in ranges:
                ranges.append((run.base_offset, run.end_offset))
                report = DamagedRun(key, run.base_offset, run.end_offset, place_of(run), "right")
                yield report, run, await self._judge(run, report)

    def refuse_below_level(self) -> None:
        """Asked before anything is put: an object that no entry may name is of no use.

        Raises:
            RetryableError: the feature level is too low.
        """
        error = refuse_below_level(
            self._levels,
            [RestoreRuns(object_key="", object_bytes=0, runs=[])],
            operation="repair",
        )
        if error is not None:
            raise error

    async def found_at(
        self, key: PartitionKey, offset: int
    ) -> tuple[DamagedRun, StoredRun, list[Kept]] | None:
        """The run that holds an offset, and what can be kept of it; None: it isn't damaged."""
        async for found in self._found([(key, offset)]):
            return found if found[0].state == "damaged" else None
        return None

    def _known(self) -> Iterable[tuple[PartitionKey, int, int]]:
        return [(one.partition_key, one.start, one.end) for one in self._damages.known()]

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
            data, is_named = await self._examiner.stored_bytes(run)
            seed, epochs = self._checks.seed_of(run.partition_key), self._epochs(run.partition_key)
            gap_end = self._checks.rules(run).gap_end
            kept = await self._checks.in_pool(
                partial(salvage, data, run, seed, epochs, is_named=is_named, gap_end=gap_end)
            )
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


def _ranges(places: Sequence[Place]) -> Iterable[tuple[PartitionKey, int, int]]:
    return [(key, offset, offset + 1) for key, offset in places]


def name_of(run: StoredRun) -> tuple[int, int]:
    """A run among those of one repair."""
    return run.partition_key, run.base_offset


_FoundRuns = list[tuple[DamagedRun, StoredRun]]


def _by_run(found: _FoundRuns) -> dict[tuple[int, int], DamagedRun]:
    return {name_of(run): report for report, run in found}


def _damaged(found: _FoundRuns) -> list[StoredRun]:
    return [run for report, run in found if report.state == "damaged"]
