"""Runs of the WAL that are damaged: left where they are, while the others are moved.

A damaged run is not copied, since its copy would be as damaged; and the file that it lies in is
kept for as long as the state names it there. It is read again now and then, since what was wrong
may have been the way to it: at first after a minute, then less and less often.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.log.checking import Fault
from penstock.log.fetch.run_checks import place_of
from penstock.log.fetch.whole_runs import BadRunError
from penstock.log.findings import Damage, DamageKind, Damages
from penstock.model.errors import CorruptDataError
from penstock.ports.clock import Clock
from penstock.state.rows import StoredRun
from penstock.system.backoff import Backoff

REREAD: Final = Backoff(first_s=60.0, most_s=3600.0)


class DamagedRunsError(Exception):
    """Nothing was moved: these runs are damaged, and why."""

    def __init__(self, runs: list[tuple[StoredRun, CorruptDataError]]) -> None:
        self.runs = runs
        super().__init__(runs)


@dataclass(slots=True)
class _Left:
    length: int
    readings: int
    again_s: float
    text: str


class SetAside:
    """The damaged runs of one WAL. Event loop only."""

    def __init__(self, damages: Damages, clock: Clock) -> None:
        self._damages = damages
        self._clock = clock
        self._left: dict[tuple[int, int], _Left] = {}

    def __len__(self) -> int:
        return len(self._left)

    @property
    def bytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(left.length for left in self._left.values())

    @property
    def text(self) -> str:
        """Return what stays and why, or ""."""
        if not self._left:
            return ""
        first = next(iter(self._left.values()))
        return f"{len(self._left)} damaged runs of {self.bytes} bytes stay in the WAL: {first.text}"

    def add(self, run: StoredRun, error: CorruptDataError) -> None:
        """A run was read and is damaged: say so, and leave it for a while."""
        if isinstance(error, BadRunError):
            fault = error.fault
        else:
            fault = Fault(run.position, run.base_offset, run.end_offset, error.detail)
        found = self._damages.found(
            "upload",
            Damage(
                kind=DamageKind.DAMAGED_WAL,
                partition_key=run.partition_key,
                start=fault.offset,
                end=max(fault.end_offset, fault.offset + 1),
                place=place_of(run),
                position=fault.position,
                detail=fault.detail,
            ),
        )
        before = self._left.get(_name(run))
        readings = 1 if before is None else before.readings + 1
        again_s = self._clock.monotonic_s() + REREAD.after(readings)
        self._left[_name(run)] = _Left(run.length, readings, again_s, str(found))

    def waits(self, run: StoredRun) -> bool:
        """Return whether a run is not to be read now."""
        left = self._left.get(_name(run))
        return left is not None and self._clock.monotonic_s() < left.again_s

    def due_in_s(self) -> float | None:
        """Return when the next of them is to be read again; None: there are none."""
        if not self._left:
            return None
        return min(left.again_s for left in self._left.values()) - self._clock.monotonic_s()

    def keep(self, runs: Iterable[StoredRun]) -> None:
        """These are the runs of the WAL: forget what was moved or trimmed."""
        if self._left:
            names = {_name(run) for run in runs}
            self._left = {name: left for name, left in self._left.items() if name in names}

    def forget(self, runs: Iterable[StoredRun]) -> None:
        """These were moved, or are of topics that are gone."""
        if self._left:
            for run in runs:
                self._left.pop(_name(run), None)


def _name(run: StoredRun) -> tuple[int, int]:
    return run.generation, run.position
