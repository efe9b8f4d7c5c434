"""Prepares a restored state so that nothing which it gives out was, or will be, given out by
its parent or by another restore of the same backup.

Counters go on at a random place above where they stood: two restores that know nothing of each
other have nothing else to tell them apart, and a clock that stands wrong changes nothing. Epochs
must rise from restore to restore, so they are the restore's time.
"""

import sqlite3
from typing import Final

from penstock.model.epochs import epoch_floor
from penstock.ports.random import Random
from penstock.replica.database import state_position
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.jobs import leave_jobs_behind
from penstock.state.apply.machine import LogMachine
from penstock.state.apply.transactions import abort
from penstock.state.leader_epochs import begin_leader_epoch
from penstock.state.meta import COUNTERS, EPOCH_FLOOR, HISTORIES, Counter
from penstock.state.migration import migrate
from penstock.state.schema import FORMAT_VERSION

_SHARE_BITS: Final = 8
"""A restore moves a counter by at most this share of what is left (1/256), and by at least half of
that: a log may be restored from a restored one a thousand times."""


def begin_restored(connection: sqlite3.Connection, *, now_ms: int, random: Random) -> None:
    """Separate a restored state from its parent. Brings a state of an older format version to this
    one first. The caller commits.

    Args:
        now_ms: time of the restore.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    migrate(connection, version)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    floor = epoch_floor(now_ms)
    begin_leader_epoch(connection, floor=floor)
    _raise_agents_epochs(connection, floor)
    leave_jobs_behind(connection)
    connection.execute("DELETE FROM lost_histories")
    # A round of the parent's agents; positions begin again.
    connection.execute("DELETE FROM digests")
    for name in sorted(HISTORIES):
        connection.execute("DELETE FROM meta WHERE name = ?", (name,))
    for name, counter in COUNTERS.items():
        found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        value = counter.first if found is None else found[0]
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            (name, _place_of_its_own(counter, value, random)),
        )
    # Last: markers are of the new leader epoch, a new producer id of the new place.
    _abort_open_transactions(connection)


def _place_of_its_own(counter: Counter, value: int, random: Random) -> int:
    share = (counter.limit - value) >> _SHARE_BITS
    return value + share - random.below(share // 2 + 1)


def _abort_open_transactions(connection: sqlite3.Connection) -> None:
    """End what was open at the moment, and fence its producers: in the parent it may have been
    committed since, and nothing of that is known here."""
    machine = LogMachine()
    machine.bind(connection)
    machine.tables.ensure_loaded()
    if ongoing := machine.tables.transactions.ongoing():
        position, time_ms = state_position(connection)
        context = ApplyContext(machine.tables, position, time_ms, agent=0, epoch=0)
        for row in ongoing:
            abort(context, row)
        machine.flush()
    # Positions may begin again, and no connection of the parent comes here.
    connection.execute("UPDATE transactions SET changed_position = 0")


def _raise_agents_epochs(connection: sqlite3.Connection, floor: int) -> None:
    """No entry of the parent's agents can ever be one of the restored log's, however many epochs
    they have opened since the moment."""
    (epoch,) = connection.execute("SELECT coalesce(max(epoch), 0) FROM agents").fetchone()
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name)"
        " DO UPDATE SET value = max(value, excluded.value)",
        (EPOCH_FLOOR, max(epoch, floor)),
    )
