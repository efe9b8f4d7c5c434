"""Any sequence of calls of transactions: apply equals a naive model, and itself when replayed."""

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.broker_configs import PARTITIONS_MAX_CONFIG
from penstock.model.ids import PartitionKey
from penstock.replica.replica import Replica
from penstock.state.answers import AnyAnswer, Refused
from penstock.state.apply.machine import LogMachine
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    ADDS_ITSELF,
    TRANSACTIONAL,
    AlterClusterConfigs,
    AnyCommand,
    CommitOffsets,
    CreateTopic,
    DeleteGroups,
    DeleteOffsets,
    DeleteTopic,
    TrimLog,
)
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.transaction_commands import (
    AbortTransactions,
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    ExpireTransactions,
    InitTransaction,
)
from penstock.state.transactions import is_marker, marker_of_run
from support.examples import examples
from support.state_rows import group_offsets
from unit.state.orders import TestClock, batch, commit, open_order
from unit.state.transaction_model import Model, Owner

IDS = [b"a" * 16, b"b" * 16]
KEYS = [1 << 20, 1 << 20 | 1, 2 << 20]
NAMES = ["x", "y"]
MOST = 3


@settings(max_examples=examples(0.4))
@given(data=st.data())
def test_any_sequence_of_calls_equals_the_model_and_its_replay(data: st.DataObject) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clock = TestClock()
        order = stack.enter_context(closing(open_order(directory, clock)))
        queries = stack.enter_context(closing(Queries(directory / "metadata.sqlite")))
        view = StateView.load(queries)
        model = Model(MOST)
        first: list[AnyCommand] = [
            CreateTopic(name="t", topic_id=IDS[0], partitions=2),
            CreateTopic(name="u", topic_id=IDS[1], partitions=1),
            AlterClusterConfigs(set={PARTITIONS_MAX_CONFIG: str(MOST)}),
        ]
        view.apply(order.append(first).outcome.changes)
        model.topics = {IDS[0]: KEYS[:2], IDS[1]: KEYS[2:]}
        model.logs = {key: [] for key in KEYS}
        model.starts = dict.fromkeys(KEYS, 0)
        for _ in range(data.draw(st.integers(1, 25), label="entries")):
            clock.ms += data.draw(st.integers(0, 2), label="time")
            commands = [draw_command(data, model, order.position + 1)]
            applied = order.append(commands)
            expected = [model.apply(one, applied.position, applied.time_ms) for one in commands]
            assert [blunt(answer) for answer in applied.outcome.answers] == [
                blunt(answer) for answer in expected
            ], commands
            view.apply(applied.outcome.changes)
            assert_equal(queries, view, model)
        assert_equal(queries, StateView.load(queries), model)
        digest = order.digest()
        entries = list(order.journal_after(0))
        machine = LogMachine()
        fresh = stack.enter_context(
            closing(Replica.open(directory / "replay.sqlite", machine, fsync=False))
        )
        for entry in entries:
            fresh.append(entry.body, stamp_ms=entry.time_ms)
            if data.draw(st.booleans()):
                # What is in memory is what the tables say.
                fresh.commit()
                machine.drop_caches()
        assert fresh.digest() == digest


def blunt(answer: AnyAnswer) -> AnyAnswer:
    return Refused(answer.reason) if isinstance(answer, Refused) else answer


def draw_command(data: st.DataObject, model: Model, position: int) -> AnyCommand:
    """Mostly what the state allows; else what another producer, or a late one, would send."""
    name = data.draw(st.sampled_from(NAMES))
    owner = model.owners.get(name)
    kinds = ["init", "init"] if owner is None else ["init"] + 3 * ["add", "end", "offsets"]
    kinds += 6 * ["produce"] + ["abort", "expire", "trim", "group", "topic", "ungroup", "unoffset"]
    kind = data.draw(st.sampled_from(kinds))
    shown = owner or Owner(7, 0, 0, 0)
    producer, epoch = shown.producer, shown.epoch
    match data.draw(st.integers(0, 9), label="who"):
        case 0:
            producer, epoch = shown.before or (producer, epoch - 1)
        case 1:
            epoch += data.draw(st.sampled_from([-1, 1]))
        case 2:
            producer += 1
    seen = data.draw(st.sampled_from([-1, -1, position, shown.since, max(0, shown.since - 1)]))
    keys = st.lists(st.sampled_from(KEYS), max_size=4)
    groups = st.lists(st.sampled_from("gh"), max_size=2)
    v2 = data.draw(st.booleans(), label="v2")
    common: dict[str, Any] = {
        "transactional_id": name,
        "producer_id": producer,
        "epoch": epoch,
    }
    match kind:
        case "init":
            if data.draw(st.booleans()):
                common |= {"producer_id": -1, "epoch": -1}
            return InitTransaction(timeout_ms=data.draw(st.integers(1, 3)), **common)
        case "add":
            return AddToTransaction(
                partitions=data.draw(keys), groups=data.draw(groups), seen_position=seen, **common
            )
        case "end":
            return EndTransaction(
                commits=data.draw(st.booleans()), bumps=v2, seen_position=seen, **common
            )
        case "offsets":
            writes = st.lists(offset_writes(), max_size=4, unique_by=lambda one: one.topic_id)
            return CommitToTransaction(
                group_id=data.draw(st.sampled_from("gh")),
                offsets=data.draw(writes),
                adds_group=v2,
                seen_position=seen,
                connection=data.draw(st.sampled_from([0, 1, 1, 2, 2, -1])),
                **common,
            )
        case "abort" | "expire":
            items = []
            for other, found in sorted(model.owners.items()):
                last = found.since if kind == "abort" else found.changed
                last -= data.draw(st.sampled_from([0, 0, 1]))
                items.append((other, found.producer, found.epoch, last))
            if kind == "abort":
                return AbortTransactions(items=items, timed_out=data.draw(st.booleans()))
            return ExpireTransactions(items=items)
        case "trim" if alive := sorted(model.logs):
            key = data.draw(st.sampled_from(alive))
            return TrimLog(items=[key, data.draw(st.integers(0, len(model.logs[key])))])
        case "group" if topics := sorted(model.topics):
            write = OffsetWrite(
                topic_id=data.draw(st.sampled_from(topics)),
                partition=0,
                offset=data.draw(st.integers(0, 9)),
            )
            return CommitOffsets(group_id="g", offsets=[write])
        case "ungroup":
            return DeleteGroups(group_ids=[data.draw(st.sampled_from("gh"))])
        case "unoffset":
            items = st.lists(st.tuples(st.sampled_from(IDS), st.just(0)), max_size=2, unique=True)
            return DeleteOffsets(group_id="g", items=data.draw(items))
        case "topic" if IDS[1] in model.topics:
            return DeleteTopic(topic_id=IDS[1])
    key = data.draw(st.sampled_from(KEYS))
    count = data.draw(st.integers(1, 2))
    if data.draw(st.integers(0, 3)) == 0:
        return commit(batch(count), key=PartitionKey(key), wal=1)
    known = model.sequences.get((key, producer))
    sequence = known[1] if known and known[0] == epoch else 0
    sequence += data.draw(st.sampled_from([0] * 9 + [1]))
    flags = TRANSACTIONAL | ADDS_ITSELF if v2 else TRANSACTIONAL
    if data.draw(st.integers(0, 4)) == 0:
        flags = 0
    described = batch(count, producer=(producer, max(epoch, 0) | flags, sequence))
    return commit(described, key=PartitionKey(key), wal=1)


def offset_writes() -> st.SearchStrategy[OffsetWrite]:
    return st.builds(
        OffsetWrite,
        topic_id=st.sampled_from([*IDS, b"c" * 16]),
        partition=st.just(0),
        offset=st.integers(0, 99),
    )


def assert_equal(queries: Queries, view: StateView, model: Model) -> None:
    for key, log in model.logs.items():
        head = view.head(PartitionKey(key))
        assert head is not None
        assert (head.log_start, head.next_offset) == (model.starts[key], len(log))
        assert head.last_stable == model.last_stable(key)
        # What lies below the log start is forgotten by the tables alone.
        marked = [offset for offset, record in enumerate(log) if record.marker is False]
        newest = max((offset for offset in marked if offset >= head.log_start), default=-1)
        assert newest == (head.last_aborted if head.last_aborted >= head.log_start else -1)
        assert visible(queries, key, head.log_start, head.last_stable, model) == model.visible(key)
    found = {
        (group_id, *place): (row.offset, row.commit_ms)
        for group_id in "gh"
        for place, row in group_offsets(queries, group_id).items()
    }
    assert found == model.offsets
    rows = queries.transactions_page(-1, limit=10)
    assert {row.transactional_id for row in rows} == set(model.owners)
    for row in rows:
        owner = model.owners[row.transactional_id]
        assert row == queries.transaction(row.transactional_id)
        assert (row.producer_id, row.epoch, row.since) == (
            owner.producer,
            owner.epoch,
            owner.since,
        )
        assert row.state.name.lower() == owner.state
        pending = owner.open.pending if owner.open else {}
        added = len(owner.open.partitions) + len(owner.open.groups) if owner.open else 0
        assert (row.added, row.offsets) == (added, len(pending))


def visible(queries: Queries, key: int, start: int, end: int, model: Model) -> list[int]:
    """Offsets by a consumer's rules: the aborted list and the markers, in the order of the log."""
    aborted = [
        found
        for found in queries.aborted_from(PartitionKey(key), start, limit=1_000)
        if found.first_offset < end
    ]
    markers = {
        run.base_offset: marker_of_run(run)
        for run in queries.runs_from(PartitionKey(key), start, limit=1_000)
        if is_marker(run.generation)
    }
    offsets = []
    inside: set[int] = set()
    waiting = sorted(aborted, key=lambda found: found.first_offset)
    for offset in range(end):
        while waiting and waiting[0].first_offset <= offset:
            inside.add(waiting.pop(0).producer_id)
        record = model.logs[key][offset]
        if offset >= start and record.marker is not None:
            assert markers[offset].producer_id == record.producer
            assert markers[offset].commits == record.marker
        if record.marker is not None:
            inside.discard(record.producer)
        elif offset >= start and not (record.open_in is not None and record.producer in inside):
            offsets.append(offset)
    return offsets
