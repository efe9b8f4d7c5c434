"""Findings are damaged or missing parts of the stored log, until they are right again or trimmed.

There is one list per server: each finding is a log line (once per cause and minute), a count by
kind and a row of `/v1/status`. The list is not durable: damage is found again when it is read.
"""

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.ids import PartitionKey
from penstock.ports.clock import Clock

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 10_000
SHOWN_MAX: Final = 100
LINE_INTERVAL_S: Final = 60.0
_CAUSES_MAX: Final = 1000


class DamageKind(enum.StrEnum):
    """The kind says what is wrong, and where: the label of `penstock_damage_total`."""

    DAMAGED_OBJECT = "damaged_object"
    MISSING_OBJECT = "missing_object"
    DAMAGED_WAL = "damaged_wal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Offsets [start, end) of a partition can't be served.

    `place`: an object's key, or a WAL file. `position`: of the first damaged byte's batch there.
    """

    kind: DamageKind
    partition_key: PartitionKey
    start: int
    end: int
    place: str
    position: int
    detail: str


class DamagedError(CorruptDataError):
    """A read met damage. Reading it again gives the same, until it is repaired."""

    def __init__(self, operation: str, damage: Damage, partition: str) -> None:
        super().__init__(
            operation,
            f"{partition} offsets {damage.start} to {damage.end - 1}",
            f"{damage.place} at byte {damage.position}: {damage.detail}",
            "docs/operations.md, Damage",
        )
        self.damage = damage


@dataclass(slots=True)
class _Known:
    damage: Damage
    first_ms: int
    last_ms: int
    told_s: float
    count: int = 1


class Troubles:
    """Errors of reads that aren't damage (a store or an agent is away) get a line once per cause
    and minute, so that none is swallowed. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def met(self, error: BaseException, partition: str) -> None:
        """A read of a partition failed."""
        cause = str(error) or type(error).__name__
        now_s = self._clock.monotonic_s()
        told_s, kept_back = self._told.pop(cause, (-LINE_INTERVAL_S, 0))
        if now_s - told_s < LINE_INTERVAL_S:
            self._told[cause] = (told_s, kept_back + 1)
            return
        self._told[cause] = (now_s, 0)
        if len(self._told) > _CAUSES_MAX:
            self._told.popitem(last=False)
        more = f" ({kept_back} more since the last line)" if kept_back else ""
        foreign = not isinstance(error, PenstockError)
        logger.warning(
            "read of %s failed: %s%s", partition, cause, more, exc_info=error if foreign else None
        )


class Damages:
    """Event loop only.

    Args:
        partition_name: of a partition for people, such as `flights-3`.
        log_start: of a partition; None: it is gone.
        on_found: called with the kind of each finding.
        on_healed: called when the bytes were right after all, or are again.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        partition_name: Callable[[PartitionKey], str],
        log_start: Callable[[PartitionKey], int | None],
        on_found: Callable[[DamageKind], None] = lambda _: None,
        on_healed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self.partition_name = partition_name
        self._log_start = log_start
        self._on_found = on_found
        self._on_healed = on_healed
        self._known: OrderedDict[tuple[PartitionKey, str, int], _Known] = OrderedDict()

    def found(self, operation: str, damage: Damage) -> DamagedError:
        """Note damage; return the error for the caller that met it.

        Args:
            operation: the caller's operation, such as "read" or "upload".
        """
        error = DamagedError(operation, damage, self.partition_name(damage.partition_key))
        self._on_found(damage.kind)
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        name = (damage.partition_key, damage.place, damage.position)
        known = self._known.get(name)
        if known is None:
            self._known[name] = _Known(damage, now_ms, now_ms, now_s)
            if len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)
            logger.error("%s: %s", damage.kind, error)
            return error
        known.damage, known.last_ms = damage, now_ms
        known.count += 1
        if now_s - known.told_s >= LINE_INTERVAL_S:
            known.told_s = now_s
            logger.error("%s, met %d times: %s", damage.kind, known.count, error)
        return error

    def healed(self, place: str, position: int, detail: str) -> None:
        """Bytes that were damaged when they came are right when they are asked of the store."""
        self._on_healed()
        logger.warning("read again: %s at byte %d: %s", place, position, detail)

    def right(self, key: PartitionKey, place: str, start: int, end: int) -> None:
        """The bytes [start, end) of a place have been checked and are right."""
        if not self._known:
            return
        mended = [
            name
            for name in self._known
            if name[0] == key and name[1] == place and start <= name[2] < end
        ]
        for name in mended:
            known = self._known.pop(name)
            logger.warning(
                "%s is right again: offsets %d to %d in %s",
                self.partition_name(key),
                known.damage.start,
                known.damage.end - 1,
                place,
            )

    def given_up(self, key: PartitionKey, start: int, end: int) -> None:
        """Forget what was damaged in offsets [start, end): the log holds it no more."""
        for name, known in list(self._known.items()):
            if name[0] == key and start <= known.damage.start and known.damage.end <= end:
                del self._known[name]

    def known(self) -> list[Damage]:
        """All that is damaged, as far as is known; what was trimmed meanwhile is left out."""
        self._forget_trimmed()
        return [known.damage for known in self._known.values()]

    def status(self) -> dict[str, Any]:
        """Return what /v1/status says of damage."""
        self._forget_trimmed()
        newest = list(self._known.values())[-SHOWN_MAX:]
        return {
            "known": len(self._known),
            "ranges": [
                {
                    "partition": self.partition_name(known.damage.partition_key),
                    "start": known.damage.start,
                    "end": known.damage.end,
                    "kind": known.damage.kind.value,
                    "place": known.damage.place,
                    "position": known.damage.position,
                    "detail": known.damage.detail,
                    "first_ms": known.first_ms,
                    "last_ms": known.last_ms,
                    "count": known.count,
                }
                for known in newest
            ],
        }

    def _forget_trimmed(self) -> None:
        for name in list(self._known):
            log_start = self._log_start(name[0])
            if log_start is None or self._known[name].damage.end <= log_start:
                del self._known[name]
