"""Bring the view and the log's caches up to what was applied, and wake the readers of it."""

from collections.abc import Callable, Iterable, Sequence

from penstock.log.damage.care import DamageCare
from penstock.log.producer_ids import ProducerIds
from penstock.log.reads import Reads
from penstock.model.ids import PartitionKey, topic_key_of
from penstock.state.changes import (
    Change,
    HeadMoved,
    HistoryChanged,
    MarkersWritten,
    OffsetsSettled,
    RunsMoved,
    TopicDeleted,
)
from penstock.state.order_types import AppliedEntries
from penstock.state.read.view import StateView
from penstock.state.transactions import Marker


class Following:
    """Follows applied entries. Event loop only."""

    def __init__(
        self, *, view: StateView, reads: Reads, care: DamageCare, producer_ids: ProducerIds
    ) -> None:
        self._view = view
        self._reads = reads
        self._care = care
        self._producer_ids = producer_ids
        self.on_offsets_settled: Callable[[Sequence[str] | None], None] = lambda _: None
        """Called with the groups whose offsets transactions have changed; None: of any group."""

    def on_applied(self, applied: AppliedEntries) -> None:
        """Move the view, and let the caches forget what has changed under them."""
        for entry in applied:
            changes = entry.outcome.changes
            self._view.apply(changes)
            self._follow(changes)

    def on_answered(self, applied: AppliedEntries) -> None:
        """Wake what waits for applied entries. Callers with answers have run by now, so that 500
        readers don't come before the producer of what they read."""
        moved: list[PartitionKey] = []
        waiters = self._reads.waiters
        for entry in applied:
            for change in entry.outcome.changes:
                if isinstance(change, HeadMoved):
                    moved.append(change.partition_key)
                elif isinstance(change, TopicDeleted):
                    moved += waiters.of_topic(change.topic_key)
        if moved:
            waiters.notify(moved)

    def begin_again(self) -> None:
        """Begin again after entries were missed and the view was read once more: forget where runs
        lie and what was in them, which may have been cleaned since, and let all who wait look."""
        reads = self._reads
        reads.reader.forget_all_places()
        self._care.ranges_noted()
        for key in list(reads.tail.partitions()):
            reads.tail.forget(key)
        reads.waiters.notify_all()
        self.on_offsets_settled(None)

    def _follow(self, changes: Iterable[Change]) -> None:
        reads = self._reads
        for change in changes:
            if isinstance(change, RunsMoved):
                reads.reader.forget_places(change.partition_key)
                if change.repaired:
                    # Another agent may have repaired it: nothing there is damaged any more.
                    self._care.repaired(change)
                if change.cleaned:
                    # What compaction has removed must not come out of memory either.
                    reads.tail.forget_before(change.partition_key, change.end)
            elif isinstance(change, MarkersWritten):
                self._keep_markers(change)
            elif isinstance(change, TopicDeleted):
                self._forget_topic(change)
            elif isinstance(change, OffsetsSettled):
                self.on_offsets_settled(change.groups)
            elif isinstance(change, HistoryChanged):
                # The lost rows may have given out the same block of ids.
                self._producer_ids.forget()

    def _keep_markers(self, written: MarkersWritten) -> None:
        """Keep markers in memory where they follow what is there, which would begin again with the
        batch after them."""
        tail = self._reads.tail
        marker = Marker(
            written.producer_id, written.producer_epoch, written.commits, written.time_ms
        )
        epoch = self._view.leader_epoch
        for key, offset in written.places:
            if tail.end_offset(key) == offset:
                batch = marker.batch(base_offset=offset, leader_epoch=epoch)
                tail.add(key, offset, offset + 1, memoryview(batch))

    def _forget_topic(self, change: TopicDeleted) -> None:
        reads = self._reads
        gone = [key for key in reads.tail.partitions() if topic_key_of(key) == change.topic_key]
        for key in gone:
            reads.tail.forget(key)
            reads.reader.forget_places(key)
