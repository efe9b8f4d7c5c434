"""Applying commands about histories that the journal has lost: noting one, closing one.

A journal that came back older (an asynchronous failover, a restore of its database) has lost rows
that agents had applied and clients were answered by. Their objects still lie in the store and no
row names them: to this state they look like orphans. So while a lost history is open, apply
condemns no key that it doesn't know. An operator closes it (`penstock repair --history`).
"""

from typing import Final

from penstock.state.answers import AnyAnswer, Done, HistoryNoted, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import HistoryChanged
from penstock.state.commands import CloseHistory, NoteLostHistory
from penstock.state.meta import COUNTERS, LAST_HISTORY, OPEN_HISTORIES
from penstock.state.numbers import INT64_MAX, is_number
from penstock.state.rows import HistoryOutcome, LostHistory, LostReason
from penstock.state.tables import Tables

CLOSED_KEPT: Final = 64
"""Closed histories whose rows stay, so that what is found of them later is known."""
SELECT_HISTORIES: Final = (
    "SELECT history, start_position, end_position, stamp_ms, crc, reason, agent, noted_position,"
    " noted_ms, closed_ms, outcome, records FROM lost_histories"
)
_CRC_MAX: Final = (1 << 32) - 1


_Row = tuple[int, int, int, int, int, int, int, int, int, int | None, int, int]


def history_of_row(row: _Row) -> LostHistory:
    """A row of `SELECT_HISTORIES` as a value."""
    return LostHistory(
        history=row[0],
        start=row[1],
        end=row[2],
        stamp_ms=row[3],
        crc=row[4],
        reason=LostReason(row[5]),
        agent=row[6],
        noted_position=row[7],
        noted_ms=row[8],
        closed_ms=row[9],
        outcome=HistoryOutcome(row[10]),
        records=row[11],
    )


def is_any_open(tables: Tables) -> bool:
    """Return whether a lost history is open. Costs no statement."""
    return tables.meta_int(OPEN_HISTORIES) > 0


def note_lost_history(context: ApplyContext, command: NoteLostHistory) -> AnyAnswer:
    """A history of its own, or more of one that is known."""
    if (
        not is_number(command.start, 1)
        or not is_number(command.end, command.start)
        or not -INT64_MAX <= command.stamp_ms <= INT64_MAX
        or not is_number(command.crc, 0, _CRC_MAX)
        or not is_number(command.reason, 1, max(LostReason))
    ):
        return Refused(Refusal.MALFORMED, f"positions {command.start} to {command.end}")
    tables = context.tables
    same = tables.execute(
        "SELECT history FROM lost_histories WHERE end_position = ? AND stamp_ms = ? AND crc = ?",
        (command.end, command.stamp_ms, command.crc),
    ).fetchone()
    if same is not None:
        # Found by another agent before, or by this one before it crashed; it may be closed.
        return HistoryNoted(same[0])
    overlapping = tables.execute(
        "SELECT history, end_position FROM lost_histories WHERE closed_ms IS NULL"
        " AND start_position <= ? AND end_position >= ? ORDER BY history LIMIT 1",
        (command.end, command.start),
    ).fetchone()
    if overlapping is not None:
        history, end = overlapping
        tables.execute(
            "UPDATE lost_histories SET start_position = min(start_position, ?),"
            " noted_position = ? WHERE history = ?",
            (command.start, context.position, history),
        )
        if command.end > end:
            tables.execute(
                "UPDATE lost_histories SET end_position = ?, stamp_ms = ?, crc = ?"
                " WHERE history = ?",
                (command.end, command.stamp_ms, command.crc, history),
            )
    else:
        history = tables.meta_int(LAST_HISTORY) + 1
        tables.set_meta(LAST_HISTORY, history)
        tables.set_meta(OPEN_HISTORIES, tables.meta_int(OPEN_HISTORIES) + 1)
        tables.execute(
            "INSERT INTO lost_histories VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, 0)",
            (
                history,
                command.start,
                command.end,
                command.stamp_ms,
                command.crc,
                command.reason,
                context.agent,
                context.position,
                context.time_ms,
                int(HistoryOutcome.OPEN),
            ),
        )
    _leave_lost_numbers(tables)
    _tell(context, history)
    return HistoryNoted(history)


def close_history(context: ApplyContext, command: CloseHistory) -> AnyAnswer:
    """Close a history: what it alone named may be deleted like any orphan from here on."""
    tables = context.tables
    if not is_number(command.records) or not is_number(command.seen_position):
        return Refused(Refusal.MALFORMED, f"{command.records} records")
    if not is_number(command.history, 1):
        return _unknown(command)
    found = tables.execute(
        "SELECT noted_position, closed_ms FROM lost_histories WHERE history = ?",
        (command.history,),
    ).fetchone()
    if found is None:
        return _unknown(command)
    noted_position, closed_ms = found
    if closed_ms is not None:
        return Done()
    if noted_position > command.seen_position:
        return Refused(
            Refusal.HISTORY_GREW,
            f"more of it was found at position {noted_position}, seen was {command.seen_position}",
        )
    outcome = HistoryOutcome.GIVEN_UP if command.give_up else HistoryOutcome.APPENDED
    tables.execute(
        "UPDATE lost_histories SET closed_ms = ?, outcome = ?, records = ? WHERE history = ?",
        (context.time_ms, int(outcome), command.records, command.history),
    )
    tables.set_meta(OPEN_HISTORIES, tables.meta_int(OPEN_HISTORIES) - 1)
    _tell(context, command.history)
    tables.execute(
        "DELETE FROM lost_histories WHERE closed_ms IS NOT NULL AND history NOT IN"
        " (SELECT history FROM lost_histories WHERE closed_ms IS NOT NULL"
        " ORDER BY history DESC LIMIT ?)",
        (CLOSED_KEPT,),
    )
    return Done()


def _leave_lost_numbers(tables: Tables) -> None:
    """Producers, drivers and WAL directories may go on with numbers that the lost rows gave out."""
    for name, counter in COUNTERS.items():
        moved = (tables.meta_int(name) or counter.first) + counter.after_loss
        if counter.after_loss and moved < counter.limit:
            tables.set_meta(name, moved)


def _tell(context: ApplyContext, history: int) -> None:
    row = context.tables.execute(f"{SELECT_HISTORIES} WHERE history = ?", (history,)).fetchone()
    context.changes.append(HistoryChanged(history=history_of_row(row)))


def _unknown(command: CloseHistory) -> Refused:
    return Refused(Refusal.UNKNOWN_HISTORY, f"there is no lost history {command.history}")
