"""Records that are lost in the log and were encoded again from a table: checked, put and named.

docs/decisions/0014. The batches come from an operator's command, so they are checked as a
producer's are; and they may fill offsets that are lost, and no others.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.log.checking import EpochStarts
from penstock.log.damage.repair import DamageRepair
from penstock.log.damage.restored_object import put_restored
from penstock.log.damage.run_restorer import run_as_seen
from penstock.log.damage.salvage import Kept
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.model.ids import PartitionKey, partition_of
from penstock.ports.objects import ObjectStore
from penstock.records.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchError,
)
from penstock.records.decode import decode_batch
from penstock.records.sums import SUM_MASK, batch_sum
from penstock.segment import BuiltSegment, RunDescriber, build_segment
from penstock.state.apply.loss import offsets_between
from penstock.state.commands import RestoredRun
from penstock.state.leader_epochs import epoch_of_offset
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries

logger = logging.getLogger(__name__)

REBUILT_BYTES_MAX: Final = 64 << 20
"""Bytes of batches that one call may bring."""
PIECES_MAX: Final = 1000
"""Runs that one entry may make of one: those that are kept, and those that are filled."""

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The outcome for lost offsets. `filled`, `lost`: ranges [start, end)."""

    partition_key: PartitionKey
    filled: list[tuple[int, int]]
    lost: list[tuple[int, int]]


class RebuiltRecords:
    """Event loop only.

    Args:
        partition_name: of a partition, for people.
    """

    def __init__(
        self,
        *,
        repair: DamageRepair,
        checks: RunChecks,
        queries: Callable[[], Queries],
        let_queries_find: Callable[[], Awaitable[None]],
        store: ObjectStore,
        numbers: Callable[[], ObjectNumbers],
        committer: Committer,
        epochs: Callable[[PartitionKey], EpochStarts],
        topic_id_of: Callable[[PartitionKey], bytes | None],
        partition_name: Callable[[PartitionKey], str],
    ) -> None:
        self._repair = repair
        self._checks = checks
        self._queries = queries
        self._let_queries_find = let_queries_find
        self._store = store
        self._numbers = numbers
        self._committer = committer
        self._epochs = epochs
        self._topic_id_of = topic_id_of
        self._partition_name = partition_name

    async def fill(
        self, key: PartitionKey, start: int, end: int, data: bytearray, *, accept_loss: bool
    ) -> Rebuilt:
        """Fill what is lost of offsets [start, end): a damaged run as it was listed, or offsets
        whose loss was accepted.

        Args:
            data: batches with final base offsets, in order.
            accept_loss: give up offsets of a damaged run that the batches don't hold.

        Raises:
            InvalidRequestError: batches that aren't right, or hold other offsets.
            ConflictError: nothing is lost there, or not any more, or the batches don't hold all.
            RetryableError: journal or store is away, or the feature level too low.
        """
        self._repair.refuse_below_level()
        async with self._repair.lock:
            # Looked up under the lock: no other repair may change what is lost before the entry.
            seen, kept, lost = await self._lost(key, start, end)
            name = self._partition_name(key)
            seed, topic_id = self._checks.seed_of(key), self._topic_id_of(key)
            if seed is None or topic_id is None:
                raise ConflictError("rebuild", name, "its topic was deleted")
            check = partial(check_rebuilt, data, lost, seed, self._epochs(key), subject=name)
            rows = await self._checks.in_pool(check)
            filled = [(row.base_offset, row.end_offset) for row in rows]
            left = [
                gap
                for low, high in lost
                for gap in offsets_between(low, high, _in(filled, low, high))
            ]
            # A damaged run is replaced as a whole, so that offsets without a batch are given up.
            # Where the loss was accepted before (no length), they only stay lost.
            if seen.length and left and not accept_loss:
                raise ConflictError(
                    "rebuild",
                    f"{name} offsets {start} to {end - 1}",
                    f"{sum(high - low for low, high in left)} lost offsets are not among the"
                    f" records, the first of them {left[0][0]}",
                    "--accept-loss gives those up",
                )
            if len(kept) + len(rows) > PIECES_MAX:
                raise ConflictError(
                    "rebuild",
                    f"{name} offsets {start} to {end - 1}",
                    f"{len(kept) + len(rows)} pieces, an entry holds {PIECES_MAX}",
                    "accept the loss first; its ranges are then filled one by one",
                )
            await self._store_rebuilt(seen, kept, rows, memoryview(data), bytes(topic_id))
        logger.warning(
            "%s offsets %s were encoded again from a table: producer ids, batch boundaries and"
            " compression are not those of the lost records",
            name,
            ", ".join(f"{low} to {high - 1}" for low, high in filled),
        )
        return Rebuilt(partition_key=key, filled=filled, lost=left if seen.length else [])

    async def _lost(
        self, key: PartitionKey, start: int, end: int
    ) -> tuple[RestoredRun, list[Kept], Ranges]:
        """Return the run as the state has it, the batches of it that are kept, and the lost
        offsets."""
        await self._let_queries_find()
        ranges = await self._checks.in_pool(lambda: self._queries().lost_ranges_of(key))
        if any(low <= start and end <= high for low, high in ranges):
            gap = RestoredRun(
                partition_key=key, base_offset=start, end_offset=end, position=0, length=0
            )
            return gap, [], [(start, end)]
        found = await self._repair.found_at(key, start)
        if found is None or (found[1].base_offset, found[1].end_offset) != (start, end):
            raise ConflictError(
                "rebuild",
                f"{self._partition_name(key)} offsets {start} to {end - 1}",
                "no run of these offsets is damaged, and their loss was not accepted",
                "penstock repair lists what is lost now",
            )
        report, run, kept = found
        return run_as_seen(run), kept, report.lost

    async def _store_rebuilt(
        self,
        seen: RestoredRun,
        kept: Sequence[Kept],
        rows: Sequence[Kept],
        data: memoryview,
        topic_id: bytes,
    ) -> None:
        def build() -> BuiltSegment:
            described = RunDescriber(
                base_offset=rows[0].base_offset, operation="rebuild", subject="records of a table"
            )
            described.add(data)
            return build_segment(
                [described.describe(topic_id, partition_of(PartitionKey(seen.partition_key)))]
            )

        built = await self._checks.in_pool(build)
        (position,) = built.positions
        restored = [row._replace(position=row.position + position) for row in rows]
        run = msgspec.structs.replace(
            seen,
            kept=[value for row in kept for value in row],
            restored=[value for row in restored for value in row],
        )
        (refusal,) = await put_restored(
            built,
            [run],
            store=self._store,
            numbers=self._numbers(),
            committer=self._committer,
            rebuilt=True,
        )
        if refusal is not None:
            raise ConflictError(
                "rebuild",
                f"offsets {seen.base_offset} to {seen.end_offset - 1}",
                f"{refusal.name}: what is stored there is another now",
                "penstock repair lists what is lost now",
            )
        self._checks.forget(PartitionKey(seen.partition_key))


def check_rebuilt(
    data: bytearray, lost: Ranges, seed: int, epochs: EpochStarts, *, subject: str
) -> list[Kept]:
    """The runs of adjacent batches, with leader epochs written into them. Pure.

    Args:
        data: batches, one behind the other.
        lost: ascending ranges of offsets that the batches may hold.
        seed: of the partition's sums.

    Raises:
        InvalidRequestError: a batch isn't right, or holds other offsets.
    """
    view = memoryview(data)
    rows: list[Kept] = []
    at, expected = 0, 0
    while at < len(view):
        base, length, end, newest, crc = _checked(view, at, expected, lost, subject)
        epoch = epoch_of_offset(epochs, base)
        view[LENGTH_END + at : LENGTH_END + at + 4] = epoch.to_bytes(4, "big", signed=True)
        number = batch_sum(seed, base, epoch, crc, length)
        last = rows[-1] if rows else None
        if last is not None and last.end_offset == base:
            rows[-1] = Kept(
                last.base_offset,
                end,
                last.position,
                last.length + length,
                max(last.max_timestamp, newest),
                last.batch_count + 1,
                (last.sum + number) & SUM_MASK,
            )
        else:
            rows.append(Kept(base, end, at, length, newest, 1, number))
        at, expected = at + length, end
    if not rows:
        raise InvalidRequestError("rebuild", subject, "there is no batch")
    return rows


def _checked(
    view: memoryview, at: int, expected: int, lost: Ranges, subject: str
) -> tuple[int, int, int, int, int]:
    """Base offset, length, end offset, greatest timestamp and CRC of the batch at a position."""

    def wrong(detail: str) -> InvalidRequestError:
        return InvalidRequestError("rebuild", f"{subject}, batch at byte {at}", detail)

    if len(view) - at < HEADER_BYTES:
        raise wrong("it is cut off")
    fields = HEADER.unpack_from(view, at)
    base, length, _, magic, crc, attributes, delta, _, newest, producer, _, _, count = fields
    length += LENGTH_END
    if magic != MAGIC or not HEADER_BYTES <= length <= len(view) - at:
        raise wrong(f"magic {magic}, {length} bytes")
    if crc32c(view[at + CRC_FROM : at + length]) != crc:
        raise wrong("its CRC-32C differs")
    end = base + delta + 1
    if producer != -1 or attributes:
        raise wrong("it has a producer, a codec or another attribute")
    if base < expected or count < 1 or count != delta + 1:
        raise wrong(f"{count} records of offsets {base} to {end - 1}, {expected} is due")
    if not any(low <= base and end <= high for low, high in lost):
        raise wrong(f"offsets {base} to {end - 1} are not lost")
    try:
        records = list(decode_batch(view[at : at + length]))
    except BatchError as error:
        raise wrong(str(error)) from error
    if [record.offset_delta for record in records] != list(range(count)):
        raise wrong("its records don't have its offsets")
    if max(record.timestamp for record in records) != newest:
        raise wrong("its greatest timestamp is none of its records'")
    return base, length, end, newest, crc


def _in(filled: Ranges, low: int, high: int) -> list[tuple[int, int]]:
    return [one for one in filled if low <= one[0] < high]
