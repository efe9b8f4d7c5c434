"""One partition as a share group reads it: what became of each record in flight. Pure.

A share partition has a start, below which nothing is delivered any more, and an end, from which on
nothing was delivered yet. Spans of equal records cover what lies between, without a hole.
docs/share-groups.md says what changes them.

Source: KIP-932, and SharePartition of Kafka 4.3.
"""

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.groups.errors import GroupError

UNKNOWN_START: Final = -1
"""The start of a partition that nothing was read of: the group's reset policy says."""


class RecordState(enum.IntEnum):
    """The fates that a record may have. The numbers are Kafka's, and journaled."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class Acknowledgement(enum.IntEnum):
    """The words that a member may say of a record. The numbers are Kafka's."""

    GAP = 0
    """The member found no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Span(Struct, frozen=True):
    """Adjacent records with one fate: offsets `first` to `last`, both included."""

    first: int
    last: int
    state: RecordState
    count: int = 0
    """How often they were delivered, the delivery under way included."""
    member: str = ""
    """The member that has acquired them."""
    lock: int = 0
    """The acquisition, of which the time runs out for all of its records together."""

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1

    def is_like(self, other: "Span") -> bool:
        """Whether the fate is the same."""
        return (self.state, self.count, self.member, self.lock) == (
            other.state,
            other.count,
            other.member,
            other.lock,
        )


class Stretch(NamedTuple):
    """Offsets that one batch of the log holds, both included.

    `is_delivered` is false of control records and of what was aborted.
    """

    first: int
    last: int
    is_delivered: bool = True


class Acquired(NamedTuple):
    """Records that were given to a member, both offsets included."""

    first: int
    last: int
    deliveries: int


class AckBatch(NamedTuple):
    """A member's word for records: one for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class AckFault(NamedTuple):
    """The reason to refuse acknowledgements, all of a partition's together."""

    error: enum.IntEnum
    """A number of Kafka's."""
    message: str


class SharePartition:
    """See the module. `start` UNKNOWN_START: it has yet to be found."""

    __slots__ = ("_spans", "end", "start")

    def __init__(self, start: int = UNKNOWN_START, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = list(spans)
        self.start = start
        self.end = self._spans[-1].last + 1 if self._spans else start
        self._tidy()

    @property
    def spans(self) -> Sequence[Span]:
        """The spans from `start` to `end`, in order."""
        return self._spans

    @property
    def in_flight(self) -> int:
        """The number of offsets between the start and the end."""
        return self.end - self.start

    @property
    def delivered(self) -> int:
        """The number of offsets past the start that need no delivery any more."""
        return sum(span.size for span in self._spans if span.state in TERMINAL)

    # -- delivering --------------------------------------------------------------------------------

    def next_offset(self, in_flight_max: int) -> int | None:
        """Return the first offset that may be delivered; None: all that may is under way."""
        for span in self._spans:
            if span.state is RecordState.AVAILABLE:
                return span.first
        return self.end if self.in_flight < in_flight_max else None

    def acquire(
        self,
        member: str,
        lock: int,
        offset: int,
        stretches: Iterable[Stretch],
        *,
        records_max: int,
        in_flight_max: int,
        cuts: bool,
    ) -> list[Acquired]:
        """Give a member what is available of records that were read from `offset` on.

        Args:
            stretches: the batches that were read, in order. What lies between them is a gap.
            records_max: no further batch is begun once so many are given, and with `cuts` not a
                record more is.
            in_flight_max: how far the end may be from the start.
        """
        found: list[Acquired] = []
        given = 0
        at = max(offset, self.start)
        for stretch in stretches:
            if stretch.last < at:
                continue
            if given >= records_max:
                break
            limit = self.start + in_flight_max - 1
            first, last = max(at, stretch.first), stretch.last
            if first > limit and first >= self.end:
                break
            # No record lies before the batch: were it left available, it would be read for ever.
            self._archive(at, first - 1)
            last = last if last < self.end else max(min(last, limit), self.end - 1)
            if stretch.is_delivered:
                room = records_max - given if cuts else None
                taken = self._take(first, last, member, lock, room)
                given += sum(one.last - one.first + 1 for one in taken)
                found += taken
            else:
                self._archive(first, last)
            at = last + 1
        self._tidy()
        return found

    def _take(
        self, first: int, last: int, member: str, lock: int, room: int | None
    ) -> list[Acquired]:
        found: list[Acquired] = []

        def take(span: Span) -> Span:
            nonlocal room
            if span.state is not RecordState.AVAILABLE:
                return span
            count = span.count + 1
            found.append(Acquired(span.first, span.last, count))
            return replace(span, state=RecordState.ACQUIRED, count=count, member=member, lock=lock)

        if room is not None:
            last = self._cut(first, last, room)
        self._extend(last)
        self._change(first, last, take)
        return found

    def _cut(self, first: int, last: int, room: int) -> int:
        """Return the offset up to which `room` records are available."""
        for span in self._spans:
            if span.last < first:
                continue
            if span.first > last:
                return last
            if span.state is RecordState.AVAILABLE:
                begin = max(span.first, first)
                size = min(span.last, last) - begin + 1
                if size >= room:
                    return begin + room - 1
                room -= size
        begin = max(first, self.end)
        return min(last, begin + room - 1)

    def _archive(self, first: int, last: int) -> None:
        """Let offsets without records go, but for those that a member has."""
        if first > last:
            return
        self._extend(last)
        self._change(
            first,
            last,
            lambda span: (
                Span(span.first, span.last, RecordState.ARCHIVED)
                if span.state is RecordState.AVAILABLE
                else span
            ),
        )

    def _extend(self, last: int) -> None:
        if last >= self.end:
            self._spans.append(Span(self.end, last, RecordState.AVAILABLE))
            self.end = last + 1

    # -- what became of it -------------------------------------------------------------------------

    def acknowledge(
        self, member: str, batches: Sequence[AckBatch], *, limit: int, lock: int
    ) -> AckFault | None:
        """Take a member's word for records that it has; None: all of it was taken.

        Args:
            limit: deliveries of one record at most.
            lock: the acquisition of those that are renewed.
        """
        fault = self._fault_of(member, batches)
        if fault is not None:
            return fault
        for batch in batches:
            if len(batch.types) == 1:
                self._change(batch.first, batch.last, _step(batch.types[0], limit, lock))
                continue
            for at, kind in enumerate(batch.types):
                offset = batch.first + at
                self._change(offset, offset, _step(kind, limit, lock))
        self._tidy()
        return None

    def _fault_of(self, member: str, batches: Sequence[AckBatch]) -> AckFault | None:
        for batch in batches:
            if batch.last >= self.end:
                message = f"Offsets up to {batch.last}: none from {self.end} on was delivered."
                return AckFault(GroupError.INVALID_RECORD_STATE, message)
            for span in self._between(batch.first, batch.last):
                if span.state is not RecordState.ACQUIRED:
                    message = (
                        f"Offsets {span.first} to {span.last} are {span.state.name}, and can't be"
                        " acknowledged."
                    )
                    return AckFault(GroupError.INVALID_RECORD_STATE, message)
                if span.member != member:
                    message = f"Offsets {span.first} to {span.last} are another member's."
                    return AckFault(GroupError.INVALID_RECORD_STATE, message)
        return None

    def expire(self, lock: int, *, limit: int) -> int:
        """Make the records of an acquisition available whose time has run out; how many."""
        return self._end(lambda span: span.lock == lock, lambda span: _released(span, limit))

    def release(self, member: str) -> int:
        """Make all available that a member has, which it never looked at; how many."""
        return self._end(
            lambda span: span.member == member,
            lambda span: Span(span.first, span.last, RecordState.AVAILABLE, max(0, span.count - 1)),
        )

    def _end(self, is_meant: Callable[[Span], bool], step: Callable[[Span], Span]) -> int:
        ended = 0
        for at, span in enumerate(self._spans):
            if span.state is RecordState.ACQUIRED and is_meant(span):
                self._spans[at] = step(span)
                ended += span.size
        if ended:
            self._tidy()
        return ended

    def locks(self) -> set[int]:
        """The acquisitions that are under way."""
        return {span.lock for span in self._spans if span.state is RecordState.ACQUIRED}

    def move_start(self, start: int) -> None:
        """Begin at another offset, where none is under way any more (an administrator's word)."""
        self._spans = []
        self.start = self.end = start

    def trim(self, log_start: int) -> bool:
        """Let go of what the log has no more; whether there was any."""
        if not self.start < log_start:
            return False
        if log_start >= self.end:
            self.move_start(log_start)
            return True
        at = self._at(log_start)
        self._spans[:at] = []
        self._spans[0] = replace(self._spans[0], first=log_start)
        self.start = log_start
        self._tidy()
        return True

    # -- spans -------------------------------------------------------------------------------------

    def _at(self, offset: int) -> int:
        """The index of the span that holds an offset."""
        return bisect_right(self._spans, offset, key=_first) - 1

    def _between(self, first: int, last: int) -> Iterable[Span]:
        """The spans that hold any of the offsets that are not below the start."""
        first = max(first, self.start)
        if first > last:
            return
        for at in range(self._at(first), len(self._spans)):
            span = self._spans[at]
            if span.first > last:
                return
            yield span

    def _change(self, first: int, last: int, step: Callable[[Span], Span]) -> None:
        """Put offsets through a step; those below the start are gone."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return
        begin, end = self._at(first), self._at(last)
        changed: list[Span] = []
        for span in self._spans[begin : end + 1]:
            if span.first < first:
                changed.append(replace(span, last=first - 1))
            if span.last > last:
                inner = replace(span, first=max(span.first, first), last=last)
                changed += (step(inner), replace(span, first=last + 1))
            else:
                changed.append(step(replace(span, first=max(span.first, first))))
        self._spans[begin : end + 1] = changed

    def _tidy(self) -> None:
        """Join equal neighbours, and move the start past what needs no delivery any more."""
        joined: list[Span] = []
        for span in self._spans:
            if not joined and span.state in TERMINAL:
                continue
            if joined and joined[-1].is_like(span):
                joined[-1] = replace(joined[-1], last=span.last)
            else:
                joined.append(span)
        self._spans = joined
        self.start = joined[0].first if joined else self.end


def _first(span: Span) -> int:
    return span.first


def _released(span: Span, limit: int) -> Span:
    gone = span.count >= limit
    state = RecordState.ARCHIVED if gone else RecordState.AVAILABLE
    return Span(span.first, span.last, state, 0 if gone else span.count)


def _step(kind: int, limit: int, lock: int) -> Callable[[Span], Span]:
    match kind:
        case Acknowledgement.ACCEPT:
            return lambda span: Span(span.first, span.last, RecordState.ACKNOWLEDGED)
        case Acknowledgement.RELEASE:
            return lambda span: _released(span, limit)
        case Acknowledgement.RENEW:
            return lambda span: replace(span, lock=lock)
        case _:
            return lambda span: Span(span.first, span.last, RecordState.ARCHIVED)
