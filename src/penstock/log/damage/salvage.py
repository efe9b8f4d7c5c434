"""Batches of a damaged run that are right can be kept where they lie. Pure.

The headers of a run's batches lead from one to the next. Where they do so from the run's first to
its last byte, with as many batches and offsets as the journal names, the headers' lengths and
offsets are taken for right, and each batch is judged by itself: only those whose bytes differ are
lost. Where the headers lead elsewhere, all from there on is lost, since nothing says where the next
batch begins.

That the batches are the run's, and not those of another object under its key, is proven by the sum
that the headers have, or by the index of the same version of the object. Where neither does,
nothing is kept.

A base offset lies outside the batch's CRC, and a gap that compaction left looks like one that a
flipped bit of a base offset made. So a batch after a gap is kept only where the headers have the
run's sum, or no sum is known.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.checking import EpochStarts
from penstock.records.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_END, MAGIC
from penstock.records.sums import SUM_MASK, batch_sum
from penstock.state.leader_epochs import epoch_of_offset
from penstock.state.rows import StoredRun


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
    is_after_gap: bool
    due_epoch: int
    found_crc: int


def salvage(
    data: memoryview,
    run: StoredRun,
    seed: int | None,
    epochs: EpochStarts,
    *,
    is_named: bool,
    gap_end: int = 0,
) -> list[Kept]:
    """Return what is right of a run's bytes; nothing where the batches aren't the run's.

    Args:
        data: all of the run as stored; empty where its object is missing.
        seed: of the partition's sums; None: the run's sum isn't compared, and none is given.
        epochs: of the partition; empty: not known, and labels are not looked at.
        is_named: the index of the object that the bytes are of names the run, or they lie in a WAL.
        gap_end: compaction by key may have left gaps before batches that end at or before this
            offset; 0: nowhere.
    """
    is_whole, has_sum = _headers_lead(data, run, seed, epochs, gap_end)
    if is_whole and has_sum is None:
        return []  # each is a batch that some producer sent; which are others' is unknown
    has_proof = is_named or (is_whole and has_sum) or seed is None or run.sum is None
    if not has_proof:
        return []
    kept: list[Kept] = []
    for batch in _walk(data, run, epochs, gap_end):
        if not batch.is_right:
            if is_whole:
                continue
            break
        if batch.is_after_gap and not has_sum:
            continue
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


def _headers_lead(
    data: memoryview, run: StoredRun, seed: int | None, epochs: EpochStarts, gap_end: int
) -> tuple[bool, bool | None]:
    """Return whether the headers lead through all of the run, and whether they have its sum.

    They have it as they are, or with the CRCs and labels that are due, so that a flipped bit of
    those costs its own batch alone; or no sum is known. None: they don't, and nothing else is wrong
    with any batch.
    """
    found_sum = due_sum = at = count = 0
    expected, is_all_right = run.base_offset, True
    for batch in _walk(data, run, epochs, gap_end):
        at, expected = batch.position + batch.length, batch.end_offset
        count += 1
        is_all_right = is_all_right and batch.is_right
        if seed is not None:
            found_sum += _sum(seed, batch)
            due_sum += _sum(seed, batch._replace(crc=batch.found_crc, leader_epoch=batch.due_epoch))
    is_whole = (
        at == len(data) == run.length and expected == run.end_offset and count == run.batch_count
    )
    if seed is None or run.sum is None:
        return is_whole, True
    if is_whole and run.sum in (found_sum & SUM_MASK, due_sum & SUM_MASK):
        return is_whole, True
    return is_whole, None if is_all_right else False


def _walk(data: memoryview, run: StoredRun, epochs: EpochStarts, gap_end: int) -> Iterator[_Batch]:
    """The batches that the headers lead to. No list: a run may have ten million."""
    is_raw = bool(run.generation or run.raw)
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
            or (base > expected and following > gap_end)
            or following <= base
            or following > run.end_offset
        ):
            break
        found_crc = crc32c(data[at + CRC_FROM : at + length])
        due_epoch = epoch if is_raw or not epochs else epoch_of_offset(epochs, base)
        yield _Batch(
            position=at,
            length=length,
            base_offset=base,
            end_offset=following,
            leader_epoch=epoch,
            max_timestamp=newest,
            crc=crc,
            is_right=magic == MAGIC
            and 0 <= count <= delta + 1
            and (found_crc, due_epoch) == (crc, epoch),
            is_after_gap=base != expected,
            due_epoch=due_epoch,
            found_crc=found_crc,
        )
        at, expected = at + length, following
