"""Reads of every kind share the knowledge about damage, and the rules by which runs are checked.

A damaged partition is an error of its readers. For a second after damage was found, the error is
raised at once; after that the bytes are looked at again, so that repaired bytes, or bytes that were
damaged only on their way here, are served again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple, TypeVar

from penstock.log.checking import Checked, EpochStarts, Fault, Rules
from penstock.log.fetch.object_reads import ObjectReads
from penstock.log.fetch.placed import PlacedRuns, Proof
from penstock.log.findings import Damage, DamagedError, DamageKind, Damages
from penstock.model.ids import PartitionKey
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.records.sums import SUM_MASK
from penstock.state.leader_epochs import epoch_of_offset
from penstock.state.rows import StoredRun

T = TypeVar("T")

KNOWN_S: Final = 1.0
"""How long a read of what was found damaged fails without another look at it."""
_KNOWN_MAX: Final = 10_000
_CLEAN_ENDS_MAX: Final = 10_000
_FOLDS_MAX: Final = 10_000


class _Bad(NamedTuple):
    error: DamagedError
    start: int
    end: int
    until_s: float


class RunChecks:
    """Event loop only, save `rules` and `in_pool`'s work.

    Args:
        clean_end: asks the database up to where a partition was compacted by key.
        epochs: a partition's leader epochs; empty: not known here.
        seed_of: of a partition's sums; None: its topic is gone.
        again_s: after how long what was checked is checked again.
        store: that of the objects; read by `reads`.
        topic_id_of: see `PlacedRuns`.
    """

    def __init__(
        self,
        *,
        damages: Damages,
        clock: Clock,
        pool: Executor,
        clean_end: Callable[[PartitionKey], int],
        epochs: Callable[[PartitionKey], EpochStarts],
        seed_of: Callable[[PartitionKey], int | None],
        again_s: float,
        store: ObjectStore,
        topic_id_of: Callable[[PartitionKey], bytes | None],
    ) -> None:
        self.damages = damages
        self.again_s = again_s
        self._clock = clock
        self._pool = pool
        self.reads = ObjectReads(store, clock, again_s=again_s)
        self._placed = PlacedRuns(
            self.reads, topic_id_of=topic_id_of, now_s=clock.monotonic_s, again_s=again_s
        )
        self._ask_clean_end = clean_end
        self._epochs = epochs
        self.seed_of = seed_of
        self._clean_ends: dict[PartitionKey, int] = {}
        self._bad: dict[PartitionKey, _Bad] = {}
        self._folds: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()
        """Runs in objects that were checked from their first byte on, by object and position: the
        checked end, and the sum so far."""
        self._doubted: set[tuple[str, int]] = set()
        """Runs whose sum is another than the state's."""
        self._broken: set[tuple[str, int]] = set()
        """Runs that have a damaged batch, so that their sum proves nothing."""

    def now_s(self) -> float:
        """The time by which what was checked ages."""
        return self._clock.monotonic_s()

    def in_pool(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work in the storage pool."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def rules(self, run: StoredRun) -> Rules:
        """Return what a run's batches must be like; gaps of compaction only where one was met
        before."""
        key = run.partition_key
        seed = None if run.sum is None else self.seed_of(key)
        return Rules(run.end_offset, self._clean_ends.get(key, 0), self._epochs(key), seed)

    def may_lack(self, key: PartitionKey, end_offset: int) -> bool:
        """Return whether compaction may have left a gap before a batch that ends there. Asks the
        database at the first gap of a partition."""
        if end_offset <= self._clean_ends.get(key, 0):
            return True
        if len(self._clean_ends) >= _CLEAN_ENDS_MAX:
            self._clean_ends.clear()
        known = self._clean_ends[key] = self._ask_clean_end(key)
        return end_offset <= known

    def leader_epoch(self, key: PartitionKey, offset: int) -> int:
        """The label of an offset's batch."""
        epochs = self._epochs(key)
        return epoch_of_offset(epochs, offset) if epochs else 0

    def look_up(self, run: StoredRun) -> bool:
        """Ask the database about a partition's gaps. Whether `rules` are others now."""
        key = run.partition_key
        before = self._clean_ends.get(key, 0)
        self.may_lack(key, 1 << 62)
        return self._clean_ends[key] > before

    # -- sums of whole runs ----------------------------------------------------------------------

    def fold(self, run: StoredRun, start: int, found: Checked) -> bool:
        """Add what was checked from `start` on to the sum of its run.

        Returns:
            False: all of the run was checked, and its sum is another than the state's.
        """
        if not self.has_sum(run):
            return True
        name = (run.object_key, run.position)
        if start == run.position:
            if found.fault is not None:
                if len(self._broken) >= _KNOWN_MAX:
                    self._broken.clear()
                self._broken.add(name)
            elif self._broken:
                self._broken.discard(name)
        begun, total = (start, 0) if start == run.position else self._folds.get(name, (-1, 0))
        if begun != start or found.position == start:
            return True
        total = (total + found.sum) & SUM_MASK
        if found.position < run.position + run.length:
            self._folds[name] = (found.position, total)
            self._folds.move_to_end(name)
            if len(self._folds) > _FOLDS_MAX:
                self._folds.popitem(last=False)
            return True
        self._folds.pop(name, None)
        return total == run.sum

    def is_provable(self, run: StoredRun, bytes_max: int) -> bool:
        """Return whether to check a short run from its first byte on, wherever a reader begins: so
        its sum proves that it is the run before any of it is served. Not of a run that has a
        damaged batch, and so no sum to compare."""
        return (
            run.sum is not None
            and run.length <= bytes_max
            and (not self._broken or (run.object_key, run.position) not in self._broken)
        )

    def needs_proof(self, run: StoredRun, bytes_max: int, version: str | None) -> bool:
        """Return whether the object's index must name a run before any of it is served: since it
        is too long to be compared with its sum first, or has a damaged batch.

        Args:
            version: of the object's bytes that are to be served.
        """
        return not self.is_proven(run, version) and not self.is_provable(run, bytes_max)

    def is_proven(self, run: StoredRun, version: str | None) -> bool:
        """Return whether right batches at the run's place in that version of its object are the
        run's; so they are taken to be where no sum of it is known."""
        return not self.has_sum(run) or self._placed.is_known(run, version)

    async def prove(self, run: StoredRun, version: str | None) -> Proof:
        """Look whether the index of that version of the object names the run. Where it doesn't, all
        of the run is to be read before any of it is served: the sum decides."""
        proof = await self._placed.prove(run, version)
        if proof is Proof.UNNAMED:
            self.doubt(run)
        return proof

    async def look_at_index(self, run: StoredRun, version: str | None) -> Proof:
        """Prove a run as `prove` does, for a caller that serves nothing of it."""
        return await self._placed.prove(run, version)

    def has_sum(self, run: StoredRun) -> bool:
        """Return whether a run's sum can be compared."""
        return run.sum is not None and self.seed_of(run.partition_key) is not None

    def doubt(self, run: StoredRun) -> None:
        """The run's sum is another: nothing of it is served until all of it was read again."""
        if len(self._doubted) >= _KNOWN_MAX:
            self._doubted.clear()
        self._doubted.add((run.object_key, run.position))

    def is_doubted(self, run: StoredRun) -> bool:
        """Return whether all of a run must be read before any of it is served."""
        return bool(self._doubted) and (run.object_key, run.position) in self._doubted

    def trust(self, run: StoredRun, version: str | None) -> None:
        """Note that this version of the run's object holds the run, and doubt it no more."""
        self._doubted.discard((run.object_key, run.position))
        if self.has_sum(run):
            self._placed.know(run, version)

    # -- what is known ---------------------------------------------------------------------------

    def raise_known(self, key: PartitionKey, offset: int) -> None:
        """
        Raises:
            DamagedError: reading that offset failed a moment ago.
        """
        if not self._bad:
            return
        bad = self._bad.get(key)
        if bad is None:
            return
        if self.now_s() >= bad.until_s:
            del self._bad[key]
        elif bad.start <= offset < bad.end:
            raise bad.error

    def forget(self, key: PartitionKey) -> None:
        """The partition's runs lie elsewhere now."""
        self._bad.pop(key, None)

    def damaged(
        self, run: StoredRun, fault: Fault, *, kind: DamageKind | None = None
    ) -> DamagedError:
        """Take note of damage, for the log, the counter and the reads of the next second.

        Args:
            fault: its position counts from the object's or file's first byte.
        """
        if kind is None:
            kind = DamageKind.DAMAGED_WAL if run.generation else DamageKind.DAMAGED_OBJECT
        key = run.partition_key
        error = self.damages.found(
            "read",
            Damage(
                kind=kind,
                partition_key=key,
                start=fault.offset,
                end=max(fault.end_offset, fault.offset + 1),
                place=place_of(run),
                position=fault.position,
                detail=fault.detail,
            ),
        )
        if len(self._bad) >= _KNOWN_MAX:
            self._bad.clear()
        self._bad[key] = _Bad(error, error.damage.start, error.damage.end, self.now_s() + KNOWN_S)
        return error

    def right(self, run: StoredRun, start: int, end: int) -> None:
        """Bytes of a run's place have been checked and are right."""
        self.damages.right(run.partition_key, place_of(run), start, end)


def place_of(run: StoredRun) -> str:
    """Return where a run lies, for people."""
    if run.generation:
        return f"WAL {run.wal_key} generation {run.file_generation}"
    return f"{run.origin}/{run.object_key}" if run.origin else run.object_key
