"""Settings of a replicated service, and what its calls answer."""

from dataclasses import dataclass
from typing import Any

from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.replica.service import entries
from penstock.replica.service.entries import Kind, Outcome
from penstock.replica.service.hosting import ANSWERS_KEPT
from penstock.replica.service.machine import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Durations in seconds."""

    wait_s: float = 4.0
    """How long a submit waits for its answer, and a read for its token."""
    open_s: float = 60.0
    """How long an open waits for a journal that doesn't answer, where there is no copy yet."""
    compare_s: float = 3_600.0
    """Between comparisons of all instances' tables."""
    settle_s: float = 10.0
    """How long instances have for their answers, before one judges."""
    snapshot_entries: int = 500_000
    """A snapshot is taken after so many entries,"""
    snapshot_s: float = 900.0
    """or after this time, if there are any."""
    look_s: float = 10.0
    """Between looks whether a snapshot is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to what was submitted.

    Args:
        value: the one that `apply` has returned.
        position: of the entry.
        token: a read with it sees at least this entry, at any instance.
        is_repeat: the entry was applied before, and this is its answer of then.
    """

    value: Any
    position: int
    token: str
    is_repeat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The position and health of an instance.

    Args:
        position: the last entry that it has applied, at journal time `time_ms`.
        lag_s: seconds since it is known to have had all entries; None: it isn't since its start.
        journal_is_away: why the journal doesn't answer; "": it does.
        failure: why this instance applies nothing more; "": it does.
    """

    position: int
    time_ms: int
    lag_s: float | None
    journal_is_away: str
    failure: str


def answer_of(outcome: Outcome, token: str) -> Answer:
    """Give an applied item's answer, with the token of its entry.

    Raises:
        RefusedError: the machine has refused it.
        InvalidRequestError: `apply` has failed on it.
        ConflictError: its number was used with another value, or is too old.
    """
    match outcome.kind:
        case Kind.REFUSED:
            raise RefusedError(entries.unpack(outcome.value))
        case Kind.FAILED:
            name = entries.unpack(outcome.value)
            detail = f"apply has failed with {name}, and nothing has changed"
            raise InvalidRequestError("submit", "entry", detail, "see the instance's log")
        case Kind.FORGOTTEN:
            detail = (
                f"number {outcome.number} of client {outcome.client} is too old: the answers"
                f" to the last {ANSWERS_KEPT} are kept"
            )
            raise ConflictError("submit", "entry", detail)
        case Kind.OTHER_VALUE:
            detail = f"number {outcome.number} of client {outcome.client} had another value"
            raise ConflictError("submit", "entry", detail, "count the number up")
    return Answer(
        value=entries.unpack(outcome.value),
        position=outcome.position,
        token=token,
        is_repeat=outcome.is_repeat,
    )
