"""Joinable sums of stored batches: they prove that bytes are those that the journal ordered. Pure.

A batch's CRC-32C proves that its bytes are some batch's. It doesn't say which: base offset and
leader epoch lie outside the CRC, and a batch names neither cluster nor topic nor partition. So
the state keeps a sum per run, of one number per batch:

    multiplicand = (partition seed + leader epoch * EPOCH_STEP) mod 2^64 + base offset
    multiplier   = (CRC-32C << 32 | length in bytes) ^ MULTIPLIER
    product      = multiplicand * multiplier                      (of any length)
    batch sum    = (product ^ product >> 64) & SUM_MASK

and a run's sum is the sum of its batches' modulo 2^63. Sums of adjacent runs are added when the
runs are joined. A base offset here is the final one and the leader epoch the one that the batch
was appended in, so the sum is the same for a WAL frame or raw segment, whose headers hold what
producers sent, and for a segment whose headers are final.

The batch sum is the folded multiply of wyhash (https://github.com/wangyi-fudan/wyhash): one
multiplication whose halves are combined, so that each bit depends on all of both factors. It is
a third of what a full mix64 costs in Python. 63 bits, so that a sum is a positive INTEGER of
SQLite. Like a CRC, a sum does not protect from an attacker who can choose the bytes.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct, pack, unpack
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError

CRC_BYTES: Final = 4
_CRC_AT: Final = 17
SUM_MASK: Final = (1 << 63) - 1
SUM_SHIFT: Final = 64
MULTIPLIER: Final = 0xBF58476D1CE4E5B9
EPOCH_STEP: Final = 0xD1B54A32D192ED03
_PARTITION_STEP: Final = 0x9E3779B97F4A7C15
"""2^64 / the golden ratio: the seeds of any two of a topic's 2^20 partitions are more than 2^42
apart, which is further than offsets reach."""
_MASK: Final = (1 << 64) - 1
_HEADER: Final = Struct(">qiibIhi")
_HEADER_BYTES: Final = 61
_LENGTH_END: Final = 12


@lru_cache(maxsize=4096)
def topic_seed(topic_id: bytes) -> int:
    """64 bits of a topic's UUID, each of which depends on all of the UUID's."""
    high, low = int.from_bytes(topic_id[:8], "big"), int.from_bytes(topic_id[8:], "big")
    return _mix64(_mix64(high) + low)


@lru_cache(maxsize=16_384)
def partition_seed(topic_id: bytes, partition: int) -> int:
    """Return where the sums of a partition's batches start from."""
    return seed_within(topic_seed(topic_id), partition)


def seed_within(seed: int, partition: int) -> int:
    """`partition_seed` by the topic's seed, also by the topic's for batches of one leader epoch."""
    return (seed + partition * _PARTITION_STEP) & _MASK


def epoch_seed(seed: int, leader_epoch: int) -> int:
    """A partition's seed for batches of one leader epoch."""
    return (seed + leader_epoch * EPOCH_STEP) & _MASK


def batch_sum(seed: int, base_offset: int, leader_epoch: int, crc: int, length: int) -> int:
    """The number of one batch that is added to its run's sum.

    The slow twin of the loops that have this formula inline: `run_sum`, `place_batches`
    (`penstock.state.apply.records`), `committed_runs`, `check_batches`, `RunDescriber`, and the
    kernel `settle`.

    Args:
        seed: of the partition.
        base_offset: the final one.
        leader_epoch: that the batch was appended in.
        crc: as in the batch's header.
        length: of the whole batch in bytes.
    """
    start = epoch_seed(seed, leader_epoch)
    product = (start + base_offset) * ((crc << 32 | length) ^ MULTIPLIER)
    return (product ^ product >> SUM_SHIFT) & SUM_MASK


def crcs_of(batches: Iterable[Buffer]) -> bytes:
    """The CRCs of whole batches, as commands carry them."""
    return b"".join(memoryview(batch)[_CRC_AT : _CRC_AT + CRC_BYTES] for batch in batches)


def pack_crcs(crcs: Sequence[int]) -> bytes:
    """The CRCs of batches as commands carry them: 4 bytes each, big-endian."""
    return pack(f">{len(crcs)}I", *crcs)


def unpack_crcs(crcs: bytes) -> tuple[int, ...]:
    """See `pack_crcs`."""
    return unpack(f">{len(crcs) // CRC_BYTES}I", crcs)


def join_sums(first: int | None, second: int | None) -> int | None:
    """The sum of two adjacent runs as one. None: of one of them it isn't known."""
    return None if first is None or second is None else (first + second) & SUM_MASK


def run_sum(
    view: memoryview,
    seed: int,
    *,
    base_offset: int | None = None,
    leader_epoch: int = -1,
    subject: str = "run",
) -> int:
    """Fold whole adjacent batches, by their headers alone: their CRCs are not computed here.

    Args:
        seed: of the partition that they should be of.
        base_offset: where the batches' headers are not final (WAL, raw objects), that of the
            first one. None: the headers are final.
        leader_epoch: only with `base_offset`: that the batches were appended in.
        subject: what to name in an error.

    Raises:
        CorruptDataError: the bytes are not whole batches.
    """
    unpack_from = _HEADER.unpack_from
    position, end, total = 0, len(view), 0
    if base_offset is None:
        seed_epoch, start = 0, seed
        while position < end:
            if end - position < _HEADER_BYTES:
                raise _damaged(subject, position, f"{end - position} bytes")
            offset, length, epoch, _, crc, _, _ = unpack_from(view, position)
            length += _LENGTH_END
            if not _HEADER_BYTES <= length <= end - position:
                raise _damaged(subject, position, f"batch of {length} bytes")
            if epoch != seed_epoch:  # of few runs more than once
                seed_epoch, start = epoch, epoch_seed(seed, epoch)
            product = (start + offset) * ((crc << 32 | length) ^ MULTIPLIER)
            total += product ^ product >> SUM_SHIFT
            position += length
        return total & SUM_MASK
    start = epoch_seed(seed, leader_epoch) + base_offset
    while position < end:
        if end - position < _HEADER_BYTES:
            raise _damaged(subject, position, f"{end - position} bytes")
        _, length, _, _, crc, _, last_offset_delta = unpack_from(view, position)
        length += _LENGTH_END
        if not _HEADER_BYTES <= length <= end - position:
            raise _damaged(subject, position, f"batch of {length} bytes")
        product = start * ((crc << 32 | length) ^ MULTIPLIER)
        total += product ^ product >> SUM_SHIFT
        start += last_offset_delta + 1
        position += length
    return total & SUM_MASK


def _mix64(value: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + _PARTITION_STEP) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _damaged(subject: str, position: int, detail: str) -> CorruptDataError:
    return CorruptDataError("read run", subject, f"{detail} at byte {position} of the run")
