"""The WAL of an agent that writes its own journal: its frames hold batches and the entries that
name them, and the commit lane writes them."""

from collections.abc import Callable, Sequence

from penstock.log.append.group_commit import AppendRequest, GroupCommit
from penstock.log.append.lane import CommitLane
from penstock.log.append.plan import PartitionAppend
from penstock.log.append.to_tail import take_batches
from penstock.log.upload.pending import RunSeeds, committed_runs
from penstock.log.wals.parts import LogParts
from penstock.log.wals.spare import SpareFile
from penstock.model.errors import RetryableError
from penstock.model.ids import TopicKey
from penstock.state.orders import LocalOrder
from penstock.wal import WalReader, WalWriter


class LaneWal:
    """Implements `penstock.log.wals.port.OwnWal`. Event loop only."""

    def __init__(
        self,
        parts: LogParts,
        *,
        lane: CommitLane,
        order: LocalOrder,
        writer: WalWriter,
        reader: WalReader,
    ) -> None:
        """
        Args:
            order: gets the entries that the lane has applied.
            writer, reader: of the WAL, which the log owns from now on; the writer is closed with
                it.
        """
        self._parts = parts
        self._order = order
        self._writer = writer
        self._seeds = RunSeeds(parts.view)
        self._spare = SpareFile(writer, parts.pool, parts.on_fatal)
        parts.readers[0] = reader
        self.lane = lane
        self.uploader = parts.uploader(0, reader, writer)

    async def start(self, *, is_default: bool) -> None:  # noqa: ARG002 - it is open in any case
        """See `OwnWal`: start the lane's thread. Never waits."""
        self.lane.start(on_applied=self._on_applied, on_answered=self._on_answered)
        self.uploader.start(self._parts.queries().wal_runs())
        self._parts.on_opened(0, self._writer.recovery.damaged)
        self._spare.prepare()

    async def drain(self, left_s: Callable[[], float]) -> bool:
        """See `OwnWal`. The next start serves what is left in it."""
        return await self.uploader.drain(left_s())

    async def close(self) -> None:
        """See `OwnWal`. The lane finishes what waits."""
        await self.uploader.close()
        await self.lane.close()
        await self._spare.close()
        self._writer.close()

    # -- append ----------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """See `AppendPath`."""
        return self.lane.waiting_bytes

    @property
    def append_bytes_max(self) -> int:
        """See `OwnWal`."""
        return self._writer.frame_bytes_max

    def submit(self, request: AppendRequest, *, wait_s: float) -> None:  # noqa: ARG002 - no company
        """See `AppendPath`."""
        self.lane.submit(request)

    def hold(self) -> None:
        """See `OwnWal`."""
        self.lane.hold()

    def settle(self, *, all_came: bool) -> None:
        """See `OwnWal`."""
        self.lane.settle(all_came=all_came)

    def refuse(self, appends: Sequence[PartitionAppend], source: int) -> None:
        """See `AppendPath`. The lane takes no such note yet."""

    def let_go(self, error: RetryableError | None) -> None:
        """See `AppendPath`. Never called: a journal of its own is never away."""

    def give_up(self, error: RetryableError) -> None:
        """See `AppendPath`. Never called: no other agent ends this epoch."""

    def holds_topic(self, topic_key: TopicKey) -> bool:  # noqa: ARG002 - any may
        """See `AppendPath`."""
        return self.lane.waiting_bytes > 0

    # -- the WAL ---------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """See `OwnWal`."""
        return self._writer.free_bytes

    def hurry(self, *, hurries: bool) -> None:
        """See `OwnWal`."""
        self.uploader.hurry(hurries=hurries)

    # -- what the lane has done ------------------------------------------------------------------

    def _on_applied(self, group: GroupCommit) -> None:
        if group.applied is not None:
            self._take_batches(group)
            self._order.applied(group.applied)
        else:
            self.uploader.look_again()
        self._parts.instruments.committed(group)
        self._spare.prepare()

    def _on_answered(self, group: GroupCommit) -> None:
        if group.applied is not None:
            self._order.answered(group.applied, has_commands=bool(group.commands))

    def _take_batches(self, group: GroupCommit) -> None:
        plan, place = group.plan, group.place
        if plan is None or place is None:
            return
        leader_epoch = self._parts.view.leader_epoch
        stored = take_batches(self._parts.tail, plan, group.appends, leader_epoch=leader_epoch)
        runs = committed_runs(plan, place, leader_epoch=leader_epoch, seeds=self._seeds)
        self.uploader.added(stored, generation=place.generation, runs=runs)
