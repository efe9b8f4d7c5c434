"""The newest jump of journal time, which a process that starts must not take for the past. Pure.

A wrong clock of journal and agent raises journal time with each entry. An agent that was there
doubts its clock (docs/decisions/0008); one that starts afterwards would find its clock in line with
journal time, and delete at once what only looks old. So the state keeps from where journal time
jumped, and for an hour of journal time a start compares its clock with what journal time would be
without the jump.

`meta` has two names for it. `time_mark` is a journal time that trails by `MARK_MS` at most, so that
a jump is seen from entry to entry without a write per entry. `time_jump` is the newest jump.
"""

from typing import Final, NamedTuple

JUMP_MS: Final = 3_600_000
"""A start takes more than this for a gap (`penstock.model.believed_time`)."""
MARK_MS: Final = 900_000
YOUNG_MS: Final = 3_600_000
"""For this long a jump is not taken for the past; one that follows meanwhile is a part of it."""


class Jump(NamedTuple):
    """`from_ms`: journal time before it, `MARK_MS` too early at most; `to_ms`: after it."""

    from_ms: int
    to_ms: int


class Marks(NamedTuple):
    """Both marks of `meta`. A mark of 0: journal time was never marked."""

    mark_ms: int
    jump: Jump | None


def moved(marks: Marks, time_ms: int) -> Marks:
    """Return the marks once an entry of a journal time was applied."""
    mark_ms, jump = marks
    if 0 <= time_ms - mark_ms < MARK_MS:
        return marks
    if time_ms < mark_ms:
        # It was set back. A jump to a time ahead of it is undone.
        return Marks(time_ms, None if jump is None or time_ms < jump.to_ms else jump)
    if mark_ms and time_ms - mark_ms > JUMP_MS:
        jump = Jump(without(jump, mark_ms), time_ms)
    return Marks(time_ms, jump)


def without(jump: Jump | None, time_ms: int) -> int:
    """Return journal time as it would be without a young jump."""
    if jump is None or not 0 <= time_ms - jump.to_ms < YOUNG_MS:
        return time_ms
    return jump.from_ms + time_ms - jump.to_ms


def encoded(jump: Jump | None) -> str:
    """Write a jump as `meta` holds it."""
    return "" if jump is None else f"{jump.from_ms},{jump.to_ms}"


def decoded(text: str) -> Jump | None:
    """Read a jump that `encoded` wrote."""
    if not text:
        return None
    from_ms, _, to_ms = text.partition(",")
    return Jump(int(from_ms), int(to_ms))
