"""Records of share partitions: read from the log, acquired for a member, and waited for."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from penstock.groups.errors import GroupError
from penstock.groups.share.configs import READ_COMMITTED, ShareConfigs
from penstock.groups.share.messages import Place
from penstock.groups.share.partition import UNKNOWN_START, Acquired
from penstock.groups.sharing import OpenShare
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.share.batches import ReadBatches
from penstock.kafka.share.permissions import refusal_of
from penstock.kafka.share.start import start_offset
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.ids import PartitionKey, partition_key
from penstock.state.read.view import Head
from penstock.state.transactions import AbortedRange

READ_BYTES_MAX: Final = 1 << 20
"""Bytes that are read of one partition at a time; one batch may be longer."""
LOOKS_MAX: Final = 100
"""How often one request goes on past batches of which nothing is delivered."""


@dataclass(slots=True)
class Shared:
    """The records that a request found in one partition."""

    error: ErrorCode | GroupError = ErrorCode.NONE
    records: bytes = b""
    acquired: list[Acquired] = field(default_factory=list)


@dataclass(slots=True)
class Room:
    """The records and bytes that a request may still take."""

    bytes_left: int
    records_left: int
    cuts: bool
    """The number of records is a limit to keep to; else whole batches are given."""


class ShareReading:
    """Reads for one request of one member."""

    def __init__(
        self, context: RequestContext, group: OpenShare, member_id: str, configs: ShareConfigs
    ) -> None:
        self._access = context.access
        self._broker = context.broker
        self._group = group
        self._member_id = member_id
        self._configs = configs
        self._is_committed = configs.isolation_level == READ_COMMITTED

    async def collect(self, places: Sequence[Place], room: Room) -> dict[Place, Shared]:
        """Acquire what is there now, within the limits; of partitions with records, or errors."""
        found: dict[Place, Shared] = {}
        for place in places:
            if room.records_left <= 0 or room.bytes_left <= 0:
                break
            one = await self._collect_from(place, room, is_first=not found)
            if one.error or one.acquired:
                found[place] = one
        return found

    @contextmanager
    def watching(self, places: Sequence[Place]) -> Iterator[asyncio.Event]:
        """Set an event whenever something may be there that was not."""
        changed = asyncio.Event()
        keys = [found[0] for place in places if (found := self._find(place)) is not None]
        waiter = Waiter(keys, changed.set)
        waiters = self._broker.log.waiters
        waiters.add(waiter)
        self._group.watch(changed.set)
        try:
            yield changed
        finally:
            waiters.remove(waiter)
            self._group.unwatch(changed.set)

    def _find(self, place: Place) -> tuple[PartitionKey, Head] | None:
        topic_id, number = place
        topic = self._broker.view.topic_by_id(topic_id)
        if topic is None or not 0 <= number < topic.partitions:
            return None
        key = partition_key(topic.topic_key, number)
        head = self._broker.view.head(key)
        return None if head is None else (key, head)

    async def _collect_from(self, place: Place, room: Room, *, is_first: bool) -> Shared:
        found = self._find(place)
        if found is None:
            topic = self._broker.view.topic_by_id(place[0])
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            return Shared(unknown if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        key, head = found
        refused = refusal_of(self._access, self._broker.view, place[0])
        if refused:
            return Shared(refused)
        try:
            if self._group.machine.deliveries.start(place) == UNKNOWN_START:
                now_ms = self._broker.clock.now_ms()
                start = await start_offset(self._broker.log, key, self._configs, now_ms)
                error = await self._group.begin(place, start)
                if error is not GroupError.NONE:
                    return Shared(error)
            for _ in range(LOOKS_MAX):
                one = await self._look(place, key, head, room, is_first=is_first)
                if one is not None:
                    return one
        except PenstockError as error:
            self._broker.log.read_failed(key, error)
            is_damage = isinstance(error, CorruptDataError)
            return Shared(ErrorCode.CORRUPT_MESSAGE if is_damage else ErrorCode.KAFKA_STORAGE_ERROR)
        return Shared()

    async def _look(
        self, place: Place, key: PartitionKey, head: Head, room: Room, *, is_first: bool
    ) -> Shared | None:
        """Read and acquire; None: what was read is delivered to no member, look further."""
        if not self._group.is_held:
            return Shared(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._group.machine.deliveries.start(place) == UNKNOWN_START:
            # It was forgotten meanwhile: the client's next request finds where to begin.
            return Shared()
        offset = self._group.next_offset(place, head.log_start)
        end = head.last_stable if self._is_committed else head.next_offset
        if offset is None or offset >= end:
            return Shared()
        limit = min(READ_BYTES_MAX, room.bytes_left)
        log = self._broker.log
        read = await log.reader.read_loaded(key, offset, limit)
        if read is None or (read.length > room.bytes_left and not is_first):
            return Shared()
        batches = ReadBatches(b"".join(read.views), end)
        aborted = await self._aborted(key, offset, batches.last + 1, head)
        if not self._group.is_held:
            return Shared(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._group.machine.deliveries.start(place) == UNKNOWN_START:
            return Shared()
        acquired = self._group.acquire(
            place,
            self._member_id,
            offset,
            batches.stretches(aborted),
            records_max=room.records_left,
            cuts=room.cuts,
        )
        if acquired:
            records = batches.of(acquired)
            room.bytes_left -= len(records)
            room.records_left -= sum(one.last - one.first + 1 for one in acquired)
            return Shared(records=records, acquired=acquired)
        is_further = self._group.next_offset(place, head.log_start) != offset
        return None if is_further else Shared()

    async def _aborted(
        self, key: PartitionKey, offset: int, end: int, head: Head
    ) -> Sequence[AbortedRange]:
        if not self._is_committed or head.last_aborted < offset:
            return ()
        log = self._broker.log
        while True:
            found = log.aborted(key, offset, end, last_aborted=head.last_aborted)
            if not isinstance(found, Missing):
                return found
            await asyncio.shield(found.load)
