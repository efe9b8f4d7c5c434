"""Transactions case by case: docs/transactions.md has the tables that these are of."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.broker_configs import PARTITIONS_MAX_CONFIG
from penstock.model.ids import PartitionKey
from penstock.state.answers import (
    AnyAnswer,
    BatchStatus,
    Done,
    JobOpened,
    LossAccepted,
    OffsetsCommitted,
    Refusal,
    Refused,
    RunsCommitted,
    RunsReplaced,
    TransactionsAborted,
    TransactionSettled,
)
from penstock.state.apply import transactions as apply_transactions
from penstock.state.changes import HeadMoved, OffsetsSettled, OpenMoved
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    ADDS_ITSELF,
    TRANSACTIONAL,
    AcceptLoss,
    AlterClusterConfigs,
    AnyCommand,
    ClearLeftovers,
    CommitOffsets,
    CommitRuns,
    DeleteGroups,
    DeleteOffsets,
    DeleteTopic,
    ExpireProducers,
    MovedRun,
    RunCommit,
    StoreSegment,
    TrimLog,
)
from penstock.state.orders import LocalJournal
from penstock.state.pipeline_commands import (
    CommitWrite,
    OpenJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
    WriteRun,
)
from penstock.state.read.queries import Queries
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.transaction_commands import (
    ITEMS_MAX,
    AbortTransactions,
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    ExpireTransactions,
    InitTransaction,
)
from penstock.state.transaction_tables import IS_ONGOING, SELECT_TRANSACTIONS
from penstock.state.transactions import TransactionState, is_marker, marker_of_run
from support.state_rows import group_offsets
from unit.state.orders import KEY, TOPIC_ID, TestClock, batch, commit, open_order, topic

OTHER = PartitionKey(KEY + 1)


class Caller:
    """A transactional producer that knows what it was answered, and the log that it calls."""

    def __init__(self, order: LocalJournal, queries: Queries) -> None:
        self.order = order
        self.queries = queries
        self.producer_id = self.epoch = -1
        self.since = 0

    def send(self, command: AnyCommand) -> AnyAnswer:
        (answer,) = self.order.append([command]).outcome.answers
        if isinstance(answer, TransactionSettled):
            self.producer_id, self.epoch, self.since = (
                answer.producer_id,
                answer.epoch,
                answer.since,
            )
        return answer

    def named(self, given: dict[str, Any]) -> dict[str, Any]:
        mine = {"transactional_id": "x", "producer_id": self.producer_id, "epoch": self.epoch}
        return mine | given

    def init(self, **given: Any) -> AnyAnswer:
        return self.send(InitTransaction(transactional_id="x", timeout_ms=100, **given))

    def add(self, *keys: int, **given: Any) -> AnyAnswer:
        return self.send(AddToTransaction(partitions=list(keys), **self.named(given)))

    def offsets(self, **given: Any) -> AnyAnswer:
        write = OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=5)
        plain = {"group_id": "g", "offsets": [write]}
        return self.send(CommitToTransaction(**plain | self.named(given)))

    def end(self, *, commits: bool = True, **given: Any) -> AnyAnswer:
        return self.send(EndTransaction(commits=commits, **self.named(given)))

    def produce(self, sequence: int = 0, *, v2: bool = True, key: PartitionKey = KEY) -> list[int]:
        flags = TRANSACTIONAL | ADDS_ITSELF if v2 else TRANSACTIONAL
        described = batch(producer=(self.producer_id, self.epoch | flags, sequence))
        answer = self.send(commit(described, key=key))
        assert isinstance(answer, RunsCommitted)
        return answer.runs[0]

    @property
    def state(self) -> TransactionState:
        row = self.queries.transaction("x")
        assert row is not None
        return row.state


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def caller(tmp_path: Path, clock: TestClock) -> Iterator[Caller]:
    with (
        closing(open_order(tmp_path, clock)) as order,
        closing(Queries(tmp_path / "metadata.sqlite")) as queries,
    ):
        order.append([topic()])
        made = Caller(order, queries)
        made.init()
        yield made


def reason(answer: AnyAnswer) -> Refusal:
    assert isinstance(answer, Refused), answer
    return Refusal(answer.reason)


# -- epochs ------------------------------------------------------------------------------------


def test_each_instance_of_a_producer_gets_the_next_epoch(caller: Caller) -> None:
    assert (caller.producer_id, caller.epoch) == (0, 0)
    caller.init()
    assert (caller.producer_id, caller.epoch) == (0, 1)
    other = caller.send(InitTransaction(transactional_id="y", timeout_ms=1))
    assert isinstance(other, TransactionSettled)
    assert (other.producer_id, other.epoch) == (1, 0)


def test_a_producer_that_names_its_epoch_gets_the_next_one_also_twice(caller: Caller) -> None:
    first = caller.init(producer_id=0, epoch=0)
    assert (caller.producer_id, caller.epoch) == (0, 1)
    assert caller.init(producer_id=0, epoch=0) == first


@pytest.mark.parametrize("has", [(0, 5), (7, 0), (0, -1)])
def test_another_epoch_or_id_than_its_own_is_fenced(caller: Caller, has: tuple[int, int]) -> None:
    answer = caller.init(producer_id=has[0], epoch=has[1])
    assert reason(answer) is Refusal.FENCED_PRODUCER


def test_a_new_instance_aborts_what_is_open(caller: Caller) -> None:
    assert caller.produce() == [BatchStatus.STORED, 0]
    caller.init()
    assert (caller.state, caller.epoch) == (TransactionState.EMPTY, 1)
    (found,) = caller.queries.aborted_from(KEY, 0, limit=9)
    assert (found.first_offset, found.marker_offset, found.last_stable) == (0, 1, 2)


@pytest.fixture
def tired(tmp_path: Path) -> Iterator[Caller]:
    """A producer that began as often as one producer id allows."""
    path = tmp_path / "metadata.sqlite"
    with closing(open_order(tmp_path)) as order:
        order.append([topic(), InitTransaction(transactional_id="x", timeout_ms=100)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE transactions SET epoch = 32766")
    with closing(open_order(tmp_path)) as order, closing(Queries(path)) as queries:
        made = Caller(order, queries)
        made.producer_id, made.epoch = 0, 32_766
        yield made


def test_used_up_epochs_give_a_new_producer_id(tired: Caller) -> None:
    first = tired.init(producer_id=0, epoch=32_766)
    assert (tired.producer_id, tired.epoch) == (1, 0)
    assert tired.init(producer_id=0, epoch=32_766) == first


def test_an_end_at_the_last_epoch_gives_a_new_producer_id(tired: Caller) -> None:
    assert tired.produce() == [BatchStatus.STORED, 0]
    again = tired.named({})
    first = tired.end(bumps=True)
    assert (tired.producer_id, tired.epoch) == (1, 0)
    assert tired.end(bumps=True, **again) == first
    marker = tired.queries.runs_from(KEY, 1, limit=1)[0]
    # Of the old id, with the one epoch above that no producer is given.
    assert (marker.position, -1 - marker.generation) == (0, 32_767 << 1 | 1)


def test_an_abort_at_the_very_last_epoch_gives_a_new_producer_id(tired: Caller) -> None:
    for expected in ((0, 32_767), (1, 0)):
        tired.add(KEY)
        item = ("x", tired.producer_id, tired.epoch, tired.since)
        assert tired.send(AbortTransactions(items=[item])) == TransactionsAborted(1, 1)
        row = tired.queries.transaction("x")
        assert row is not None
        assert (row.producer_id, row.epoch) == expected
        tired.epoch = row.epoch


@pytest.mark.parametrize("timeout_ms", [0, -1, 1 << 31])
def test_a_time_out_that_is_none_is_refused(caller: Caller, timeout_ms: int) -> None:
    answer = caller.send(InitTransaction(transactional_id="z", timeout_ms=timeout_ms))
    assert reason(answer) is Refusal.MALFORMED


@pytest.mark.parametrize("name", ["", "x" * 32_768])
def test_an_id_that_is_none_is_refused(caller: Caller, name: str) -> None:
    answer = caller.send(InitTransaction(transactional_id=name, timeout_ms=1))
    assert reason(answer) is Refusal.MALFORMED


# -- the end -----------------------------------------------------------------------------------

V1 = {"bumps": False}
V2 = {"bumps": True}


def at(caller: Caller, state: str, protocol: dict[str, bool]) -> dict[str, Any]:
    """Bring a producer to a state; the id and epoch that it had before its last end."""
    had = caller.named({})
    if state != "empty":
        caller.add(KEY)
    if state in ("committed", "aborted"):
        caller.end(commits=state == "committed", **protocol)
    return had


@pytest.mark.parametrize(
    ("state", "protocol", "commits", "expected"),
    [
        ("empty", V1, True, None),
        ("empty", V1, False, None),
        ("empty", V2, True, None),
        ("empty", V2, False, 1),
        ("ongoing", V1, True, 0),
        ("ongoing", V1, False, 0),
        ("ongoing", V2, True, 1),
        ("ongoing", V2, False, 1),
        ("committed", V1, True, 0),
        ("committed", V1, False, None),
        ("committed", V2, True, None),
        ("committed", V2, False, 2),
        ("aborted", V1, True, None),
        ("aborted", V1, False, 0),
        ("aborted", V2, True, None),
        ("aborted", V2, False, 2),
    ],
)
def test_an_end_with_the_present_epoch(
    caller: Caller, state: str, protocol: dict[str, bool], commits: bool, expected: int | None
) -> None:
    """`expected`: the epoch after it; None: INVALID."""
    at(caller, state, protocol)
    answer = caller.end(commits=commits, **protocol)
    if expected is None:
        assert reason(answer) is Refusal.INVALID_TRANSACTION_STATE
        assert caller.state.name.lower() == state
    else:
        assert isinstance(answer, TransactionSettled)
        assert answer.epoch == expected
        wanted = TransactionState.COMMITTED if commits else TransactionState.ABORTED
        assert caller.state is wanted


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("state", ["committed", "aborted"])
def test_an_end_of_protocol_v2_that_is_sent_again(
    caller: Caller, state: str, commits: bool
) -> None:
    had = at(caller, state, V2)
    first = TransactionSettled(caller.producer_id, caller.epoch, caller.since)
    answer = caller.end(commits=commits, bumps=True, **had)
    if commits == (state == "committed"):
        assert answer == first
    else:
        assert reason(answer) is Refusal.INVALID_TRANSACTION_STATE


def test_a_late_end_of_protocol_v2_does_not_reach_the_next_transaction(caller: Caller) -> None:
    had = at(caller, "committed", V2)
    caller.produce()
    for commits in (True, False):
        answer = caller.end(commits=commits, bumps=True, **had)
        assert reason(answer) is Refusal.FENCED_PRODUCER
    assert caller.state is TransactionState.ONGOING


def test_a_late_call_of_protocol_v1_does_not_reach_the_next_transaction(caller: Caller) -> None:
    """Same id, same epoch: told apart by what the connection has seen."""
    # The first of an epoch may come by any connection: its producer has heard of the epoch.
    assert not isinstance(caller.add(KEY, seen_position=0), Refused)
    seen = caller.since
    caller.end(seen_position=seen)
    # The end itself may be sent again by a new connection, and by the one that had the answer.
    assert not isinstance(caller.end(seen_position=caller.since), Refused)
    late = {"seen_position": seen}
    assert reason(caller.add(KEY, **late)) is Refusal.STALE_CONNECTION
    assert caller.state is TransactionState.COMMITTED
    caller.add(KEY, groups=["g"], seen_position=caller.since)
    for answer in (
        caller.end(**late),
        caller.end(commits=False, **late),
        caller.add(OTHER, **late),
        caller.offsets(**late),
    ):
        assert reason(answer) is Refusal.STALE_CONNECTION
    assert caller.state is TransactionState.ONGOING


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"transactional_id": "unknown"}, Refusal.PRODUCER_ID_MISMATCH),
        ({"producer_id": 9}, Refusal.PRODUCER_ID_MISMATCH),
        ({"epoch": 1}, Refusal.FENCED_PRODUCER),
        ({"epoch": -1}, Refusal.FENCED_PRODUCER),
        ({"epoch": 1, "seen_position": 0}, Refusal.FENCED_PRODUCER),
        ({"seen_position": 0}, Refusal.STALE_CONNECTION),
    ],
)
def test_every_call_refuses_who_it_is_not_of(
    caller: Caller, given: dict[str, Any], expected: Refusal
) -> None:
    caller.add(KEY, groups=["g"])
    for call in (caller.add, caller.offsets, caller.end):
        assert reason(call(**given)) is expected
    assert caller.state is TransactionState.ONGOING


# -- batches -----------------------------------------------------------------------------------


def test_a_batch_of_protocol_v1_needs_its_partition_added(caller: Caller) -> None:
    refused = [BatchStatus.REFUSED, Refusal.INVALID_TRANSACTION_STATE]
    assert caller.produce(v2=False) == refused
    caller.add(OTHER)
    assert caller.produce(v2=False) == refused
    caller.add(KEY)
    assert caller.produce(v2=False) == [BatchStatus.STORED, 0]
    caller.end()
    # One that was delayed past its end.
    assert caller.produce(1, v2=False) == refused
    caller.add(KEY)
    assert caller.produce(1, v2=False) == [BatchStatus.STORED, 2]


def test_a_batch_of_protocol_v2_begins_at_sequence_0(caller: Caller) -> None:
    assert caller.produce(3) == [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
    assert caller.state is TransactionState.EMPTY
    assert caller.produce(0) == [BatchStatus.STORED, 0]
    assert caller.produce(0) == [BatchStatus.DUPLICATE, 0]
    assert caller.produce(1) == [BatchStatus.STORED, 1]
    caller.end(bumps=True)
    assert caller.produce(2) == [BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE]
    assert caller.produce(0) == [BatchStatus.STORED, 3]


def test_a_batch_of_a_fenced_producer_is_refused(caller: Caller) -> None:
    caller.produce()
    caller.init()
    caller.epoch = 0
    assert caller.produce(1) == [BatchStatus.REFUSED, Refusal.FENCED_PRODUCER]
    caller.producer_id = 99
    assert caller.produce() == [BatchStatus.REFUSED, Refusal.PRODUCER_ID_MISMATCH]


def test_batches_of_one_command_and_what_the_view_hears(caller: Caller) -> None:
    flagged = caller.epoch | TRANSACTIONAL | ADDS_ITSELF
    batches = [
        value
        for sequence in (0, 1)
        for value in batch(producer=(caller.producer_id, flagged, sequence))
    ]
    runs = [RunCommit(partition_key=key, position=0, batches=batches) for key in (KEY, OTHER)]
    caller.order.append([commit(batch(5))])
    outcome = caller.order.append([CommitRuns(runs=runs, wal=1)]).outcome
    assert outcome.answers == [RunsCommitted([[0, 5, 0, 6], [0, 0, 0, 1]])]
    opened = [change for change in outcome.changes if isinstance(change, OpenMoved)]
    assert opened == [OpenMoved(KEY, 5), OpenMoved(OTHER, 0)]
    ended = caller.order.append(
        [EndTransaction(transactional_id="x", producer_id=0, epoch=0, commits=True)]
    ).outcome.changes
    assert [change for change in ended if isinstance(change, OpenMoved | HeadMoved)] == [
        HeadMoved(KEY, 0, 8),
        OpenMoved(KEY, -1),
        HeadMoved(OTHER, 0, 3),
        OpenMoved(OTHER, -1),
    ]


def test_a_partition_without_records_gets_no_marker(caller: Caller) -> None:
    caller.add(KEY, OTHER)
    caller.produce(v2=False)
    caller.end(commits=False)
    assert [is_marker(run.generation) for run in caller.queries.runs_from(KEY, 0, limit=9)] == [
        False,
        True,
    ]
    assert caller.queries.runs_from(OTHER, 0, limit=9) == []
    assert caller.queries.aborted_from(OTHER, 0, limit=9) == []


def test_a_write_of_a_job_is_never_of_a_transaction(caller: Caller) -> None:
    (opened,) = caller.order.append(
        [OpenJob(kind="k", name="n", lease_ms=1_000, age_max_ms=1_000)]
    ).outcome.answers
    described = batch(producer=(caller.producer_id, TRANSACTIONAL | ADDS_ITSELF, 0))
    write = CommitWrite(
        job=opened.job,  # type: ignore[union-attr]
        writer_id="w",
        batch_id=0,
        incarnation="i",
        objects=[OutputObject(key="o", size_bytes=200)],
        runs=[WriteRun(partition_key=KEY, object=0, position=16, batches=described)],
    )
    caller.order.append([write])
    assert caller.state is TransactionState.EMPTY
    assert caller.queries.runs_from(KEY, 0, limit=9) == []


# -- offsets -----------------------------------------------------------------------------------


def test_offsets_wait_for_the_commit(caller: Caller) -> None:
    assert reason(caller.offsets()) is Refusal.INVALID_TRANSACTION_STATE
    caller.add(groups=["g"])
    assert caller.offsets() == OffsetsCommitted([0])
    assert group_offsets(caller.queries, "g") == {}
    assert caller.queries.pending_offsets("g")[(TOPIC_ID, 0)].offset == 5
    caller.end()
    assert group_offsets(caller.queries, "g")[(TOPIC_ID, 0)].offset == 5
    assert caller.queries.pending_offsets("g") == {}
    group = caller.queries.group("g")
    assert group is not None
    assert group.empty_since_ms == 1_000


def test_offsets_of_an_abort_are_gone(caller: Caller) -> None:
    assert caller.offsets(adds_group=True) == OffsetsCommitted([0])
    caller.end(commits=False, bumps=True)
    assert group_offsets(caller.queries, "g") == {}
    assert caller.queries.pending_page("g", (b"", -1), limit=9) == []


def test_what_reads_offsets_is_told_of_a_commit_alone(caller: Caller) -> None:
    for commits in (False, True):
        caller.offsets(adds_group=True)
        end = EndTransaction(commits=commits, **caller.named({"bumps": True}))
        outcome = caller.order.append([end]).outcome
        (answer,) = outcome.answers
        assert isinstance(answer, TransactionSettled)
        caller.epoch = answer.epoch
        settled = [change for change in outcome.changes if isinstance(change, OffsetsSettled)]
        assert settled == ([OffsetsSettled(groups=["g"])] if commits else [])


def test_what_is_pending_goes_with_the_group_or_the_offset_that_is_deleted(
    caller: Caller,
) -> None:
    writes = [OffsetWrite(topic_id=TOPIC_ID, partition=number, offset=7) for number in (0, 1)]
    caller.offsets(adds_group=True, offsets=writes)
    assert caller.queries.group("g") is not None
    assert caller.queries.pending_page("g", (b"", -1), limit=1) == [(TOPIC_ID, 0)]
    assert caller.queries.pending_page("g", (TOPIC_ID, 0), limit=9) == [(TOPIC_ID, 1)]
    caller.send(DeleteOffsets(group_id="g", items=[(TOPIC_ID, 0), (TOPIC_ID, 5)]))
    assert set(caller.queries.pending_offsets("g")) == {(TOPIC_ID, 1)}
    row = caller.queries.transaction("x")
    assert row is not None
    assert row.offsets == 1
    caller.send(DeleteGroups(group_ids=["g"]))
    row = caller.queries.transaction("x")
    assert row is not None
    assert row.offsets == 0
    caller.end()
    assert group_offsets(caller.queries, "g") == {}
    assert caller.queries.group("g") is None


def test_neither_a_group_nor_an_offset_expires_that_is_in_an_open_transaction(
    caller: Caller,
) -> None:
    caller.send(CommitOffsets(group_id="g", offsets=[offset_of(0), offset_of(1)]))
    caller.offsets(adds_group=True)
    (at_ms,) = {row.commit_ms for row in group_offsets(caller.queries, "g").values()}
    items = [(TOPIC_ID, 0), (TOPIC_ID, 1)]
    caller.send(DeleteOffsets(group_id="g", items=items, seen_ms=[at_ms, at_ms]))
    assert set(group_offsets(caller.queries, "g")) == {(TOPIC_ID, 0)}
    expire = DeleteGroups(group_ids=["g"], seen=[(at_ms, at_ms)])
    caller.send(expire)
    assert caller.queries.group("g") is not None
    caller.end(commits=False)
    caller.send(expire)
    assert caller.queries.group("g") is None


def offset_of(partition: int) -> OffsetWrite:
    return OffsetWrite(topic_id=TOPIC_ID, partition=partition, offset=3)


# -- bounds ------------------------------------------------------------------------------------


def test_a_transaction_has_a_bounded_number_of_everything(caller: Caller) -> None:
    caller.order.append([AlterClusterConfigs(set={PARTITIONS_MAX_CONFIG: "2"})])
    answer = caller.add(KEY, OTHER, groups=["g"])
    assert isinstance(answer, Refused)
    assert answer == Refused(
        Refusal.TRANSACTION_TOO_LARGE,
        "the transaction would have 3 partitions and groups, transaction.partitions.max is 2",
    )
    caller.add(OTHER, groups=["g"])
    refused = [BatchStatus.REFUSED, Refusal.TRANSACTION_TOO_LARGE]
    assert caller.produce() == refused
    writes = [
        OffsetWrite(topic_id=TOPIC_ID, partition=partition, offset=1) for partition in (0, 1, 1)
    ]
    assert reason(caller.offsets(offsets=writes)) is Refusal.TRANSACTION_TOO_LARGE
    assert caller.offsets(offsets=writes[:2]) == OffsetsCommitted([0, 0])
    assert caller.offsets(offsets=writes[1:]) == OffsetsCommitted([0, 0])
    assert reason(caller.offsets(group_id="h", adds_group=True)) is Refusal.TRANSACTION_TOO_LARGE


@pytest.mark.parametrize("text", ["", "none", "-5", "1e3", "9" * 99, "²"])
def test_a_bound_that_is_no_number_is_the_default(caller: Caller, text: str) -> None:
    caller.order.append([AlterClusterConfigs(set={PARTITIONS_MAX_CONFIG: text})])
    assert not isinstance(caller.add(KEY, OTHER), Refused)


def test_time_outs_end_a_bounded_number_in_one_entry(
    caller: Caller, clock: TestClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_transactions, "ENDED_PER_COMMAND", 3)
    for name in "abc":
        answer = caller.send(InitTransaction(transactional_id=name, timeout_ms=100))
        assert isinstance(answer, TransactionSettled)
        add = AddToTransaction(
            transactional_id=name,
            producer_id=answer.producer_id,
            epoch=0,
            partitions=[KEY, OTHER],
        )
        caller.send(add)
    clock.ms += 99
    assert caller.queries.timed_out_transactions(clock.ms, limit=9) == []
    clock.ms += 1
    rows = caller.queries.timed_out_transactions(clock.ms, limit=9)
    assert [row.transactional_id for row in rows] == list("abc")
    items = [(row.transactional_id, row.producer_id, row.epoch, row.since) for row in rows]
    # One that is unknown, and one that has changed, cost nothing.
    items[:0] = [("unknown", 1, 0, 1), ("a", 1, 0, 1)]
    assert caller.send(AbortTransactions(items=items)) == TransactionsAborted(3, 1)
    assert caller.send(AbortTransactions(items=items[3:])) == TransactionsAborted(1, 1)
    assert caller.send(AbortTransactions(items=items[4:])) == TransactionsAborted(1, 1)
    assert caller.queries.timed_out_transactions(clock.ms, limit=9) == []
    end = EndTransaction(
        transactional_id="a", producer_id=rows[0].producer_id, epoch=0, commits=True
    )
    assert reason(caller.send(end)) is Refusal.FENCED_PRODUCER


def test_a_clock_that_is_ahead_ends_nothing_that_is_not_due(
    caller: Caller, clock: TestClock
) -> None:
    caller.add(KEY)
    row = caller.queries.transaction("x")
    assert row is not None
    items = [(row.transactional_id, row.producer_id, row.epoch, row.since)]
    due_ms = row.changed_ms + row.timeout_ms
    clock.ms = due_ms - 1
    abort = AbortTransactions(items=items, timed_out=True)
    assert caller.send(abort) == TransactionsAborted(1, 0)
    assert caller.state is TransactionState.ONGOING
    clock.ms = due_ms
    assert caller.send(abort) == TransactionsAborted(1, 1)


def test_those_that_are_ongoing_are_found_without_reading_all(caller: Caller) -> None:
    plan = caller.queries._execute(
        f"EXPLAIN QUERY PLAN {SELECT_TRANSACTIONS} WHERE {IS_ONGOING}"
        " AND changed_ms + timeout_ms <= 1 ORDER BY changed_ms"
    )
    assert [row[-1] for row in plan] == ["SCAN transactions USING INDEX ongoing"]


@pytest.mark.parametrize("kind", [AbortTransactions, ExpireTransactions])
def test_one_entry_names_a_bounded_number(
    caller: Caller, kind: type[AbortTransactions | ExpireTransactions]
) -> None:
    answer = caller.send(kind(items=[("x", 0, 0, 0)] * (ITEMS_MAX + 1)))
    assert answer == Refused(Refusal.MALFORMED, "1001 transactions are named, 1000 may be")


def test_an_id_expires_unless_it_is_open_or_was_used(caller: Caller, clock: TestClock) -> None:
    begun_ms = clock.ms
    caller.add(KEY)
    expire = ExpireTransactions(items=[("x", 0, 0, begun_ms)])
    assert caller.send(expire) == Done()
    assert caller.state is TransactionState.ONGOING
    clock.ms += 5
    caller.end()
    assert caller.send(expire) == Done()
    assert caller.state is TransactionState.COMMITTED
    caller.send(ExpireTransactions(items=[("x", 0, 0, clock.ms)]))
    assert caller.queries.transaction("x") is None
    assert reason(caller.add(KEY)) is Refusal.PRODUCER_ID_MISMATCH


# -- with everything else ----------------------------------------------------------------------


def test_a_producer_with_an_open_transaction_does_not_expire(caller: Caller) -> None:
    caller.produce()
    expire = ExpireProducers(items=[KEY, caller.producer_id, 1_000])
    caller.send(expire)
    assert caller.produce(1) == [BatchStatus.STORED, 1]
    caller.end()
    caller.send(expire)
    assert caller.queries.producers_of(KEY) == []


def test_what_is_open_keeps_the_least_offset_that_is_open(caller: Caller) -> None:
    second = Caller(caller.order, caller.queries)
    answer = second.send(InitTransaction(transactional_id="y", timeout_ms=1))
    assert isinstance(answer, TransactionSettled)
    caller.produce()
    second.produce()
    assert caller.queries.first_open() == {KEY: 0}
    caller.end(commits=False)
    assert caller.queries.first_open() == {KEY: 1}
    (found,) = caller.queries.aborted_from(KEY, 0, limit=9)
    assert (found.marker_offset, found.last_stable) == (2, 1)
    assert caller.queries.aborted_from(KEY, 3, limit=9) == []


def test_a_trim_forgets_what_was_aborted_below(caller: Caller) -> None:
    for _ in range(2):
        caller.produce()
        caller.end(commits=False, bumps=True)
    assert len(caller.queries.aborted_from(KEY, 0, limit=9)) == 2
    caller.send(TrimLog(items=[KEY, 2]))
    assert [found.marker_offset for found in caller.queries.aborted_from(KEY, 0, limit=9)] == [3]


def test_a_topic_takes_what_was_aborted_in_it_along(caller: Caller) -> None:
    caller.produce()
    caller.end(commits=False, bumps=True)
    caller.produce(key=OTHER)
    caller.offsets(adds_group=True)
    caller.send(DeleteTopic(topic_id=TOPIC_ID))
    caller.send(ClearLeftovers(rows_max=100))
    assert caller.queries.aborted_from(KEY, 0, limit=9) == []
    # What is open of it ends all the same.
    assert isinstance(caller.end(bumps=True), TransactionSettled)
    assert caller.queries.first_open() == {}
    assert group_offsets(caller.queries, "g") == {}


def test_there_are_none_below_the_level(tmp_path: Path) -> None:
    with (
        closing(open_order(tmp_path, level=TRANSACTIONS_LEVEL - 1)) as order,
        closing(Queries(tmp_path / "metadata.sqlite")) as queries,
    ):
        order.append([topic()])
        caller = Caller(order, queries)
        assert reason(caller.init()) is Refusal.LEVEL_NOT_ON
        # The bits mean nothing: such an epoch is one like any other.
        described = batch(producer=(7, TRANSACTIONAL | 3, 5))
        assert caller.send(commit(described)) == RunsCommitted([[BatchStatus.STORED, 0]])
        assert queries.first_open() == {}


def test_an_abort_is_forgotten_once_a_cleaning_has_removed_its_marker(caller: Caller) -> None:
    caller.init()
    for commits in (False, True, False):
        caller.produce()
        caller.end(commits=commits, bumps=True)
    assert [row.marker_offset for row in caller.queries.aborted_from(KEY, 0, limit=9)] == [1, 5]
    opened = caller.send(OpenJob(kind="compact", name="", lease_ms=1000, age_max_ms=1000))
    assert isinstance(opened, JobOpened)

    def forget(n: int, markers: list[int], clean_end: int) -> list[int]:
        partition = ReplacedPartition(
            partition_key=KEY, inputs=[], outputs=[], clean_end=clean_end, markers=markers
        )
        replaced = caller.send(
            ReplaceRuns(job=opened.job, n=n, input_keys=[], objects=[], partitions=[partition])
        )
        assert isinstance(replaced, RunsReplaced)
        return replaced.codes

    for number, (markers, clean_end) in enumerate(
        [([1], 1), ([1], -1), ([1, 5], 5), ([1 << 63], 6)], start=1
    ):
        assert forget(number, markers, clean_end) == [Refusal.INVALID_REPLACEMENT]
    assert caller.queries.is_abort_known(KEY, 5)
    assert not caller.queries.is_abort_known(KEY, 4)
    assert forget(5, [1, 3], 5) == [0]
    assert [row.marker_offset for row in caller.queries.aborted_from(KEY, 0, limit=9)] == [5]
    assert [caller.queries.is_abort_known(KEY, offset) for offset in (1, 4, 5, 6)] == [
        True,
        True,
        True,
        False,
    ]


def test_a_lost_marker_of_an_abort_is_made_again(caller: Caller) -> None:
    """Whatever is lost around it: else the producer's next records would be taken for aborted."""
    caller.init()
    for commits in (False, True):
        caller.produce()
        caller.end(commits=commits, bumps=True)
    rows = caller.queries.runs_from(KEY, 0, limit=9)
    length = sum(row.length for row in rows)
    moved = MovedRun(
        partition_key=KEY,
        position=16,
        runs=[n for r in rows for n in (r.base_offset, r.generation, r.position, r.length)],
    )
    caller.send(StoreSegment(object_key="o", object_bytes=999, runs=[moved]))
    (run,) = caller.queries.runs_from(KEY, 0, limit=9)
    assert (run.base_offset, run.end_offset, run.length) == (0, 4, length)
    loss = AcceptLoss(
        partition_key=KEY,
        base_offset=0,
        end_offset=4,
        object_key="o",
        wal=0,
        position=16,
        length=length,
        kept=[],
    )
    assert caller.send(loss) == LossAccepted([0, 1, 2, 4])
    (marker,) = caller.queries.runs_from(KEY, 0, limit=9)
    assert (marker.base_offset, marker.end_offset, marker.sum) == (1, 2, None)
    assert marker_of_run(marker).producer_id == caller.producer_id
    assert not marker_of_run(marker).commits
    assert caller.queries.lost_ranges_of(KEY) == [(0, 1), (2, 4)]
    assert caller.queries.partition_bytes([KEY]) == {KEY: 78}
