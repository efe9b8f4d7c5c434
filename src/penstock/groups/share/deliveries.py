"""The partitions of a share group: who has which records, until when, and what is journaled. Pure.

What members acquire is in memory alone. Acknowledgements, releases and time-outs change what the
journal has; one save is under way at a time, and what is acknowledged is answered after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.groups.messages import CancelTimer, Reply, SetTimer, Timer
from penstock.groups.share.configs import ShareConfigs
from penstock.groups.share.durable import encode_share
from penstock.groups.share.messages import (
    Effect,
    Place,
    RecordsFreed,
    SaveSharePartitions,
    SharesReply,
)
from penstock.groups.share.partition import (
    UNKNOWN_START,
    AckBatch,
    AckFault,
    Acknowledgement,
    Acquired,
    SharePartition,
    Stretch,
)

LOCK_TIMER: Final = "lock"
"""The kind of an acquisition's timer; its number stands where others have a member's id."""


class Deliveries:
    """See the module. Puts its effects in the list that it was made with."""

    def __init__(self, configs: Callable[[], ShareConfigs], effects: list[Effect]) -> None:
        self._configs = configs
        self._effects = effects
        self.partitions: dict[Place, SharePartition] = {}
        self._lock_count = 0
        self._locks: dict[int, Place] = {}
        self._locks_of: dict[Place, set[int]] = {}
        self._dirty: dict[Place, None] = {}
        self._removed: dict[Place, None] = {}
        self._is_saving = False
        self._waiting: list[int] = []
        self._next_waiting: list[int] = []

    @property
    def is_idle(self) -> bool:
        """No record is under way, and the journal has all that it is to have."""
        return not (self._locks or self._dirty or self._removed or self._is_saving)

    def waiting(self) -> list[int]:
        """The requests that wait for the journal."""
        return [*self._waiting, *self._next_waiting]

    def restore(self, partitions: Mapping[Place, SharePartition]) -> None:
        """Take up what is journaled."""
        self.partitions = dict(partitions)

    def start(self, place: Place) -> int:
        """Return where a partition begins; UNKNOWN_START: it has yet to be found."""
        found = self.partitions.get(place)
        return UNKNOWN_START if found is None else found.start

    def begin(self, request: int, place: Place, start: int) -> None:
        """Begin to read a partition, unless that was done meanwhile; answered once journaled."""
        if self.start(place) == UNKNOWN_START:
            self.partitions[place] = SharePartition(start)
            self._touch(place)
        self._wait(request)

    def next_offset(self, place: Place, log_start: int) -> int | None:
        """Return the first offset that may be delivered; None: there is none now."""
        found = self.partitions[place]
        if found.trim(log_start):
            self._changed(place)
        return found.next_offset(self._configs().partition_max_record_locks)

    def acquire(
        self,
        place: Place,
        member: str,
        offset: int,
        stretches: Iterable[Stretch],
        *,
        records_max: int,
        cuts: bool,
    ) -> list[Acquired]:
        """Give a member records that were read: see `SharePartition.acquire`."""
        configs = self._configs()
        lock = self._new_lock()
        found = self.partitions[place].acquire(
            member,
            lock,
            offset,
            stretches,
            records_max=records_max,
            in_flight_max=configs.partition_max_record_locks,
            cuts=cuts,
        )
        self._begin_lock(place, lock)
        return found

    def acknowledge(
        self, request: int, member: str, said: Mapping[Place, Sequence[AckBatch]]
    ) -> dict[Place, AckFault]:
        """Take a member's word for records; what is wrong with some of it. Answered once what was
        taken is journaled."""
        faults: dict[Place, AckFault] = {}
        for place, batches in said.items():
            found = self.partitions.get(place) or SharePartition(0)
            lock = self._new_lock()
            limit = self._configs().delivery_count_limit
            was_full = self._is_full(found)
            fault = found.acknowledge(member, batches, limit=limit, lock=lock)
            if fault is not None:
                faults[place] = fault
                continue
            self._begin_lock(place, lock)
            if any(kind != Acknowledgement.RENEW for batch in batches for kind in batch.types):
                self._touch(place)
            self._changed(place, was_full=was_full)
        self._wait(request)
        return faults

    def release(self, member: str, places: Iterable[Place]) -> None:
        """A member goes away: what it has and did not answer is available again."""
        for place in places:
            found = self.partitions.get(place)
            if found is not None and found.release(member):
                self._touch(place)
                self._changed(place)

    def expire(self, lock: int) -> None:
        """The time of an acquisition has run out."""
        place = self._locks.get(lock)
        if place is None:
            return
        found = self.partitions[place]
        if found.expire(lock, limit=self._configs().delivery_count_limit):
            self._touch(place)
        self._changed(place)

    def alter(self, request: int, starts: Mapping[Place, int]) -> None:
        """Begin partitions elsewhere (an administrator's word); answered once journaled."""
        for place, start in starts.items():
            self.partitions.setdefault(place, SharePartition(start)).move_start(start)
            self._touch(place)
            self._changed(place)
        self._wait(request)

    def forget(self, request: int, places: Iterable[Place]) -> None:
        """Forget partitions: their start is to be found again; answered once journaled."""
        for place in places:
            if self.partitions.pop(place, None) is None:
                continue
            self._dirty.pop(place, None)
            self._removed[place] = None
            for lock in self._locks_of.pop(place, ()):
                self._end_lock(lock)
        self._wait(request)

    # -- the journal -------------------------------------------------------------------------------

    def saved(self) -> None:
        """The journal has taken a save."""
        self._is_saving = False
        self._effects += [Reply(request, SharesReply()) for request in self._waiting]
        self._waiting = []

    def save_if_due(self) -> None:
        """Begin a save, if something changed and none is under way."""
        if self._is_saving or not (self._dirty or self._removed):
            return
        self._is_saving = True
        self._waiting, self._next_waiting = self._next_waiting, []
        dirty, self._dirty = self._dirty, {}
        removed, self._removed = self._removed, {}
        rows = []
        for place in dirty:
            found = self.partitions[place]
            rows.append((*place, found.start, encode_share(found)))
        self._effects.append(SaveSharePartitions(rows, tuple(removed)))

    def _touch(self, place: Place) -> None:
        self._removed.pop(place, None)
        self._dirty[place] = None

    def _wait(self, request: int) -> None:
        if self._dirty or self._removed:
            self._next_waiting.append(request)
        elif self._is_saving:
            self._waiting.append(request)
        else:
            self._effects.append(Reply(request, SharesReply()))

    # -- locks -------------------------------------------------------------------------------------

    def _new_lock(self) -> int:
        self._lock_count += 1
        return self._lock_count

    def _begin_lock(self, place: Place, lock: int) -> None:
        """Let an acquisition's time run, if it has any record."""
        if lock not in self.partitions.get(place, _NOTHING).locks():
            return
        self._locks[lock] = place
        self._locks_of.setdefault(place, set()).add(lock)
        timer = Timer(LOCK_TIMER, str(lock))
        self._effects.append(SetTimer(timer, self._configs().record_lock_duration_ms))

    def _is_full(self, found: SharePartition) -> bool:
        return found.next_offset(self._configs().partition_max_record_locks) is None

    def _changed(self, place: Place, *, was_full: bool = True) -> None:
        """Acquisitions may have ended, and records may be fetched that could not be.

        Args:
            was_full: nothing could be fetched before: whatever can be now is news. Else those are
                that were given back, and what is accepted wakes no one.
        """
        found = self.partitions[place]
        offset = found.next_offset(self._configs().partition_max_record_locks)
        if offset is not None and (was_full or offset < found.end):
            self._effects.append(RecordsFreed())
        known = self._locks_of.get(place)
        if known is None:
            return
        gone = known - self.partitions[place].locks()
        for lock in gone:
            self._end_lock(lock)
        known -= gone
        if not known:
            del self._locks_of[place]

    def _end_lock(self, lock: int) -> None:
        del self._locks[lock]
        self._effects.append(CancelTimer(Timer(LOCK_TIMER, str(lock))))


_NOTHING: Final = SharePartition(0)
