"""Offsets of protocol V1 that come late reach no later transaction, whatever connection they and
the producer's own come by. Within their own transaction they may, as in Kafka: they take the place
of what was sent after them."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.answers import AnyAnswer, OffsetsCommitted, Refusal, Refused, TransactionSettled
from penstock.state.command import OffsetWrite
from penstock.state.commands import AnyCommand, CreateTopic
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.state.transaction_commands import (
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    InitTransaction,
)
from support.state_rows import group_offsets
from unit.state.orders import TOPIC_ID, open_order


@dataclass
class Connection:
    """A connection to the group's coordinator, with what that knows it to have seen."""

    number: int
    seen: int


class Producer:
    """A V1 producer and its network: requests may be lost to it, and come at any time later."""

    def __init__(self, order: LocalJournal, queries: Queries) -> None:
        self.order = order
        self.queries = queries
        self.count = 0
        self.lost: list[tuple[Connection, OffsetWrite]] = []
        """Requests of the open transaction that are still under way."""
        self.late: list[tuple[Connection, OffsetWrite]] = []
        self.expected: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.must_abort = False
        self.send(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=2))
        settled = self.send(InitTransaction(transactional_id="x", timeout_ms=1_000))
        assert isinstance(settled, TransactionSettled)
        self.settled = settled
        self.connection = self.connect()

    def send(self, command: AnyCommand) -> AnyAnswer:
        (answer,) = self.order.append([command]).outcome.answers
        if isinstance(answer, TransactionSettled):
            self.settled = answer
        return answer

    def connect(self) -> Connection:
        self.count += 1
        return Connection(self.count, self.order.position)

    def begin(self) -> None:
        answer = self.send(
            AddToTransaction(
                transactional_id="x",
                producer_id=self.settled.producer_id,
                epoch=self.settled.epoch,
                partitions=[],
                groups=["g"],
                # By the connection that has had all answers about the transaction so far.
                seen_position=self.settled.since,
            )
        )
        assert isinstance(answer, TransactionSettled), answer
        self.sent, self.must_abort = {}, False

    def arrives(self, connection: Connection, write: OffsetWrite) -> AnyAnswer:
        return self.send(
            CommitToTransaction(
                transactional_id="x",
                producer_id=self.settled.producer_id,
                epoch=self.settled.epoch,
                group_id="g",
                offsets=[write],
                seen_position=connection.seen,
                connection=connection.number,
            )
        )

    def commit_offset(self, partition: int, *, is_lost: bool) -> None:
        """Send an offset until it is answered."""
        self.count += 1
        write = OffsetWrite(topic_id=TOPIC_ID, partition=partition, offset=self.count)
        if is_lost:
            self.lost.append((self.connection, write))
            self.connection = self.connect()
        for _ in range(3):
            answer = self.arrives(self.connection, write)
            if not isinstance(answer, Refused):
                assert answer == OffsetsCommitted([0])
                self.sent[partition] = write.offset
                return
            if answer.reason is Refusal.OTHER_CONNECTION:
                self.must_abort = True
                return
            assert answer.reason is Refusal.STALE_CONNECTION, answer
            self.connection = self.connect()
        raise AssertionError("a new connection is always taken")

    def end(self, *, commits: bool) -> None:
        commits = commits and not self.must_abort
        answer = self.send(
            EndTransaction(
                transactional_id="x",
                producer_id=self.settled.producer_id,
                epoch=self.settled.epoch,
                commits=commits,
                seen_position=self.settled.since,
            )
        )
        assert isinstance(answer, TransactionSettled), answer
        self.late += self.lost
        self.lost.clear()
        if commits:
            self.expected |= self.sent
        found = group_offsets(self.queries, "g")
        assert {place[1]: row.offset for place, row in found.items()} == self.expected


steps = st.lists(
    st.tuples(
        st.sampled_from(["offset", "lost", "late", "late", "carried"]),
        st.integers(0, 1),
        st.integers(0, 9),
    ),
    max_size=6,
)


@pytest.mark.slow
@given(transactions=st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=6))
def test_what_is_committed_is_what_the_producer_sent_in_the_transaction(
    transactions: list[tuple[list[tuple[str, int, int]], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        order = open_order(Path(folder))
        with closing(Queries(Path(folder) / "metadata.sqlite")) as queries:
            producer = Producer(order, queries)
            for within, commits in transactions:
                producer.begin()
                for step, partition, which in within:
                    if step == "late" and producer.late:
                        connection, write = producer.late[which % len(producer.late)]
                        producer.arrives(connection, write)
                    elif step == "carried":
                        # A batch that came by it was stored.
                        producer.connection.seen = order.position
                    elif step in ("offset", "lost") and not producer.must_abort:
                        producer.commit_offset(partition, is_lost=step == "lost")
                # A producer that has added a group commits offsets of it, or aborts.
                if not producer.sent and not producer.must_abort:
                    producer.commit_offset(0, is_lost=False)
                producer.end(commits=commits)
        order.close()


@pytest.fixture
def producer(tmp_path: Path) -> object:
    order = open_order(tmp_path)
    with closing(Queries(tmp_path / "metadata.sqlite")) as queries:
        yield Producer(order, queries)
    order.close()


def test_a_producer_whose_connection_is_older_is_answered_at_once(producer: Producer) -> None:
    """librdkafka waits half a second where its connection is closed."""
    for _ in range(3):
        before = producer.connection
        producer.begin()
        producer.commit_offset(0, is_lost=False)
        producer.commit_offset(1, is_lost=False)
        assert producer.connection is before
        producer.end(commits=True)


def test_after_a_late_request_the_transaction_is_aborted_rather_than_wrong(
    producer: Producer,
) -> None:
    producer.begin()
    producer.commit_offset(0, is_lost=True)
    producer.end(commits=False)
    producer.begin()
    connection, write = producer.late[0]
    assert producer.arrives(connection, write) == OffsetsCommitted([0])
    producer.commit_offset(1, is_lost=False)
    assert producer.must_abort, "its own connection is another one"
    producer.end(commits=True)
    producer.begin()
    producer.commit_offset(1, is_lost=False)
    late = producer.arrives(connection, write)
    assert isinstance(late, Refused)
    assert late.reason is Refusal.STALE_CONNECTION
    producer.end(commits=True)
