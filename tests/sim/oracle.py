"""The truth: one machine in memory that applies the journal's dense prefix, and what must hold.

Agents' replicas are compared with it, and so is what they do to the bucket.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.log.wals.names import read_wal_id
from penstock.order.outcome import Standing
from penstock.ports.device import Device
from penstock.ports.journal import JournalRow
from penstock.replica.beginning import RESTORED_POSITION
from penstock.replica.dump import canonical_dump
from penstock.state.answers import Condemned, Refused
from penstock.state.apply.machine import LogMachine
from penstock.state.changes import HeadMoved, TopicDeleted
from penstock.state.commands import (
    DeleteGroups,
    SetJournalTime,
)
from penstock.state.entries import decode_entry
from penstock.state.levels import level_needed
from penstock.state.meta import LEADER_EPOCH
from penstock.state.rows import HistoryOutcome
from penstock.state.schema import INTEGRITY_LEVEL
from penstock.wal.recovery import find_files
from sim.cleaned import Cleaned
from sim.history import Place
from sim.twin import Twin, names_of

_COUNTS = {
    "live runs": """SELECT key, live_runs, found FROM (
        SELECT o.key, o.live_runs, (SELECT count(*) FROM object_runs AS r
            WHERE r.object_id = o.object_id) AS found FROM objects AS o
        ) WHERE live_runs != found""",
    "bytes": """SELECT partition_key, bytes, found FROM (
        SELECT p.partition_key, p.bytes,
            (SELECT coalesce(sum(length), 0) FROM object_runs AS r
                WHERE r.partition_key = p.partition_key)
            + (SELECT coalesce(sum(length), 0) FROM wal_runs AS w
                WHERE w.partition_key = p.partition_key) AS found
        FROM partitions AS p) WHERE bytes != found""",
}


CLOCKS_AGREE_MS = 5_000


class Oracle:
    """Applies each entry by itself, as no agent does."""

    def __init__(self, world: Any, *, snapshot: Path | None = None, time_ms: int = 0) -> None:
        """
        Args:
            snapshot: the state to begin with, of a restored cluster; None: none.
            time_ms: journal time there.
        """
        self._world = world
        self._journal = world.journal
        self._machine = LogMachine()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        if snapshot is None:
            self._machine.create(self._connection)
        else:
            with closing(sqlite3.connect(snapshot)) as source:
                source.backup(self._connection)
        self._machine.bind(self._connection)
        self.position = 0 if snapshot is None else RESTORED_POSITION
        self.time_ms = time_ms
        self._times_ms: list[tuple[int, int]] = []
        """Positions with journal time there."""
        self._heads: dict[int, tuple[int, int]] = {}
        self._twin = Twin(self._violate)
        self.cleaned = Cleaned(world, self._connection)
        self.entries = 0
        self.refused = 0

    def catch_up(self, *, until: int | None = None) -> None:
        """Apply what became part of the dense prefix, checking each entry.

        Args:
            until: the last position to apply.
        """
        row = self._journal.row_ever(self.position + 1)
        if row is None:
            return
        self._connection.execute("BEGIN")
        try:
            while row is not None:
                self.position = row.position
                self._set_time(row)
                self._times_ms.append((self.position, self.time_ms))
                if row.body:
                    self._apply(row.position, row.body)
                row = None
                if until is None or self.position < until:
                    row = self._journal.row_ever(self.position + 1)
        finally:
            self._connection.execute("COMMIT")

    def position_at(self, time_ms: int, *, until: int) -> int:
        """The last position, at most `until`, whose journal time isn't above a time; 0: none."""
        return max(
            (at for at, at_ms in self._times_ms if at <= until and at_ms <= time_ms), default=0
        )

    def _set_time(self, row: JournalRow) -> None:
        """Journal time at a row, by the rule's words: no single clock moves it."""
        time_ms = max(self.time_ms, row.stamp_ms)
        if self._machine.tables.meta_int("feature_level") >= INTEGRITY_LEVEL:
            time_ms = self.time_ms
            if row.body:
                entry = decode_entry(row.body, position=row.position)
                own_ms = entry.stamp_ms
                time_ms = max(time_ms, min(row.stamp_ms, own_ms + CLOCKS_AGREE_MS))
                for command in entry.commands:
                    if isinstance(command, SetJournalTime) and self._sets_back(
                        command, row, own_ms
                    ):
                        time_ms = command.time_ms
                        break
        found = self._machine.journal_time(self.time_ms, row.stamp_ms, row.body)
        if found != time_ms:
            self._violate("journal-time", f"position {row.position}: {found}, not {time_ms}")
        self.time_ms = time_ms

    def _sets_back(self, command: SetJournalTime, row: JournalRow, own_ms: int) -> bool:
        clocks = (command.time_ms, row.stamp_ms, own_ms)
        agree = max(clocks) - min(clocks) <= CLOCKS_AGREE_MS
        return agree and self.time_ms > command.time_ms + CLOCKS_AGREE_MS

    def _apply(self, position: int, body: bytes) -> None:
        machine = self._machine
        entry = decode_entry(body, position=position)
        if not self._world.is_older:
            # Agents number on from what the journal has lost, until they notice.
            self._twin.journaled(position, entry)
        level = self.feature_level
        outcome = machine.apply(position, self.time_ms, body)
        machine.flush()
        self.entries += 1
        if outcome.standing is not Standing.APPLIED:
            self.refused += 1
            if outcome.standing is Standing.REFUSED and outcome.changes:
                self._violate("refused-changes", f"position {position}")
            return
        for change in outcome.changes:
            if isinstance(change, HeadMoved):
                start, end = self._heads.get(change.partition_key, (0, 0))
                if change.log_start < start or change.next_offset < end:
                    self._violate("head-went-back", f"position {position}: {change}")
                self._heads[change.partition_key] = (change.log_start, change.next_offset)
            elif isinstance(change, TopicDeleted):
                for key in [key for key in self._heads if key >> 20 == change.topic_key]:
                    del self._heads[key]
        self._check_levels(position, entry.commands, level)
        self._twin.applied(position, entry, outcome.answers)
        self._check_named(position, entry.commands, outcome.answers)
        for command, answer in zip(entry.commands, outcome.answers, strict=True):
            self.cleaned.applied(command, answer)
            if isinstance(answer, Condemned):
                for object_key in answer.keys:
                    self._world.bucket.ever_condemned.setdefault(
                        object_key, (position, self.time_ms)
                    )
                self._check_lost(position, answer.keys)
            if isinstance(command, DeleteGroups) and not isinstance(answer, Refused):
                self._note_deleted(command.group_ids)
        if position % 7 == 0:
            self._apply_again(position, body)

    def _check_lost(self, position: int, keys: list[str]) -> None:
        """What only a lost history names is condemned by no command, from when it is noted on until
        an operator closes it."""
        (is_open,) = self._connection.execute(
            "SELECT count(*) FROM lost_histories WHERE outcome = ?", (int(HistoryOutcome.OPEN),)
        ).fetchone()
        if not is_open:
            return
        for key in keys:
            if key in self._world.lost_live and not self.has_named(key):
                self._violate("lost-history-deleted", f"position {position} condemns {key}")

    def _note_deleted(self, group_ids: list[str]) -> None:
        for group_id in group_ids:
            row = self._connection.execute("SELECT 1 FROM groups WHERE group_id = ?", (group_id,))
            if row.fetchone() is None:
                self._world.history.group_lives[group_id] += 1
                self._world.history.count("group expired")

    def _check_named(self, position: int, commands: list[Any], answers: list[Any]) -> None:
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, Refused):
                continue
            for key in names_of(command, answer):
                if key not in self._world.bucket.ever_put:
                    self._violate("named-before-durable", f"position {position}: {key}")

    def _check_levels(self, position: int, commands: list[Any], level: int) -> None:
        """An older release can't decode a command of a level that was not on."""
        for command in commands:
            if level_needed(command) > max(1, level):
                name = type(command).__name__
                self._violate("above-level", f"position {position}: {name} at level {level}")

    def _apply_again(self, position: int, body: bytes) -> None:
        """An entry that comes twice is as one that comes once."""
        before = self._connection.total_changes
        outcome = self._machine.apply(position, self.time_ms, body)
        self._machine.flush()
        if outcome.standing is not Standing.REPEATED or outcome.changes:
            self._violate("applied-twice", f"position {position}: {outcome.standing}")
        if self._connection.total_changes != before:
            self._violate("applied-twice", f"position {position} changed rows")

    def deleting(self, key: str) -> None:
        """An agent deletes an object from the bucket."""
        self.catch_up()
        row = self._connection.execute(
            "SELECT live_runs, condemned_position, condemned_ms FROM objects WHERE key = ?", (key,)
        ).fetchone()
        # A row is forgotten once its object is gone. A put that its caller gave up may take effect
        # after that: an orphan, which may be condemned again. A delete that comes late, or again,
        # may take it by the first condemnation.
        first = self._world.bucket.ever_condemned.get(key)
        if row is None:
            if first is None and key.startswith(self._world.segments_prefix):
                self._violate("deleted-uncondemned", key)
            return
        live_runs, *condemned = row
        if None in condemned:
            self._violate("deleted-uncondemned", f"{key}, {live_runs} runs in it")
        if live_runs:
            self._violate("deleted-named", f"{key}, {live_runs} runs in it")
        # Journal time that is set back lowers the row's.
        condemned_position, condemned_ms = map(min, first, condemned)
        if self._world.clocks.may_be_wrong:
            return
        waited_ms = self._world.clock.now_ms() - condemned_ms
        if waited_ms < self._world.grace_ms - self._world.skew_allowed_ms:
            self._violate("deleted-early", f"{key}, {waited_ms} ms after it was condemned")
        if waited_ms < self._world.restore_window_ms - self._world.skew_allowed_ms:
            self._violate("deleted-in-window", f"{key}, {waited_ms} ms after it was condemned")

        (held,) = self._connection.execute(
            "SELECT count(*) FROM pipeline_jobs WHERE opened_position <= ?", (condemned_position,)
        ).fetchone()
        # A journal that came back older may have lost that the job was closed.
        if held and not self._world.is_older:
            self._violate("deleted-held", f"{key}, {held} open jobs may read it")

    def is_condemned(self, key: str) -> bool:
        """Whether an object is condemned, as of the entry that was applied last."""
        row = self._connection.execute(
            "SELECT condemned_position FROM objects WHERE key = ?", (key,)
        ).fetchone()
        return row is not None and row[0] is not None

    def input_gone(self, job: int, key: str) -> None:
        """A job didn't find an object that it had listed: it must have been closed before."""
        self.catch_up()
        if job in self._twin.jobs:
            self._violate("deleted-held", f"{key}, which job {job} reads")

    def log_start(self, place: Place) -> int:
        """Of a partition."""
        (start,) = self._connection.execute(
            "SELECT log_start FROM partitions WHERE partition_key ="
            " (SELECT topic_key FROM topics WHERE name = ?) << 20 | ?",
            place,
        ).fetchone()
        return int(start)

    def is_emptied(self, wal_id: bytes, *, but_by: int) -> bool:
        """Whether nothing is named in a WAL, and nothing can be any more by an agent: another's
        it is."""
        self.catch_up()
        row = self._connection.execute(
            "SELECT wal_key FROM wals WHERE wal_id = ? AND agent != ?", (wal_id, but_by)
        ).fetchone()
        if row is None:
            return False
        (named,) = self._connection.execute(
            "SELECT count(*) FROM wal_runs WHERE generation >> 32 = ?", row
        ).fetchone()
        return not named

    def check_wal(self, device: Device, owner: str) -> None:
        """Each file of a WAL in which the journal names something is there, and no other in its
        place."""
        self.catch_up()
        wal_id = read_wal_id(device)
        rows = self._connection.execute(
            "SELECT DISTINCT generation & 4294967295 FROM wal_runs WHERE generation >> 32 ="
            " (SELECT wal_key FROM wals WHERE wal_id = ?)",
            (wal_id,),
        ).fetchall()
        found = {file.header.generation for file in find_files(device) if file.header}
        lost = sorted({generation for (generation,) in rows} - found)
        if lost:
            self._violate("wal-lost", f"generations {lost} of {owner}'s WAL, which has {found}")

    def wal_places(self) -> list[tuple[int, tuple[int, int, int, int]]]:
        """What the journal names in WALs, the newest last: its owner, and WAL, generation, position
        and length."""
        rows = self._connection.execute(
            "SELECT w.agent, w.wal_key, r.generation & 4294967295, r.position, r.length"
            " FROM wal_runs AS r JOIN wals AS w ON w.wal_key = r.generation >> 32"
            " ORDER BY r.generation, r.position"
        )
        return [(agent, (wal, number, at, length)) for agent, wal, number, at, length in rows]

    def missing_objects(self) -> list[str]:
        """Objects that runs lie in and that the bucket hasn't got."""
        rows = self._connection.execute(
            "SELECT key FROM objects WHERE live_runs > 0 ORDER BY key"
        ).fetchall()
        return [key for (key,) in rows if not self._world.has_object(key)]

    def check_runs(self) -> None:
        """Runs of each partition lie side by side from its start to its end, without overlap; where
        it was cleaned by key there may be gaps."""
        clean_ends = dict(
            self._connection.execute("SELECT partition_key, clean_end FROM clean").fetchall()
        )
        runs: dict[int, list[tuple[int, int]]] = {}
        for table in ("wal_runs", "object_runs"):
            for key, base, end in self._connection.execute(
                f"SELECT partition_key, base_offset, end_offset FROM {table}"
            ):
                runs.setdefault(key, []).append((base, end))
        for key, start, end in self._connection.execute(
            "SELECT partition_key, log_start, next_offset FROM partitions"
        ).fetchall():
            expected = None
            clean_end = clean_ends.get(key, -1)
            for base, after in sorted(runs.get(key, [])):
                if expected is not None and not expected <= base <= max(expected, clean_end):
                    self._violate("runs-gap", f"partition {key}: {base} where {expected} was due")
                if expected is None and base > max(start, clean_end):
                    self._violate("runs-gap", f"partition {key}: starts at {base}, not {start}")
                expected = after
            if expected is None and start != end:
                self._violate("runs-gap", f"partition {key}: no runs from {start} to {end}")
            if expected is not None and expected != end:
                self._violate("runs-gap", f"partition {key}: runs end at {expected}, not {end}")

    def check_counts(self) -> None:
        """Bytes of partitions and runs of objects are counted as they are."""
        for what, statement in _COUNTS.items():
            wrong = self._connection.execute(statement).fetchall()
            if wrong:
                self._violate("counts", f"{what} (key, noted, found): {wrong[:3]}")

    @property
    def feature_level(self) -> int:
        """What is on."""
        self._machine.tables.ensure_loaded()
        return int(self._machine.tables.meta_int("feature_level"))

    def live_objects(self) -> set[str]:
        """Keys of the objects in which runs lie."""
        self.catch_up()
        rows = self._connection.execute("SELECT key FROM objects WHERE live_runs > 0")
        return {key for (key,) in rows}

    def has_named(self, key: str) -> bool:
        """Whether an entry that was applied has named an object."""
        return key in self._twin.named

    def bounds(self, place: Place) -> tuple[int, int] | None:
        """Log start and end of a partition; None: there is none."""
        found: tuple[int, int] | None = self._connection.execute(
            "SELECT log_start, next_offset FROM partitions WHERE partition_key ="
            " (SELECT topic_key FROM topics WHERE name = ?) << 20 | ?",
            place,
        ).fetchone()
        return found

    def places(self) -> list[Place]:
        """All partitions, by topic and number."""
        return self._connection.execute(
            "SELECT t.name, p.partition_key & 1048575 FROM partitions AS p"
            " JOIN topics AS t ON t.topic_key = p.partition_key >> 20 ORDER BY 1, 2"
        ).fetchall()

    def partition_count(self, topic: str) -> int:
        """Of a topic; 0: there is none."""
        row = self._connection.execute("SELECT partitions FROM topics WHERE name = ?", (topic,))
        found = row.fetchone()
        return int(found[0]) if found else 0

    @property
    def leader_epoch(self) -> int:
        """Of all partitions."""
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (LEADER_EPOCH,))
        found = row.fetchone()
        return int(found[0]) if found else 0

    def committed(self, group_id: str, place: Place) -> int:
        """A group's committed offset; -1: none."""
        row = self._connection.execute(
            "SELECT committed_offset FROM group_offsets WHERE group_id = ? AND partition = ?"
            " AND topic_id = (SELECT topic_id FROM topics WHERE name = ?)",
            (group_id, place[1], place[0]),
        )
        found = row.fetchone()
        return int(found[0]) if found else -1

    def group_offsets(self, group_id: str) -> dict[tuple[bytes, int], int]:
        """A group's committed offsets."""
        rows = self._connection.execute(
            "SELECT topic_id, partition, committed_offset FROM group_offsets WHERE group_id = ?",
            (group_id,),
        )
        return {(topic_id, partition): offset for topic_id, partition, offset in rows}

    def shard_epoch(self, group_id: str) -> int:
        """Of a group's shard."""
        return self._twin.shard_epoch(group_id)

    def dump(self) -> list[bytes]:
        """The canonical dump."""
        return list(canonical_dump(self._connection))

    def rows(self, selects: dict[str, str]) -> dict[str, list[tuple[Any, ...]]]:
        """What each of several queries gives."""
        return {
            name: self._connection.execute(select).fetchall() for name, select in selects.items()
        }

    def digest(self) -> str:
        """Of the dump."""
        return hashlib.sha256(b"".join(self.dump())).hexdigest()

    def _violate(self, kind: str, detail: str) -> None:
        self._world.history.violate(kind, detail)
