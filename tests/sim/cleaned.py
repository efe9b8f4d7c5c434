"""What may be missing from topics that are compacted by key: the truth of each record and cleaning.

The rules are Kafka's cleaner's, said once more and plainly: of each key the newest record below the
cleaned point stays, a tombstone until a cleaning that comes `delete.retention.ms` after its first;
offsets don't change; the last batch of an idempotent producer stays, if only as a header.
Source: Kafka docs, Design, "Log Compaction"; KIP-534.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any

from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.records.batch import stored_header
from penstock.records.decode import decode_batch
from penstock.state.answers import BatchStatus, RunsCommitted, RunsReplaced
from penstock.state.commands import BATCH_FIELDS, CommitRuns
from penstock.state.pipeline_commands import OUTPUT_FIELDS, ReplacedPartition, ReplaceRuns
from sim.history import Place
from sim.identity import Identity, identity_of, is_keyed

if TYPE_CHECKING:
    from sim.world import World

_EPOCH_SEQUENCE = Struct(">51xhi")


@dataclass(frozen=True, slots=True)
class Header:
    """What a cleaning never changes of a batch. Offsets [base, end)."""

    base: int
    end: int
    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Output:
    """What a compaction has put for a partition."""

    headers: list[Header] = field(default_factory=list)
    records: dict[int, bytes] = field(default_factory=dict)
    """By offset the record's name."""


def output_of(data: memoryview) -> Output:
    """The batches of a run, decoded."""
    output = Output()
    while len(data):
        header = stored_header(data, 0)
        epoch, sequence = _EPOCH_SEQUENCE.unpack_from(data)
        output.headers.append(
            Header(header.base_offset, header.end_offset, header.producer_id, epoch, sequence)
        )
        for record in decode_batch(data[: header.length]):
            output.records[header.base_offset + record.offset_delta] = identity_of(record)
        data = data[header.length :]
    return output


@dataclass(slots=True)
class KeyedPartition:
    """A partition as if nothing had ever been cleaned, and what was."""

    batches: dict[int, Header] = field(default_factory=dict)
    """By base offset."""
    records: dict[int, Identity] = field(default_factory=dict)
    batch_of: dict[int, int] = field(default_factory=dict)
    """By offset the base offset."""
    last: dict[int, Header] = field(default_factory=dict)
    """By producer id the newest batch as it was produced: it may have been merged since."""
    gone: set[int] = field(default_factory=set)
    """Offsets whose records a cleaning has taken."""
    horizons: dict[int, int] = field(default_factory=dict)
    """By base offset: when the tombstones of a batch may go."""


class Cleaned:
    """Follows the entries that were applied."""

    def __init__(self, world: World, connection: sqlite3.Connection) -> None:
        self._world = world
        self._connection = connection
        self._partitions: dict[Place, KeyedPartition] = defaultdict(KeyedPartition)
        self._commits: set[tuple[int, int]] = set()

    def inherit(self, parent: Cleaned) -> None:
        """Know what is known of the cluster that this one was restored from, as of the moment."""
        self._partitions = parent._partitions

    # -- following the journal -------------------------------------------------------------------

    def applied(self, command: Any, answer: Any) -> None:
        """A command that was not refused."""
        if isinstance(command, CommitRuns) and isinstance(answer, RunsCommitted):
            for run, row in zip(command.runs, answer.runs, strict=True):
                place = self._place(run.partition_key)
                if place is not None:
                    self._stored(place, run.batches, row)
        elif isinstance(command, ReplaceRuns) and isinstance(answer, RunsReplaced):
            if (command.job, command.n) in self._commits:
                return  # it came again
            self._commits.add((command.job, command.n))
            for listed, code in zip(command.partitions, answer.codes, strict=True):
                place = self._place(listed.partition_key)
                if code or place is None:
                    continue
                if listed.merged:
                    self._merged(place, listed, command)
                elif listed.clean_end >= 0:
                    self._replaced(place, listed, command)

    def _place(self, key: int) -> Place | None:
        """None: nothing is compacted there."""
        topic_key = topic_key_of(PartitionKey(key))
        row = self._connection.execute(
            "SELECT name FROM topics WHERE topic_key = ?", (topic_key,)
        ).fetchone()
        place = (row[0] if row else "", partition_of(PartitionKey(key)))
        return place if is_keyed(place) else None

    def _stored(self, place: Place, batches: list[int], row: list[int]) -> None:
        partition = self._partitions[place]
        fields = zip(*[iter(batches)] * BATCH_FIELDS, strict=True)
        pairs = zip(*[iter(row)] * 2, strict=True)
        for (_, count, _, producer_id, epoch, sequence), (status, base) in zip(
            fields, pairs, strict=True
        ):
            if status != BatchStatus.STORED:
                continue
            names = self._world.keyed_sent[place, producer_id, epoch, sequence]
            assert len(names) == count, (place, names, count)
            header = Header(base, base + count, producer_id, epoch, sequence)
            partition.batches[base] = partition.last[producer_id] = header
            for at, name in enumerate(names):
                partition.records[base + at] = Identity.parse(name)
                partition.batch_of[base + at] = base

    def _replaced(self, place: Place, listed: ReplacedPartition, command: ReplaceRuns) -> None:
        partition = self._partitions[place]
        # What was known of the partition when the runs were listed may be older than they are: then
        # runs are cleaned once more, perhaps without those up to where it is clean by now.
        within = range(self._log_start(listed.partition_key), listed.clean_end)
        log_start = within.start
        before = len(partition.gone)
        kept = self._clean(partition, within, command)
        self._world.history.counts["cleaned away"] += len(partition.gone) - before
        found = self._found(listed, command)
        if found is None:
            return
        headers, records = found.headers, found.records
        where = f"{place} cleaned up to {listed.clean_end}"
        violate = self._world.history.violate
        for offset, name in records.items():
            if offset < log_start:
                continue
            known = partition.records.get(offset)
            if known is None or known.name != name:
                violate("clean-changed", f"{where}: {name!r} at {offset}, where {known} was")
            if offset not in kept:
                violate("clean-left", f"{where}: {known} at {offset} is still there")
        for offset in kept:
            if offset not in records:
                violate(
                    "clean-lost", f"{where}: {partition.records[offset]} at {offset} is missing"
                )
        for header in headers:
            if partition.batches.get(header.base) != header:
                violate("clean-changed", f"{where}: {header}")
        for header in self._last_of_producers(partition):
            if log_start < header.end <= listed.clean_end and header not in headers:
                violate("clean-producer", f"{where}: the last batch of a producer: {header}")
        self._world.history.count("cleaned")

    def _merged(self, place: Place, listed: ReplacedPartition, command: ReplaceRuns) -> None:
        """Batches became fewer and larger ones, with the same records at the same offsets."""
        found = self._found(listed, command)
        if found is None:
            return
        partition = self._partitions[place]
        headers, records = found.headers, found.records
        log_start = self._log_start(listed.partition_key)
        where = f"{place} merged"
        violate = self._world.history.violate
        for header in headers:
            if partition.batches.get(header.base) == header:
                continue
            within = [base for base in partition.batches if header.base <= base < header.end]
            horizons = self._horizons(partition, header)
            if header.producer_id >= 0 or len(horizons) > 1:
                violate("merge-changed", f"{where}: {header}, delete horizons {horizons}")
            for base in within:
                del partition.batches[base]
                partition.horizons.pop(base, None)
            partition.batches[header.base] = header
            partition.horizons.update((header.base, at_ms) for at_ms in horizons)
            for offset in range(header.base, header.end):
                if offset in partition.batch_of:
                    partition.batch_of[offset] = header.base
            for offset in range(max(header.base, log_start), header.end):
                known = partition.records.get(offset)
                is_there = known is not None and offset not in partition.gone
                if records.get(offset) != (known.name if known and is_there else None):
                    violate(
                        "merge-changed", f"{where}: {records.get(offset)!r} at {offset}: {known}"
                    )

    def _horizons(self, partition: KeyedPartition, merged: Header) -> set[int]:
        """Return the delete horizons of the batches that a merged one is made of: an empty batch
        is none of them, since a cleaning has left it out."""
        left = {
            partition.batch_of[offset]
            for offset in range(merged.base, merged.end)
            if offset in partition.batch_of and offset not in partition.gone
        }
        return {partition.horizons[base] for base in left if base in partition.horizons}

    def _clean(self, partition: KeyedPartition, offsets: range, command: ReplaceRuns) -> set[int]:
        """Clean the truth at some offsets; those of them that are still there."""
        now_ms = max(self._world.cleaning_ms[new.key] for new in command.objects)
        within = [
            (offset, identity)
            for offset, identity in sorted(partition.records.items())
            if offset in offsets
        ]
        newest = {identity.key: offset for offset, identity in within}
        kept: set[int] = set()
        begun: set[int] = set()
        for offset, identity in within:
            base = partition.batch_of[offset]
            if newest[identity.key] != offset:
                partition.gone.add(offset)
            elif identity.is_tombstone and partition.horizons.get(base, now_ms + 1) <= now_ms:
                partition.gone.add(offset)
                self._world.history.counts["tombstones cleaned away"] += 1
            else:
                kept.add(offset)
                if identity.is_tombstone:
                    begun.add(base)
        for base in begun:
            partition.horizons.setdefault(base, now_ms + self._world.keyed_retention_ms)
        return kept - partition.gone

    def _found(self, listed: ReplacedPartition, command: ReplaceRuns) -> Output | None:
        """What lies in the outputs; None: they are deleted, and were never looked at."""
        found = Output()
        rows = zip(*[iter(listed.outputs)] * OUTPUT_FIELDS, strict=True)
        for _, _, index, position, length, _, _ in rows:
            key = command.objects[index].key
            output = self._world.outputs_found.get((key, position))
            if output is None:
                # What was put: bits that have changed since are no fault of the cleaning.
                stored = self._world.rot.undamaged(key)
                if stored is None:
                    return None
                output = output_of(memoryview(stored)[position : position + length])
                self._world.outputs_found[key, position] = output
            found.headers.extend(output.headers)
            found.records.update(output.records)
        return found

    def _last_of_producers(self, partition: KeyedPartition) -> list[Header]:
        last = partition.last.values()
        return [header for header in last if partition.batches.get(header.base) == header]

    def _log_start(self, key: int) -> int:
        (found,) = self._connection.execute(
            "SELECT log_start FROM partitions WHERE partition_key = ?", (key,)
        ).fetchone()
        return int(found)

    # -- what readers ask ------------------------------------------------------------------------

    def missing(self, place: Place, start: int, end: int, seen: set[int]) -> list[int]:
        """Offsets [start, end) whose records a reader should have been given."""
        partition = self._partitions[place]
        return [
            offset
            for offset in range(start, end)
            if offset in partition.records and offset not in seen and offset not in partition.gone
        ]

    def is_gone(self, place: Place, offset: int) -> bool:
        """Whether a cleaning has taken a record."""
        return offset in self._partitions[place].gone

    def known(self, place: Place, offset: int) -> bytes:
        """What lies at an offset, or lay there."""
        found = self._partitions[place].records.get(offset)
        return b"" if found is None else found.name

    def come_back(self, place: Place, seen: dict[int, bytes]) -> list[str]:
        """Records of a whole partition that a reader was given, though a newer one of their key
        was cleaned away: a deleted key that has a value again."""
        partition = self._partitions[place]
        newest: dict[bytes, int] = {}
        for offset, identity in sorted(partition.records.items()):
            newest[identity.key] = offset
        found = []
        for offset, name in sorted(seen.items()):
            last = newest[Identity.parse(name).key]
            if last not in seen and last in partition.gone:
                found.append(f"{name!r} at {offset}, and not {partition.records[last]} at {last}")
        return found
