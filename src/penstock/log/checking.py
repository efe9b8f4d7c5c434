"""Checking stored batches before they are served or moved. Pure.

What a batch's CRC-32C leaves out is checked by what the journal says of the run: base offsets
follow one another from the run's first to its last offset (only compaction by key leaves gaps),
and each batch is labelled with the leader epoch of its offset. The magic byte and the length have
one right value each. That the batches are those of this partition and these offsets is proven by
the sum that the state keeps of a run (`penstock.records.sums`), once all of the run was checked.

`check_batches` looks at batches whose headers are final, piece by piece. `check_and_label` looks
at a whole run as producers sent it (WAL, raw objects) and writes the final headers into it.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    batch_bounds,
)
from penstock.records.sums import MULTIPLIER, SUM_MASK, SUM_SHIFT, epoch_seed, run_sum
from penstock.state.leader_epochs import EpochStart, epoch_of_offset
from penstock.state.rows import StoredRun

_NEVER: Final = 1 << 63
_BASE_OFFSET: Final = Struct(">q")
OTHERS: Final = "the batches are not those that the journal ordered: their sum differs"

EpochStarts = Sequence[EpochStart]
"""A partition's leader epochs; empty: they are not known here, and labels are not checked."""


class Fault(NamedTuple):
    """The first batch that is not as it must be.

    `position`: of its first byte, counted as the caller of the check does. `offset`: the first
    offset that can't be served, `end_offset`: the first one after it that perhaps can.
    """

    position: int
    offset: int
    end_offset: int
    detail: str


class Rules(NamedTuple):
    """These rules say what the batches of a run must be like. `gap_end`: compaction by key may have
    left gaps before batches that end at or before that offset. `seed`: of the partition's sums;
    None: no sums are folded. `begin`: the run's first offset, before whose batch there is no gap in
    any case; -1: that is not looked at."""

    end_offset: int
    gap_end: int = 0
    epochs: EpochStarts = ()
    seed: int | None = None
    begin: int = -1


class AfterGap(NamedTuple):
    """The last batch that was checked, where it began after a gap: its position, the offset that
    was due there, and its own sum.

    A base offset lies outside the CRC. One that a flipped bit has made larger looks like a gap of
    compaction, and only the next batch, whose offset is too small then, shows that there is none.
    So the batch is withdrawn then: which of the two is wrong is not known. Until the next batch's
    offset was seen, the batch doesn't count as checked, unless the run ends there.
    """

    position: int
    expected: int
    sum: int


class Checked(NamedTuple):
    """The result says how far batches are right: up to `position`, `end_offset` is one more than
    the last offset there. Without a fault, what follows is less than a whole batch. `sum`: of the
    batches, if the rules have a seed. `after_gap`: what the check of the following bytes has to be
    given; where that withdraws the batch, its position is before that of its view, and its count is
    less."""

    position: int
    end_offset: int
    batch_count: int
    fault: Fault | None
    sum: int = 0
    after_gap: AfterGap | None = None


def check_batches(
    view: memoryview,
    rules: Rules,
    expected: int,
    position: int = 0,
    after_gap: AfterGap | None = None,
) -> Checked:
    """Check whole batches, one after the other, and stop at the first fault or the last whole one.

    Args:
        view: begins with a batch's first byte.
        expected: the offset at which that batch must begin.
        position: of `view`'s first byte, for faults and the result.
        after_gap: as the check of the bytes before `view` gave it.
    """
    unpack = HEADER.unpack_from
    end_offset, gap_end, epochs, seed, begin = rules
    at, end, count = 0, len(view), 0
    label, label_end = _label(epochs, expected)
    seed_epoch, start, total = 0, seed or 0, 0
    detail = ""
    # Of the last batch after a gap: where it begins, what was due, the sum before it, and its end.
    gap = (0, 0, 0, -1)
    if after_gap is not None:
        gap = (after_gap.position - position, after_gap.expected, -after_gap.sum, 0)
    while end - at >= HEADER_BYTES:
        base, length, epoch, magic, crc, _, delta, _, _, _, _, _, records = unpack(view, at)
        length += LENGTH_END
        if length < HEADER_BYTES:
            detail = f"batch of {length} bytes"
            break
        following = at + length
        if following > end:
            break
        if magic != MAGIC or crc32c(view[at + CRC_FROM : following]) != crc:
            detail = "CRC-32C differs" if magic == MAGIC else f"magic {magic}"
            break
        next_offset = base + delta + 1
        # The CRC was right, so what differs now is what lies outside it, or the place.
        if base != expected and (base < expected or expected == begin or next_offset > gap_end):
            detail = f"batch of offset {base} where {expected} is due"
            break
        if delta < 0 or not 0 <= records <= delta + 1 or next_offset > end_offset:
            detail = f"{records} records up to offset {next_offset - 1}"
            break
        if base >= label_end:
            label, label_end = _label(epochs, base)
        if epoch != label and label >= 0:
            detail = f"leader epoch {epoch} where {label} is due"
            break
        if base != expected:
            gap = (at, expected, total, following)
        if seed is not None:
            if epoch != seed_epoch:
                seed_epoch, start = epoch, epoch_seed(seed, epoch)
            # As `penstock.records.sums.batch_sum`, without a call: a second look at each header
            # costs twice as much.
            product = (start + base) * ((crc << 32 | length) ^ MULTIPLIER)
            total += product ^ product >> SUM_SHIFT
        expected = next_offset
        count += 1
        at = following
    lone: AfterGap | None = None
    fault: Fault | None = None
    if gap[3] == at:
        if end - at < _BASE_OFFSET.size:
            lone = AfterGap(position + gap[0], gap[1], (total - gap[2]) & SUM_MASK)
        elif (following := _BASE_OFFSET.unpack_from(view, at)[0]) < expected:
            at, due, total, _ = gap
            detail = f"batch after a gap at {due} reaches into the next, of offset {following}"
            fault = Fault(position + at, due, end_offset, detail)
            return Checked(position + at, due, count - 1, fault, total & SUM_MASK)
    if detail:
        fault = Fault(position + at, expected, _resumes(view, at, rules, expected), detail)
    return Checked(position + at, expected, count, fault, total & SUM_MASK, lone)


def check_and_label(data: memoryview, run: StoredRun, seed: int | None = None) -> Fault | None:
    """Check a whole run as producers sent it, then write final base offsets and labels into it.

    Args:
        data: writable; the run's bytes. Where there is a fault, those before it are labelled.
        seed: of the partition's sums; None: the run's isn't compared.

    Returns:
        The fault; its position counts from the run's first byte. Batches before it are right: the
        sum, which is that of the headers, shows that the run is this one. Where it doesn't, for
        example of another object's bytes, the fault is at the first byte.
    """
    unpack, pack = HEADER.unpack_from, HEADER.pack_into
    at, end, offset = 0, len(data), run.base_offset
    places: list[tuple[int, int]] = []
    detail = "" if end == run.length else f"{end} bytes, the run has {run.length}"
    while at < end and not detail:
        if end - at < HEADER_BYTES:
            detail = f"{end - at} bytes hold no batch"
            break
        _, length, _, magic, crc, _, delta, _, _, _, _, _, records = unpack(data, at)
        length += LENGTH_END
        if not HEADER_BYTES <= length <= end - at:
            detail = f"batch of {length} bytes"
        elif magic != MAGIC:
            detail = f"magic {magic}"
        elif crc32c(data[at + CRC_FROM : at + length]) != crc:
            detail = "CRC-32C differs"
        elif delta < 0 or not 0 <= records <= delta + 1:
            detail = f"{records} records with last offset delta {delta}"
        else:
            places.append((at, offset))
            offset += delta + 1
            at += length
    fault = Fault(at, offset, run.end_offset, detail) if detail else None
    if fault is not None:
        if places and not _has_sum(data, run, seed):
            return Fault(0, run.base_offset, run.end_offset, f"at byte {at}: {detail}")
    else:
        # Each batch is one that some producer sent: which of them are another run's is unknown.
        if offset != run.end_offset or len(places) != run.batch_count:
            detail = (
                f"{len(places)} batches up to offset {offset - 1}, the journal names "
                f"{run.batch_count} up to {run.end_offset - 1}"
            )
        elif not _has_sum(data, run, seed):
            detail = OTHERS
        if detail:
            return Fault(0, run.base_offset, run.end_offset, detail)
    for at, offset in places:
        fields = unpack(data, at)
        pack(data, at, offset, fields[1], run.leader_epoch, *fields[3:])
    return fault


def _has_sum(data: memoryview, run: StoredRun, seed: int | None) -> bool:
    """Return whether bytes have the headers that the journal ordered, or the run has no known
    sum."""
    if seed is None or run.sum is None:
        return True
    start, epoch = run.base_offset, run.leader_epoch
    try:
        return run_sum(data, seed, base_offset=start, leader_epoch=epoch) == run.sum
    except CorruptDataError:
        return False


class Pieces:
    """Checks batches that lie in several pieces of memory, some across two of them.

    Args:
        right: is given the batches that were found right, in order. The last of them may be
            withdrawn yet (`AfterGap`), with a fault.
    """

    def __init__(
        self,
        rules: Rules,
        expected: int,
        position: int,
        right: Callable[[memoryview], None] | None = None,
    ) -> None:
        self._rules = rules
        self._right = right
        self.expected = expected
        self.position = position
        """The first byte that isn't checked."""
        self.batch_count = 0
        self.sum = 0
        self.fault: Fault | None = None
        self._after_gap: AfterGap | None = None
        self._rest: list[memoryview] = []
        self._rest_bytes = 0

    def add(self, piece: memoryview) -> None:
        """Check what is whole now. Nothing more is to be added after a fault."""
        wanted = self._wanted()
        if self._rest and self._rest_bytes + len(piece) < wanted:
            self._rest.append(piece)
            self._rest_bytes += len(piece)
            return
        if self._rest:
            # The batch that began in the pieces before, and no more: a copy of it alone.
            missing = wanted - self._rest_bytes
            joined = memoryview(b"".join([*self._rest, piece[:missing]]))
            self._rest, self._rest_bytes = [], 0
            piece = piece[missing:]
            if self._check(joined) < len(joined) and self.fault is None:
                # Its header was not whole, so that its length is known only now.
                self._keep(joined)
                self.add(piece)
                return
        if self.fault is None:
            done = self._check(piece)
            if self.fault is None:
                self._keep(piece[done:])

    def finish(self) -> Fault | None:
        """There is nothing more: what is left is not a whole batch."""
        if self.fault is None and self._rest_bytes:
            detail = f"batch cut off after {self._rest_bytes} bytes"
            end_offset = self._rules.end_offset
            self.fault = Fault(self.position, self.expected, end_offset, detail)
        return self.fault

    @property
    def is_after_gap(self) -> bool:
        """Return whether the last batch began after a gap, and the next one's offset was not seen
        yet."""
        return self._after_gap is not None

    def withdraw_after_gap(self) -> None:
        """Take back the last batch, if it began after a gap and nothing shows that it is right."""
        lone, self._after_gap = self._after_gap, None
        if lone is not None:
            self.position, self.expected = lone.position, lone.expected
            self.batch_count -= 1
            self.sum = (self.sum - lone.sum) & SUM_MASK

    def _keep(self, piece: memoryview) -> None:
        if len(piece):
            self._rest.append(piece)
            self._rest_bytes += len(piece)

    def _wanted(self) -> int:
        """Bytes of the batch that has begun, as far as is known."""
        if not self._rest:
            return 0
        if self._rest_bytes < HEADER_BYTES:
            return HEADER_BYTES
        head = self._rest[0]
        if len(head) < LENGTH_END:
            head = memoryview(b"".join(self._rest))
        return max(HEADER_BYTES, batch_bounds(head, 0)[1])

    def _check(self, piece: memoryview) -> int:
        found = check_batches(piece, self._rules, self.expected, self.position, self._after_gap)
        self._after_gap = found.after_gap
        done = found.position - self.position
        self.expected, self.position, self.fault = found.end_offset, found.position, found.fault
        self.batch_count += found.batch_count
        self.sum = (self.sum + found.sum) & SUM_MASK
        if self._right is not None and done > 0:
            self._right(piece[:done])
        return done


def check_pieces(
    pieces: list[memoryview], rules: Rules, expected: int, position: int, run: StoredRun
) -> Checked:
    """Check whole batches that lie in several pieces; the last may be cut off."""
    found = Pieces(rules, expected, position)
    for piece in pieces:
        found.add(piece)
        if found.fault is not None:
            break
    if found.fault is None:
        if found.position == run.position + run.length:
            found.fault = ends_early(run, found)
        else:
            found.withdraw_after_gap()
    return Checked(found.position, found.expected, found.batch_count, found.fault, found.sum)


def ends_early(run: StoredRun, found: Pieces) -> Fault | None:
    """The fault of a run whose batches end before the run does; None: they don't."""
    if found.expected == run.end_offset:
        return None
    found.withdraw_after_gap()
    detail = f"the batches end before offset {found.expected}, the run at {run.end_offset}"
    return Fault(found.position, found.expected, run.end_offset, detail)


def _label(epochs: EpochStarts, offset: int) -> tuple[int, int]:
    """The leader epoch of an offset, -1 where they aren't known, and up to where it counts."""
    if not epochs:
        return -1, _NEVER
    following = [start for _, start in epochs if start > offset]
    return epoch_of_offset(epochs, offset), min(following, default=_NEVER)


def _resumes(view: memoryview, at: int, rules: Rules, expected: int) -> int:
    """The offset from which on records may be right, after the damaged batch at `at`: the end of
    the run, unless its header leads to a batch that goes on from there."""
    if len(view) - at >= HEADER_BYTES:
        base, length, _, _, _, _, delta, *_ = HEADER.unpack_from(view, at)
        following: int = at + LENGTH_END + length
        next_offset: int = base + delta + 1
        if base == expected and expected < next_offset <= rules.end_offset:
            if next_offset == rules.end_offset:
                return next_offset
            if length >= 0 and len(view) - following >= HEADER_BYTES:
                fields = HEADER.unpack_from(view, following)
                if fields[0] == next_offset and fields[3] == MAGIC:
                    return next_offset
    return rules.end_offset
