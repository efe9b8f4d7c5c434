"""Journal time: what an entry makes of it. Pure.

Journal time decides what has outlived its retention, so no single clock may move it far: from
feature level 4 on a row raises it to at most the earlier of the journal's stamp and the appender's
own stamp plus 5 s. An agent whose clock is further off than that writes nothing (`clock_skew`).
docs/formats/journal.md has the rules of each level; docs/decisions/0008-* the reasons.
"""

from typing import Final

AGREEMENT_MS: Final = 5_000
"""How far two clocks may be apart that are said to agree."""


def greatest(previous_ms: int, stamp_ms: int) -> int:
    """Journal time below feature level 4: the greatest stamp so far."""
    return max(previous_ms, stamp_ms)


def raised(previous_ms: int, *, stamp_ms: int, appender_ms: int) -> int:
    """Journal time at an entry from feature level 4 on.

    Args:
        previous_ms: journal time at the entry before.
        stamp_ms: the journal's clock when it took the row; where a journal keeps journal time in
            place of stamps (an embedded one), that time, which gives itself again.
        appender_ms: the appender's clock, `Entry.stamp_ms`.
    """
    return max(previous_ms, min(stamp_ms, appender_ms + AGREEMENT_MS))


def is_set_back(previous_ms: int, time_ms: int, *, stamp_ms: int, appender_ms: int) -> bool:
    """Return whether an entry with `SetJournalTime` lowers journal time to what the command asks
    for.

    Journal time is ahead, and both clocks agree with the time that is asked for. Where a journal
    keeps journal time in place of stamps, a replay decides as the first time: the time of an
    entry that lowered it is the one asked for, and of any other more than 5 s above.
    """
    return (
        previous_ms > time_ms + AGREEMENT_MS
        and max(time_ms, stamp_ms, appender_ms) - min(time_ms, stamp_ms, appender_ms)
        <= AGREEMENT_MS
    )
