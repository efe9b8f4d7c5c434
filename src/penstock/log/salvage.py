"""What can be kept of a damaged run: the batches that are right, where they lie. Pure.

The headers of a run's batches lead from one to the next. Where they do so from the run's first to
its last byte, with as many batches and offsets as the journal names, the headers' lengths and
offsets are taken for right, and each batch is judged by itself: only those whose bytes differ are
lost. Where the headers lead elsewhere, all from there on is lost, since nothing says where the next
batch begins.
"""

from typing import NamedTuple

from crc32c import crc32c

from penstock.log.checking import EpochStarts
from penstock.metadata.leader_epochs import epoch_of_offset
from penstock.metadata.rows import StoredRun
from penstock.records.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_END, MAGIC
from penstock.records.sums import SUM_MASK, batch_sum


class Kept(NamedTuple):
    """Adjacent batches that are right, as `AcceptLoss.kept` lists them."""

    base_offset: int
    end_offset: int
    position: int
    length: int
    max_timestamp: int
    batch_count: int
    sum: int


class _Batch(NamedTuple):
    position: int
    length: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    max_timestamp: int
    crc: int
    is_right: bool


def salvage(data: memoryview, run: StoredRun, seed: int | None, epochs: EpochStarts) -> list[Kept]:
    """What is right of a run's bytes; nothing where the batches aren't the run's.

    Args:
        data: all of the run as stored; empty where its object is missing.
        seed: of the partition's sums; None: the run's sum isn't compared, and none is given.
        epochs: of the partition; empty: not known, and labels are not looked at.
    """
    batches, is_whole = _walk(data, run, epochs)
    if is_whole and seed is not None and run.sum is not None:
        total = sum(_sum(seed, batch) for batch in batches) & SUM_MASK
        if total != run.sum and all(batch.is_right for batch in batches):
            return []  # each is a batch that some producer sent; which are others' is unknown
    kept: list[Kept] = []
    for batch in batches:
        if not batch.is_right:
            if is_whole:
                continue
            break
        position = run.position + batch.position
        number = -1 if seed is None else _sum(seed, batch)
        last = kept[-1] if kept else None
        if last is not None and last.position + last.length == position:
            kept[-1] = Kept(
                last.base_offset,
                batch.end_offset,
                last.position,
                last.length + batch.length,
                max(last.max_timestamp, batch.max_timestamp),
                last.batch_count + 1,
                -1 if seed is None else (last.sum + number) & SUM_MASK,
            )
        else:
            kept.append(
                Kept(
                    batch.base_offset,
                    batch.end_offset,
                    position,
                    batch.length,
                    batch.max_timestamp,
                    1,
                    number,
                )
            )
    return kept


def _sum(seed: int, batch: _Batch) -> int:
    return batch_sum(seed, batch.base_offset, batch.leader_epoch, batch.crc, batch.length)


def _walk(data: memoryview, run: StoredRun, epochs: EpochStarts) -> tuple[list[_Batch], bool]:
    """The batches that the headers lead to, and whether they lead through all of the run."""
    is_raw = bool(run.generation or run.raw)
    batches: list[_Batch] = []
    at, end, expected = 0, len(data), run.base_offset
    while end - at >= HEADER_BYTES:
        base, length, epoch, magic, crc, _, delta, _, newest, _, _, _, count = HEADER.unpack_from(
            data, at
        )
        length += LENGTH_END
        if is_raw:
            base, epoch = expected, run.leader_epoch
        following = base + delta + 1
        if (
            not HEADER_BYTES <= length <= end - at
            or base < expected
            or following <= base
            or following > run.end_offset
        ):
            break
        is_right = (
            magic == MAGIC
            and 0 <= count <= delta + 1
            and crc32c(data[at + CRC_FROM : at + length]) == crc
            and (is_raw or not epochs or epoch == epoch_of_offset(epochs, base))
        )
        batches.append(_Batch(at, length, base, following, epoch, newest, crc, is_right))
        at, expected = at + length, following
    is_whole = (
        at == end == run.length
        and expected == run.end_offset
        and len(batches) == run.batch_count
        and (not is_raw or batches[0].base_offset == run.base_offset)
    )
    return batches, is_whole
