"""Transactions in plain dicts and lists: every record by itself, nothing cached, nothing joined.

Written from the tables of docs/transactions.md, not from the code.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Done,
    LogTrimmed,
    OffsetsCommitted,
    Refusal,
    Refused,
    RunsCommitted,
    TransactionsAborted,
    TransactionSettled,
)
from penstock.state.commands import (
    ADDS_ITSELF,
    TRANSACTIONAL,
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    DeleteGroups,
    DeleteOffsets,
    DeleteTopic,
    TrimLog,
)
from penstock.state.transaction_commands import (
    AbortTransactions,
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    ExpireTransactions,
    InitTransaction,
)

LAST_EPOCH = 32_766
Place = tuple[str, bytes, int]


@dataclass
class Record:
    """One offset of a partition. `open_in`: the transaction that it is in, by its begin."""

    producer: int
    open_in: object = None
    marker: bool | None = None
    """Of a marker: whether it commits."""


@dataclass
class Open:
    """A transaction that is ongoing."""

    partitions: set[int] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    came_by: dict[str, int] = field(default_factory=dict)
    """By group whose offsets came: the older connection, or -1: younger ones."""
    pending: dict[Place, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Owner:
    """A transactional id."""

    producer: int
    epoch: int
    since: int
    changed: int
    timeout: int = 0
    before: tuple[int, int] | None = None
    """The producer id and epoch that the last answer took the place of."""
    state: str = "empty"
    open: Open | None = None


class Model:
    def __init__(self, most: int) -> None:
        self.most = most
        self.owners: dict[str, Owner] = {}
        self.next_producer = 0
        self.logs: dict[int, list[Record]] = {}
        self.starts: dict[int, int] = {}
        self.topics: dict[bytes, list[int]] = {}
        self.sequences: dict[tuple[int, int], tuple[int, int]] = {}
        """By partition and producer: epoch and next sequence."""
        self.ranges: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        """By partition, producer and epoch: first sequence, count and base offset."""
        self.offsets: dict[Place, tuple[int, int]] = {}
        self.aborted: set[int] = set()
        """Identities of transactions that were aborted."""
        self.committed: set[int] = set()

    def apply(self, command: AnyCommand, position: int, time_ms: int) -> AnyAnswer:
        match command:
            case InitTransaction():
                return self.init(command, position, time_ms)
            case AddToTransaction():
                return self.add(command, position, time_ms)
            case CommitToTransaction():
                return self.commit_offsets(command, position, time_ms)
            case EndTransaction():
                return self.end(command, position, time_ms)
            case AbortTransactions():
                aborted = 0
                for name, producer, epoch, since in command.items:
                    owner = self.owners.get(name)
                    if (
                        owner
                        and owner.open
                        and (owner.producer, owner.epoch, owner.since) == (producer, epoch, since)
                        and not (command.timed_out and time_ms < owner.changed + owner.timeout)
                    ):
                        above = min(owner.epoch + 1, LAST_EPOCH + 1)
                        self.close(owner, False, position, time_ms, marker_epoch=above)
                        owner.epoch += 1
                        owner.before = None
                        aborted += 1
                return TransactionsAborted(len(command.items), aborted)
            case ExpireTransactions():
                for name, producer, epoch, changed in command.items:
                    owner = self.owners.get(name)
                    if (
                        owner
                        and not owner.open
                        and (owner.producer, owner.epoch, owner.changed)
                        == (producer, epoch, changed)
                    ):
                        del self.owners[name]
                return Done()
            case CommitRuns():
                return RunsCommitted(
                    [
                        list(self.produce(run.partition_key, run.batches, position, time_ms))
                        for run in command.runs
                    ]
                )
            case CommitOffsets():
                for write in command.offsets:
                    place = (command.group_id, write.topic_id, write.partition)
                    self.offsets[place] = (write.offset, time_ms)
                return OffsetsCommitted([0] * len(command.offsets))
            case DeleteOffsets():
                items = {(command.group_id, *item) for item in command.items}
                self.forget_offsets(lambda place: place in items)
                return Done()
            case DeleteGroups():
                self.forget_offsets(lambda place: place[0] in command.group_ids)
                return Done()
            case DeleteTopic():
                for key in self.topics.pop(command.topic_id):
                    del self.logs[key], self.starts[key]
                for place in [place for place in self.offsets if place[1] == command.topic_id]:
                    del self.offsets[place]
                return Done()
            case TrimLog():
                key, start = command.items
                self.starts[key] = max(self.starts[key], start)
                return LogTrimmed([self.starts[key]])
        raise AssertionError(command)

    def forget_offsets(self, is_gone: Callable[[Place], bool]) -> None:
        pending = [owner.open.pending for owner in self.owners.values() if owner.open]
        for offsets in (self.offsets, *pending):
            for place in [place for place in offsets if is_gone(place)]:
                del offsets[place]

    # -- each command --------------------------------------------------------------------------

    def init(self, command: InitTransaction, position: int, time_ms: int) -> AnyAnswer:
        owner = self.owners.get(command.transactional_id)
        if owner is None:
            owner = Owner(self.new_producer(), 0, position, time_ms, command.timeout_ms)
            self.owners[command.transactional_id] = owner
            return self.answer(owner)
        has = (command.producer_id, command.epoch)
        if command.producer_id >= 0 and has != (owner.producer, owner.epoch):
            if has == owner.before and not owner.open:
                return self.answer(owner)
            return Refused(Refusal.FENCED_PRODUCER)
        if owner.open:
            above = min(owner.epoch + 1, LAST_EPOCH + 1)
            self.close(owner, False, position, time_ms, marker_epoch=above)
        self.move_on(owner)
        if command.producer_id < 0:
            owner.before = None
        owner.state, owner.since, owner.changed = "empty", position, time_ms
        owner.timeout = command.timeout_ms
        return self.answer(owner)

    def add(self, command: AddToTransaction, position: int, time_ms: int) -> AnyAnswer:
        owner = self.owners.get(command.transactional_id)
        refused = self.refuse(owner, command)
        if refused or owner is None:
            return refused or Refused(Refusal.PRODUCER_ID_MISMATCH)
        if any(key not in self.logs for key in command.partitions):
            return Refused(Refusal.UNKNOWN_PARTITION)
        now = owner.open or Open()
        partitions = now.partitions | set(command.partitions)
        groups = now.groups | set(command.groups)
        if len(partitions) + len(groups) > self.most:
            return Refused(Refusal.TRANSACTION_TOO_LARGE)
        self.begin(owner, position, time_ms)
        assert owner.open
        owner.open.partitions, owner.open.groups = partitions, groups
        return self.answer(owner)

    def commit_offsets(
        self, command: CommitToTransaction, position: int, time_ms: int
    ) -> AnyAnswer:
        owner = self.owners.get(command.transactional_id)
        refused = self.refuse(owner, command)
        now = (owner and owner.open) or Open()
        late = refused is not None and refused.reason is Refusal.STALE_CONNECTION
        if late and command.group_id in now.groups and command.connection > 0:
            refused = None
        if refused or owner is None:
            return refused or Refused(Refusal.PRODUCER_ID_MISMATCH)
        came_by = now.came_by.get(command.group_id, 0)
        if not command.adds_group:
            if command.group_id not in now.groups:
                return Refused(Refusal.INVALID_TRANSACTION_STATE)
            if command.connection < 0:
                return Refused(Refusal.MALFORMED)
            if came_by not in (0, command.connection) and (late or came_by != -1):
                return Refused(Refusal.STALE_CONNECTION if late else Refusal.OTHER_CONNECTION)
            came_by = command.connection if late else -1
        codes = [
            0 if write.topic_id in self.topics else int(Refusal.UNKNOWN_TOPIC)
            for write in command.offsets
        ]
        new = {
            (command.group_id, write.topic_id, write.partition): (write.offset, time_ms)
            for write, code in zip(command.offsets, codes, strict=True)
            if not code
        }
        groups = now.groups | {command.group_id}
        if (
            len(now.partitions) + len(groups) > self.most
            or len(now.pending | new) > self.most
            or len(command.offsets) > self.most
        ):
            return Refused(Refusal.TRANSACTION_TOO_LARGE)
        self.begin(owner, position, time_ms)
        assert owner.open
        owner.open.groups = groups
        owner.open.pending |= new
        owner.open.came_by[command.group_id] = came_by
        return OffsetsCommitted(codes)

    def end(self, command: EndTransaction, position: int, time_ms: int) -> AnyAnswer:
        owner = self.owners.get(command.transactional_id)
        if owner is None:
            return Refused(Refusal.PRODUCER_ID_MISMATCH)
        same = owner.state == ("committed" if command.commits else "aborted")
        has = (command.producer_id, command.epoch)
        invalid = Refused(Refusal.INVALID_TRANSACTION_STATE)
        if command.bumps and has == owner.before and owner.state in ("committed", "aborted"):
            return self.answer(owner) if same else invalid
        refused = self.refuse(owner, command)
        if refused:
            return refused
        if not owner.open:
            if not command.bumps:
                return self.answer(owner) if same else invalid
            if command.commits:
                return invalid
        above = min(owner.epoch + command.bumps, LAST_EPOCH + 1)
        self.close(owner, command.commits, position, time_ms, marker_epoch=above)
        if command.bumps:
            self.move_on(owner)
        return self.answer(owner)

    def produce(self, key: int, batches: list[int], position: int, time_ms: int) -> list[int]:
        assert len(batches) == 6
        _, count, _, producer, flagged, sequence = batches
        log = self.logs.get(key)
        if log is None:
            return [BatchStatus.REFUSED, Refusal.UNKNOWN_PARTITION]
        epoch = flagged & 0x7FFF if flagged > 0 else flagged
        found = [owner for owner in self.owners.values() if owner.producer == producer]
        if producer >= 0 and flagged & TRANSACTIONAL:
            if not found:
                return [BatchStatus.REFUSED, Refusal.PRODUCER_ID_MISMATCH]
            owner = found[0]
            if epoch != owner.epoch:
                return [BatchStatus.REFUSED, Refusal.FENCED_PRODUCER]
            now = owner.open or Open()
            adds = bool(flagged & ADDS_ITSELF)
            if key not in now.partitions:
                if not adds:
                    return [BatchStatus.REFUSED, Refusal.INVALID_TRANSACTION_STATE]
                if len(now.partitions) + len(now.groups) + 1 > self.most:
                    return [BatchStatus.REFUSED, Refusal.TRANSACTION_TOO_LARGE]
            known = self.sequences.get((key, producer))
            for first, before, base in self.ranges.get((key, producer, epoch), [])[-5:]:
                if known is not None and known[0] == epoch and (first, before) == (sequence, count):
                    return [BatchStatus.DUPLICATE, base]
            out_of_order = (
                adds and sequence != 0
                if known is None
                else sequence != (0 if epoch > known[0] else known[1])
            )
            if out_of_order:
                return [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
            self.begin(owner, position, time_ms)
            assert owner.open
            owner.open.partitions.add(key)
            self.sequences[(key, producer)] = (epoch, sequence + count)
            written = self.ranges.setdefault((key, producer, epoch), [])
            written.append((sequence, count, len(log)))
        elif producer >= 0:
            known = self.sequences.get((key, producer))
            if known is not None:
                if epoch < known[0]:
                    return [BatchStatus.REFUSED, Refusal.FENCED_PRODUCER]
                for first, before, base in self.ranges.get((key, producer, epoch), [])[-5:]:
                    if known[0] == epoch and (first, before) == (sequence, count):
                        return [BatchStatus.DUPLICATE, base]
                if sequence != (0 if epoch > known[0] else known[1]):
                    return [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
            ended = self.aborted | self.committed
            if any(
                record.producer == producer
                and record.open_in is not None
                and id(record.open_in) not in ended
                for record in log
            ):
                return [BatchStatus.REFUSED, Refusal.PLAIN_IN_TRANSACTION]
            self.sequences[(key, producer)] = (epoch, sequence + count)
            self.ranges.setdefault((key, producer, epoch), []).append((sequence, count, len(log)))
        base = len(log)
        inside = found[0].open if producer >= 0 and flagged & TRANSACTIONAL else None
        log += [Record(producer, inside) for _ in range(count)]
        return [BatchStatus.STORED, base]

    # -- what they share -----------------------------------------------------------------------

    def refuse(
        self,
        owner: Owner | None,
        command: AddToTransaction | CommitToTransaction | EndTransaction,
    ) -> Refused | None:
        if owner is None or owner.producer != command.producer_id:
            return Refused(Refusal.PRODUCER_ID_MISMATCH)
        if owner.epoch != command.epoch:
            return Refused(Refusal.FENCED_PRODUCER)
        if 0 <= command.seen_position < owner.since and owner.state != "empty":
            return Refused(Refusal.STALE_CONNECTION)
        return None

    def begin(self, owner: Owner, position: int, time_ms: int) -> None:
        if not owner.open:
            owner.open = Open()
            owner.state, owner.since, owner.changed = "ongoing", position, time_ms

    def close(
        self, owner: Owner, commits: bool, position: int, time_ms: int, *, marker_epoch: int
    ) -> None:
        now = owner.open
        if now:
            for key in sorted(now.partitions):
                log = self.logs.get(key, [])
                if any(record.open_in is now for record in log):
                    log.append(Record(owner.producer, now, marker=commits))
                    if self.sequences[(key, owner.producer)][0] != marker_epoch:
                        self.sequences[(key, owner.producer)] = (marker_epoch, 0)
            (self.committed if commits else self.aborted).add(id(now))
            self._kept = [*getattr(self, "_kept", []), now]  # identities stay apart
            for place, (offset, written_ms) in now.pending.items() if commits else ():
                if place[1] in self.topics and written_ms >= self.offsets.get(place, (0, 0))[1]:
                    self.offsets[place] = (offset, written_ms)
        owner.open = None
        owner.state = "committed" if commits else "aborted"
        owner.since, owner.changed = position, time_ms

    def move_on(self, owner: Owner) -> None:
        owner.before = (owner.producer, owner.epoch)
        if owner.epoch >= LAST_EPOCH:
            owner.producer, owner.epoch = self.new_producer(), 0
        else:
            owner.epoch += 1

    def new_producer(self) -> int:
        self.next_producer += 1
        return self.next_producer - 1

    def answer(self, owner: Owner) -> TransactionSettled:
        return TransactionSettled(owner.producer, owner.epoch, owner.since)

    # -- what readers see ----------------------------------------------------------------------

    def last_stable(self, key: int) -> int:
        log = self.logs[key]
        ended = self.aborted | self.committed
        firsts = [
            offset
            for offset, record in enumerate(log)
            if record.open_in is not None and id(record.open_in) not in ended
        ]
        return max(self.starts[key], min(firsts, default=len(log)))

    def visible(self, key: int) -> list[int]:
        """Offsets that a reader of committed records gets."""
        return [
            offset
            for offset, record in enumerate(self.logs[key])
            if self.starts[key] <= offset < self.last_stable(key)
            and record.marker is None
            and id(record.open_in) not in self.aborted
        ]
