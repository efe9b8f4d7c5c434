"""Settings of the log, in units that its code uses. The face and the app translate into these."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes in bytes, times in milliseconds unless the name says seconds."""

    frame_bytes_max: int = 16 * MIB
    """A WAL frame holds what waits, up to this; more waits for the next."""

    waiting_bytes_max: int = 256 * MIB
    """Bytes of appends that wait for the lane; more are refused retriably. Connections bound what
    they wait for, but not what was left behind by those that are gone."""

    append_wait_ms_max: int = 10_000
    """How long an append waits for a full WAL before it is refused retriably."""

    durability: str = "wal"
    """The durability of topics that leave it to the agent: `wal` or `object`."""
    flush_bytes: int = 8 * MIB
    """Durability `object`: a flush begins when so many bytes wait, or after `flush_interval_ms`."""
    flush_interval_ms: int = 250
    flush_puts_max: int = 8
    """Objects that are being put at once."""
    flushes_open_max: int = 64
    """Flushes whose order isn't known yet; past it appends wait. Their bytes are counted in
    `waiting_bytes_max` in any case."""

    tail_cache_bytes: int = 64 * MIB
    block_cache_bytes: int = 64 * MIB
    block_bytes: int = 4 * MIB
    prefetch_blocks: int = 1
    check_again_after_ms: int = 3_600_000
    """A place whose bytes were checked is checked again after this long, in ms."""

    scrub_bytes_per_s: int = 8 * MIB
    """The bytes that the scrubber reads per second; 0 turns it off."""
    scrub_bucket: bool = False
    """Whether the scrubber reads objects that aren't local files."""

    segment_bytes: int = 32 * MIB
    segment_age_ms: int = 10_000

    retention_check_ms: int = 300_000
    delete_grace_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    transactional_id_expiration_ms: int = 7 * 86_400_000
    """A transactional id is forgotten after it has had no transaction for this long, in ms."""
    producer_id_block: int = 1000
    writer_expiration_ms: int = 30 * 86_400_000
    """The last batch of a pipeline's writer is forgotten after the writer has been silent for this
    long, in ms; a table's dead-letter writer is never forgotten (`TABLE_WRITER_PREFIX` of
    `penstock.model.table_names`)."""
    once_writer_expiration_ms: int = 86_400_000
    """The same of a writer whose id was made for one write (`ONCE_PREFIX` of
    `penstock.log.retention.keeper`)."""

    snapshot_interval_ms: int = 600_000
    snapshot_entries: int = 100_000
    """A snapshot is due when either has passed since the last."""
    state_check_interval_ms: int = 86_400_000
    """0: never."""
    state_check_entries: int = 1_000_000
    """A snapshot is compared with the journal when either has passed since the last that was."""
