"""Bringing damaged runs back from copies.

Order of effects: a copy is proven to be the run -> an object with many copies is put under a key of
this agent that has no object -> `RestoreRuns` is journaled. A repair that ends in between leaves an
object that no entry names, which the keeper condemns like any other. What was damaged is named no
more, and condemned in its turn. Nothing is ever put under the key of what is damaged.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from penstock.log.checking import EpochStarts
from penstock.log.damage.copies import describe, is_the_run, labelled
from penstock.log.damage.copy_sources import Candidate, CopySource, find_all
from penstock.log.damage.restored_object import put_restored
from penstock.log.damage.salvage import Kept
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey, partition_of
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment, build_segment
from penstock.state.commands import RestoredRun
from penstock.state.order_types import Committer
from penstock.state.rows import StoredRun
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

OBJECT_BYTES: Final = 64 << 20
"""Copies are gathered up to so many bytes for one object; a larger run is one by itself."""
RUNS_AT_ONCE: Final = 256
"""Runs for which copies are looked for together."""


class Found(NamedTuple):
    """A proven copy of a run. `place`: where it was found."""

    run: StoredRun
    data: memoryview
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The outcome for one run. `refusal` None: the run is restored."""

    run: StoredRun
    place: str
    refusal: str | None


class RunRestorer:
    """Event loop only; copies are read one at a time.

    Args:
        sources: given an operator's URL or "", where to look, the nearest first.
        topic_id_of: of a partition's topic; None: it is gone.
    """

    def __init__(
        self,
        *,
        sources: Callable[[str], Sequence[CopySource]],
        store: ObjectStore,
        numbers: Callable[[], ObjectNumbers],
        committer: Committer,
        checks: RunChecks,
        epochs: Callable[[PartitionKey], EpochStarts],
        topic_id_of: Callable[[PartitionKey], bytes | None],
    ) -> None:
        self._sources = sources
        self._store = store
        self._numbers = numbers
        self._committer = committer
        self._checks = checks
        self._epochs = epochs
        self._topic_id_of = topic_id_of

    async def find(
        self, runs: Sequence[StoredRun], url: str, use: Callable[[Found], Awaitable[None]]
    ) -> None:
        """Call `use` with a proven copy of each run that has one, one after the other."""
        sources = self._sources(url)
        for at in range(0, len(runs), RUNS_AT_ONCE):
            part = runs[at : at + RUNS_AT_ONCE]
            for run, candidates in zip(part, await find_all(sources, part), strict=True):
                found = await self._prove(run, candidates)
                if found is not None:
                    await use(found)

    async def restore(self, runs: Sequence[StoredRun], url: str) -> list[Restored]:
        """Bring runs back from copies; those that have none are left out.

        Raises:
            RetryableError: journal or store is away. What was brought back before stays so.
        """
        done: list[Restored] = []
        waiting: list[Found] = []

        async def use(found: Found) -> None:
            size = sum(len(one.data) for one in waiting)
            taken = {one.run.partition_key for one in waiting}
            if waiting and (
                size + len(found.data) > OBJECT_BYTES or found.run.partition_key in taken
            ):
                done.extend(await self._store_copies(waiting))
                waiting.clear()
            waiting.append(found)

        await self.find(runs, url, use)
        if waiting:
            done.extend(await self._store_copies(waiting))
        return done

    async def _prove(self, run: StoredRun, candidates: Sequence[Candidate]) -> Found | None:
        for candidate in candidates:
            try:
                data = await candidate.load()
            except PenstockError as error:
                heard(Cause.REPAIR, error, logger, f"no copy in {candidate.place}", logging.INFO)
                continue
            if len(data) != run.length:
                continue
            proven = await self._checks.in_pool(partial(self._proven, data, run, candidate))
            if proven is not None:
                return Found(run, proven, candidate.place)
        return None

    def _proven(self, data: memoryview, run: StoredRun, candidate: Candidate) -> memoryview | None:
        epochs = self._epochs(run.partition_key)
        final: memoryview | None = data
        if candidate.is_raw:
            final = labelled(bytes(data), run, epochs)
        seed = self._checks.seed_of(run.partition_key)
        same = candidate.same_place
        if final is not None and is_the_run(final, run, seed, epochs, same_place=same):
            return final
        return None

    async def _store_copies(self, copies: Sequence[Found]) -> list[Restored]:
        places: dict[int, tuple[bytes, int]] = {}
        for one in copies:
            topic_id = self._topic_id_of(one.run.partition_key)
            if topic_id is not None:
                key = one.run.partition_key
                places[key] = (bytes(topic_id), partition_of(key))
        mine = sorted(
            (one for one in copies if one.run.partition_key in places),
            key=lambda one: places[one.run.partition_key],
        )
        if not mine:
            return []

        def build() -> BuiltSegment:
            return build_segment(
                [
                    describe(one.data, one.run).describe(*places[one.run.partition_key])
                    for one in mine
                ]
            )

        built = await self._checks.in_pool(build)
        refusals = await put_restored(
            built,
            [_listed(one, position) for one, position in zip(mine, built.positions, strict=True)],
            store=self._store,
            numbers=self._numbers(),
            committer=self._committer,
            rebuilt=False,
        )
        results = []
        for one, refused in zip(mine, refusals, strict=True):
            refusal = None if refused is None else refused.name
            results.append(Restored(run=one.run, place=one.place, refusal=refusal))
            self._checks.forget(one.run.partition_key)
        return results


def run_as_seen(run: StoredRun, *, restored: Sequence[int] = ()) -> RestoredRun:
    """Return what `RestoreRuns` says of a run: what is stored there now, and what is to be.

    Args:
        restored: seven numbers for each piece, as the command has them.
    """
    return RestoredRun(
        partition_key=run.partition_key,
        base_offset=run.base_offset,
        end_offset=run.end_offset,
        position=run.position,
        length=run.length,
        wal=run.generation,
        object_key=run.object_key,
        restored=list(restored),
    )


def _listed(found: Found, position: int) -> RestoredRun:
    run = found.run
    number = -1 if run.sum is None else run.sum
    piece = Kept(
        run.base_offset,
        run.end_offset,
        position,
        run.length,
        run.max_timestamp,
        run.batch_count,
        number,
    )
    return run_as_seen(run, restored=piece)
