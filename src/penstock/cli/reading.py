"""Topics are read by librdkafka: given partitions from given offsets, or what a group assigns.

librdkafka goes on by itself after a server was away. Its log says when a server is away; then the
reader looks whether any server can be reached (`penstock.cli.client.patience`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.client.admin import EARLIEST, LATEST
from penstock.cli.client.errors import translated
from penstock.cli.client.groups import leave_group
from penstock.cli.client.librdkafka import Log, confluent_kafka, within
from penstock.cli.client.topic_partition import TopicPartition
from penstock.model.errors import InvalidRequestError, RetryableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka import TopicPartition as Place

    from penstock.cli.client.cluster import Client
    from penstock.cli.client.patience import Patience

BATCH_COUNT: Final = 1000
WAIT_S: Final = 0.1
COMMIT_INTERVAL_S: Final = 5.0
SESSION_MS: Final = 30_000
ENDING_S: Final = 15.0
"""Seconds for the last commit, and for leaving the group."""
ENDING_IN_DOUBT_S: Final = 1.0
"""Seconds for leaving a group whose coordinator may be away."""
OF_NO_GROUP: Final = "penstock-consume"
"""librdkafka requires every consumer to name a group. Where partitions are assigned by hand and
nothing is committed, no group of this name is created."""
FETCH_BACKOFF_MS: Final = 10
"""The pause after librdkafka's queue was full. Its default is a second, and in a second a million
records are read."""

TOPIC_UNKNOWN_MS: Final = 1000

_GONE_ON: Final = frozenset(
    {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "_ASSIGNMENT_LOST"}
    | {"UNKNOWN_TOPIC_OR_PART"}
)
"""Errors of a commit after the group went on without this member, or after a topic was deleted.
Then nothing is left to commit."""
_NOT_THERE: Final = frozenset({"_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_BY_ITSELF: Final = frozenset(
    {"_MAX_POLL_EXCEEDED", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"}
)
"""After these errors librdkafka connects again, or joins the group again, by itself."""
_error_of = methodcaller("error")

Batches = Generator[Sequence["Message"], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a partition of which nothing is committed.

    `timestamp` is EARLIEST, LATEST or a time in ms since the epoch. `offset` has precedence; a
    negative offset counts from the end.
    """

    timestamp: int = LATEST
    offset: int | None = None


class Reader:
    """A consumer whose events are taken care of. Not for several threads.

    Args:
        group: the name of the group to join; None: the caller calls `assign`, and nothing is
            committed.
        start: the start of partitions without a committed offset.
    """

    def __init__(self, client: Client, group: str | None, start: Start) -> None:
        self._kafka = confluent_kafka()
        self.client = client
        self.start = start
        self._group = group
        self._log = Log()
        self._names: list[str] = []
        self._doubts_seen = 0
        self._begun: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] | None = None
        self._printed: dict[TopicPartition, int] = {}
        self._events: list[Message] = []
        self._is_joining = False
        self._consumer: Consumer = self._kafka.Consumer(
            {
                **client.settings(self._log),
                "group.id": group or OF_NO_GROUP,
                "session.timeout.ms": SESSION_MS,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                # `_go_on_nearby` finds where to go on, and prints it.
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "check.crcs": True,
                "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
                # The topics were there at the start, so a topic that is missing now was deleted.
                "topic.metadata.propagation.max.ms": TOPIC_UNKNOWN_MS,
            }
        )

    def subscribe(self, names: Sequence[str]) -> None:
        """Read the partitions of these topics that the group assigns."""
        self._is_joining = True
        self._names = list(names)
        self._consumer.subscribe(
            self._names, on_assign=self._join, on_revoke=self._give_up, on_lost=self._lose
        )

    def assign(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None
    ) -> None:
        """Read these partitions from these offsets, up to `ends`; None: without an end."""
        self._names = list({place.topic: None for place in positions})
        self._begun = dict(positions)
        if ends is not None:
            self._ends = {key: end for key, end in ends.items() if positions[key] < end}
        self._consumer.assign([self._place(*row) for row in positions.items()])

    @property
    def is_over(self) -> bool:
        """Whether there are ends, and all of them were reached."""
        return self._ends is not None and not self._ends

    def read(self) -> Sequence[Message]:
        """Return the messages that came, or none after a short while.

        Raises:
            RetryableError: no server can be reached; the next call goes on.
            RefusedError: for example, a topic is gone.
            CorruptDataError: a batch's CRC is wrong.
        """
        while self._events:
            self._take_event(self._events[0])
            del self._events[0]
        found: Sequence[Message]
        found = self._consumer.consume(BATCH_COUNT, 0) or self._consumer.consume(1, WAIT_S)
        if any(map(_error_of, found)):
            # Errors are kept for the next call, so that messages before them aren't lost.
            self._events = [message for message in found if message.error() is not None]
            found = [message for message in found if message.error() is None]
        if self._ends is not None:
            found = self._before_ends(found)
        if not found:
            self._look_again()
        return found

    def printed(self, messages: Iterable[Message]) -> None:
        """Note which messages were printed, so that their offsets may be committed."""
        if self._group is not None:
            for message in messages:
                self._printed[_partition_of(message)] = (message.offset() or 0) + 1

    def commit(self) -> None:
        """Commit what was printed. A group that went on without this member is not an error.

        Raises:
            RetryableError: the coordinator doesn't answer.
        """
        rows = self._to_commit()
        if rows:
            if self._is_in_doubt:
                # This fails at once if the server isn't there; a commit would wait for long.
                self.client.look_again([], [])
            operation, group = "commit offsets of group", str(self._group)
            within(ENDING_S, operation, group, lambda: self._commit(rows), self._log)
        self._printed.clear()

    def close(self) -> None:
        """Leave the group, if there is one."""
        group, member_id = str(self._group), self._consumer.memberid()
        is_joining = self._is_joining
        wait_s = ENDING_IN_DOUBT_S if self._is_in_doubt else ENDING_S
        with contextlib.suppress(RetryableError):
            # If this fails, other members wait for the session's end, as after a crash.
            within(wait_s, "leave group", group, self._consumer.close, self._log)
            if is_joining and member_id:
                leave_group(self.client, group, member_id)

    @property
    def _is_in_doubt(self) -> bool:
        return self._log.doubt_count != self._doubts_seen

    def _look_again(self) -> None:
        if self._is_in_doubt:
            doubt_count = self._log.doubt_count
            self.client.look_again(self._names, self._mine())
            self._doubts_seen = doubt_count

    def _mine(self) -> set[TopicPartition]:
        return {TopicPartition(row.topic, row.partition) for row in self._consumer.assignment()}

    def _to_commit(self) -> list[Place]:
        mine = self._mine()
        return [self._place(*row) for row in self._printed.items() if row[0] in mine]

    def _commit(self, rows: list[Place]) -> None:
        try:
            self._consumer.commit(offsets=rows, asynchronous=False)
        except self._kafka.KafkaException as error:
            if error.args[0].name() not in _GONE_ON:
                raise

    def _join(self, _consumer: Consumer, _partitions: list[Place]) -> None:
        self._is_joining = False

    def _give_up(self, _consumer: Consumer, _partitions: list[Place]) -> None:
        """Commit before the group gives these partitions to other members. librdkafka calls this
        during a call of this reader."""
        if rows := self._to_commit():
            with contextlib.suppress(self._kafka.KafkaException):
                # Records that aren't committed are read again by the partition's next member.
                self._commit(rows)
        self._lose(_consumer, _partitions)

    def _lose(self, _consumer: Consumer, _partitions: list[Place]) -> None:
        # What isn't committed by now never will be: the partition may be another member's already.
        self._printed.clear()
        self._begun.clear()
        self._is_joining = True

    def _take_event(self, event: Message) -> None:
        error = event.error()
        assert error is not None
        name, place = error.name(), _partition_of(event)
        if name == "_PARTITION_EOF":
            # The end is reached without a record where compaction removed the last ones, for
            # example.
            if self._ends is not None and (event.offset() or 0) >= self._ends.get(place, 0):
                self._ends.pop(place, None)
        elif name in _NOT_THERE:
            self._go_on_nearby(place, -1 if event.offset() is None else event.offset() or 0)
        elif name not in _BY_ITSELF:
            subject = str(place) if place.topic else f"group {self._group}"
            del self._events[0]
            raise translated(error, "fetch", subject, failure=self._log.failure)

    def _go_on_nearby(self, place: TopicPartition, offset: int) -> None:
        """Go on at the nearest record that is there, or at the start if nothing was committed."""
        rows = self._consumer.position(self._consumer.assignment())
        positions = {TopicPartition(row.topic, row.partition): row.offset for row in rows}
        if place not in positions:
            return  # the partition is another member's by now
        if offset >= 0:
            first = self.client.admin.list_offsets([place], EARLIEST)[place]
            end = self.client.admin.list_offsets([place], LATEST)[place]
            nearest = first if offset < first else end
            click.echo(f"{place}: offset {offset} is gone, going on at {nearest}", err=True)
        else:
            nearest = start_positions(self.client, [place], self.start)[place]
        self._begun[place] = nearest
        self._consumer.assign(
            [
                self._place(
                    key,
                    nearest
                    if key == place
                    else position
                    if position >= 0
                    else self._begun.get(key, self._kafka.OFFSET_STORED),
                )
                for key, position in positions.items()
            ]
        )

    def _before_ends(self, messages: Sequence[Message]) -> Sequence[Message]:
        ends, kept = self._ends, []
        assert ends is not None
        for message in messages:
            # A plain tuple is equal to a TopicPartition as a key, and is made three times as fast.
            place, offset = (message.topic(), message.partition()), message.offset() or 0
            end = ends.get(place, 0)  # type: ignore[call-overload]
            if offset < end:
                kept.append(message)
            if offset + 1 >= end:
                ends.pop(place, None)  # type: ignore[call-overload]
        return kept

    def _place(self, partition: TopicPartition, offset: int) -> Place:
        place: Place = self._kafka.TopicPartition(*partition, offset)
        return place


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def read_alone(
    reader: Reader,
    names: tuple[str, ...],
    only: tuple[int, ...],
    *,
    until_end: bool,
    patience: Patience,
) -> Batches:
    """Read all partitions, or `only` these.

    Raises:
        RetryableError: at once before the first round, later when patience has ended.
        RefusedError: a topic or partition does not exist.
    """
    client = reader.client
    partitions: list[TopicPartition] = []
    for name in dict.fromkeys(names):
        known = client.topic(name).leaders
        wanted = [row for row in known if not only or row.partition in only]
        missing = set(only) - {row.partition for row in wanted}
        if missing:
            raise InvalidRequestError(
                "consume", f"{name}-{min(missing)}", f"the topic has {len(known)} partitions"
            )
        partitions += wanted
    positions = start_positions(client, partitions, reader.start)
    ends = client.admin.list_offsets(partitions, LATEST) if until_end else None
    try:
        reader.assign(positions, ends)
        while not reader.is_over:
            try:
                found = reader.read()
                patience.succeeded()
            except RetryableError as error:
                patience.bear(error)
                continue
            yield found
    finally:
        reader.close()


def read_as_member(
    reader: Reader,
    names: tuple[str, ...],
    *,
    patience: Patience,
    commit_interval_s: float = COMMIT_INTERVAL_S,
) -> Batches:
    """Read what the group assigns, from the committed offset, else from the reader's start.

    The caller may pause between records for longer than a member may be silent. Then the group goes
    on without this member, which joins again; records that this member printed meanwhile are
    printed once more by the member that gets their partition.

    Raises:
        RetryableError: a topic can't be looked up, or patience has ended.
        RefusedError: a topic does not exist, or the group doesn't want this member.
    """
    for name in names:
        reader.client.topic(name)  # raises at once if the topic does not exist
    try:
        reader.subscribe(names)
        committed_s = time.monotonic()
        while True:
            try:
                if time.monotonic() - committed_s >= commit_interval_s:
                    reader.commit()
                    committed_s = time.monotonic()
                found = reader.read()
                patience.succeeded()
            except RetryableError as error:
                patience.bear(error)
                continue
            yield found
    finally:
        try:
            reader.commit()
        finally:
            reader.close()


def start_positions(
    client: Client, partitions: Sequence[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at which reading begins."""
    ends = client.admin.list_offsets(partitions, LATEST)
    if start.offset is not None:
        firsts = client.admin.list_offsets(partitions, EARLIEST)
        if start.offset >= 0:
            for partition, end in ends.items():
                if not firsts[partition] <= start.offset <= end:
                    raise InvalidRequestError(
                        "consume",
                        str(partition),
                        f"offset {start.offset} is not in {firsts[partition]} to {end}",
                    )
            return dict.fromkeys(partitions, start.offset)
        return {
            partition: max(firsts[partition], end + start.offset) for partition, end in ends.items()
        }
    if start.timestamp == LATEST:
        return ends
    found = client.admin.list_offsets(partitions, start.timestamp)
    # A partition without a record that young begins at its end: later records will be young enough.
    return {
        partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()
    }
