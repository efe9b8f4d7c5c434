"""What Kafka's log cleaner does to a partition, said slowly and plainly.

Written from Kafka's documentation (Design, "Log Compaction"; the topic configs) and from KIP-58
(min.compaction.lag.ms), KIP-354 (max.compaction.lag.ms), KIP-98 (producers) and KIP-534 (delete
horizons). Lists and dicts, no bytes: a log is segments of batches of records. The last segment may
be active, which is never cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class ModelRecord:
    """A record, in milliseconds; `value` None: a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class ModelBatch:
    """Offsets [base_offset, last_offset], of which some may have no record any more."""

    base_offset: int
    last_offset: int
    records: tuple[ModelRecord, ...]
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    delete_horizon_ms: int | None = None


@dataclass
class ModelSegment:
    """Batches in offset order; `size_bytes` is what they take, for the dirty ratio alone."""

    batches: list[ModelBatch]
    size_bytes: int
    largest_timestamp: int

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1


@dataclass(frozen=True)
class ModelConfig:
    """Topic configs, by Kafka's names."""

    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 86_400_000


@dataclass
class ModelLog:
    """One partition. `clean_end`: the cleaner's checkpoint, which a restart reads again."""

    segments: list[ModelSegment] = field(default_factory=list)
    log_start: int = 0
    clean_end: int = -1

    def records(self) -> list[ModelRecord]:
        """What a consumer that begins at the log's start reads."""
        return [
            record
            for segment in self.segments
            for batch in segment.batches
            for record in batch.records
            if record.offset >= self.log_start
        ]

    def batches(self) -> list[ModelBatch]:
        """All that can still be read of."""
        return [
            batch
            for segment in self.segments
            for batch in segment.batches
            if batch.last_offset >= self.log_start
        ]

    def first_dirty(self) -> int:
        """A checkpoint before the log's start counts for nothing."""
        return max(self.clean_end, self.log_start)


def cleanable_segments(
    log: ModelLog, config: ModelConfig, *, now_ms: int, active_from: int
) -> tuple[list[ModelSegment], list[ModelSegment]]:
    """(clean, to be cleaned): the segments below the first dirty offset, and those from there up
    to the active one or the first dirty one that holds too young a record."""
    first_dirty = log.first_dirty()
    clean = [segment for segment in log.segments if segment.end_offset <= first_dirty]
    dirty: list[ModelSegment] = []
    for segment in log.segments:
        if segment.end_offset <= first_dirty:
            continue
        if segment.base_offset >= active_from:
            break
        lag_ms = config.min_compaction_lag_ms
        if lag_ms > 0 and segment.largest_timestamp > now_ms - lag_ms:
            break
        dirty.append(segment)
    return clean, dirty


def should_clean(
    clean: list[ModelSegment], dirty: list[ModelSegment], config: ModelConfig, *, now_ms: int
) -> bool:
    """Whether a round would choose this log: enough of it is dirty, or a part of that too old."""
    if not dirty:
        return False
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    all_bytes = dirty_bytes + sum(segment.size_bytes for segment in clean)
    if dirty_bytes / all_bytes > config.min_cleanable_dirty_ratio:
        return True
    stamps = [segment.largest_timestamp for segment in dirty if segment.largest_timestamp >= 0]
    return bool(stamps) and min(stamps) < now_ms - config.max_compaction_lag_ms


def clean(
    log: ModelLog,
    config: ModelConfig,
    *,
    now_ms: int,
    active_from: int,
    producers: dict[int, int],
) -> bool:
    """One round on this log; false: it wasn't chosen.

    Args:
        active_from: base offset of the active segment.
        producers: of each active producer the last offset that it wrote.
    """
    below, dirty = cleanable_segments(log, config, now_ms=now_ms, active_from=active_from)
    if not should_clean(below, dirty, config, now_ms=now_ms):
        return False
    # 1. The offset map: of each key in the dirty section its last offset.
    latest: dict[bytes, int] = {}
    for segment in dirty:
        for batch in segment.batches:
            for record in batch.records:
                if record.key is not None:
                    latest[record.key] = record.offset
    end_offset = dirty[-1].end_offset
    # 2. Everything from the beginning up to there is copied without what the map supersedes.
    cleaned: list[ModelBatch] = []
    for segment in below + dirty:
        for batch in segment.batches:
            kept = _clean_batch(batch, latest, config, now_ms)
            # What tells a producer's last sequence stays, and what tells where the log ends.
            is_last_of_producer = producers.get(batch.producer_id) == batch.last_offset
            if kept.records or is_last_of_producer or batch.last_offset + 1 == end_offset:
                cleaned.append(kept)
    rest = log.segments[len(below) + len(dirty) :]
    size_bytes = sum(segment.size_bytes for segment in below + dirty)
    newest = max(segment.largest_timestamp for segment in below + dirty)
    log.segments = [ModelSegment(cleaned, size_bytes, newest), *rest]
    log.clean_end = end_offset
    return True


def _clean_batch(
    batch: ModelBatch, latest: dict[bytes, int], config: ModelConfig, now_ms: int
) -> ModelBatch:
    horizon = batch.delete_horizon_ms
    kept = []
    for record in batch.records:
        if record.key is None:
            continue  # no record without a key belongs into a compacted topic
        if record.offset < latest.get(record.key, -1):
            continue
        if record.value is None and horizon is not None and now_ms >= horizon:
            continue
        kept.append(record)
    if horizon is None and any(record.value is None for record in kept):
        # The first cleaning that leaves a tombstone in place starts its clock.
        horizon = now_ms + config.delete_retention_ms
    return replace(batch, records=tuple(kept), delete_horizon_ms=horizon if kept else None)
