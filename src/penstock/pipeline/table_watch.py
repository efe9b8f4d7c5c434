"""Knows how far each table is, for `penstock pipeline run`, by looks at the journal."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import TableProgress, Topics
from penstock.pipeline.lag import Behind, Lags
from penstock.pipeline.table_plan import has_table
from penstock.pipeline.tables.settings import TableSettings, resolve
from penstock.pipeline.tables.table_state import UNKNOWN, TableState, decode_state
from penstock.ports.clock import Clock

BEHIND_RECORDS: Final = "penstock_pipeline_table_behind_records"
BEHIND_SECONDS: Final = "penstock_pipeline_table_behind_seconds"
ROWS: Final = "penstock_pipeline_table_rows"
FILES: Final = "penstock_pipeline_table_files"
SNAPSHOTS: Final = "penstock_pipeline_table_snapshots"
BAD_RECORDS: Final = "penstock_pipeline_table_bad_records"
BAD_SHARE: Final = "penstock_pipeline_table_bad_share"
CONFLICTS: Final = "penstock_pipeline_table_commit_conflicts"


@dataclass(frozen=True, slots=True)
class Lag:
    """The table that is furthest behind; "" where there is none, or none is behind."""

    table: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The table with the greatest share of dead letters of late; "" where there were none.

    `share`: from 0 to 1, of `records`, which the table has followed within `WINDOW_S`.
    """

    table: str
    share: float
    records: int


NO_DEAD_LETTERS: Final = DeadLetters("", 0.0, 0)
WINDOW_S: Final = 3600.0
_SAMPLE_S: Final = 60.0


class _Counts:
    """Keeps a table's counts of followed and set aside records, minute by minute."""

    __slots__ = ("_at", "_last")

    def __init__(self) -> None:
        self._at: deque[tuple[float, int, int]] = deque()
        self._last = (0, 0)

    def look(self, now_s: float, state: TableState) -> None:
        self._last = state.followed, state.set_aside
        if self._at and state.followed < self._at[-1][1]:
            # A table that was made again counts from 0.
            self._at.clear()
        if not self._at or now_s - self._at[-1][0] >= _SAMPLE_S:
            self._at.append((now_s, *self._last))
        # One sample of the window's begin or before it is what the counts are compared with.
        while len(self._at) > 1 and self._at[1][0] <= now_s - WINDOW_S:
            self._at.popleft()

    def of_late(self, table: str) -> DeadLetters:
        _, followed, set_aside = self._at[0]
        records = self._last[0] - followed
        bad = self._last[1] - set_aside
        return DeadLetters(table, bad / records, records) if records and bad else NO_DEAD_LETTERS


class TableWatch:
    """Looks at all tables that the topics' configs ask for. Any thread.

    Args:
        registry: of schemas, as jobs have it.
    """

    def __init__(self, clock: Clock, *, registry: str = "") -> None:
        self._clock = clock
        self._registry = registry
        self._lock = threading.Lock()
        self._lags = Lags()
        self._behind: dict[str, Behind] = {}
        self._states: dict[str, TableState] = {}
        self._counts: dict[str, _Counts] = {}
        self._looked_s = clock.monotonic_s()

    def look(self, topics: Topics, rows: Sequence[TableProgress]) -> None:
        """Note how far topics and tables are now.

        Args:
            rows: asked for before `topics`: what a table has come to since would look like a log
                that went back.
        """
        now_s = self._clock.monotonic_s()
        known = {(row.topic_id, row.table): row for row in rows}
        with self._lock:
            behind: dict[str, Behind] = {}
            states: dict[str, TableState] = {}
            for topic in topics.topics:
                if not has_table(topic):
                    continue
                given = TableSettings(topic=topic.name, registry=self._registry)
                try:
                    name = resolve(given, topic.configs).full_name
                except InvalidRequestError:
                    # Its job fails, and says why; its records wait all the same.
                    name = topic.name
                row = known.get((topic.topic_id, name))
                if row is not None:
                    states[name] = decode_state(row.state)
                behind[name] = self._lags.look(
                    name,
                    now_s=now_s,
                    starts=[state.log_start for state in topic.partitions],
                    ends=[state.high_watermark for state in topic.partitions],
                    held={} if row is None else dict(row.offsets),
                    held_for_s=None
                    if row is None or not row.time_ms
                    else max(0, topics.time_ms - row.time_ms) / 1000,
                )
            self._lags.keep(behind)
            self._counts = {name: self._counts.get(name) or _Counts() for name in states}
            for name, state in states.items():
                self._counts[name].look(now_s, state)
            self._behind, self._states, self._looked_s = behind, states, now_s

    def lags(self) -> dict[str, Behind]:
        """Return each table's lag now, as if it lacked still what it lacked at the last look."""
        with self._lock:
            since_s = self._clock.monotonic_s() - self._looked_s
            return {
                name: Behind(found.records, found.seconds + since_s) if found.records else found
                for name, found in self._behind.items()
            }

    def oldest(self) -> Lag:
        """The longest lag of all tables."""
        lags = self.lags()
        name = max(lags, key=lambda name: lags[name].seconds, default="")
        if not name or not lags[name].records:
            return Lag("", 0.0)
        return Lag(name, lags[name].seconds)

    def dead_letters(self) -> DeadLetters:
        """The greatest share of dead letters of all tables, since this process began at most."""
        with self._lock:
            found = [counts.of_late(name) for name, counts in self._counts.items()]
        return max(found, key=lambda one: one.share, default=NO_DEAD_LETTERS)

    def silent_s(self) -> float:
        """Return for how long no agent has said how far topics and tables are."""
        with self._lock:
            return self._clock.monotonic_s() - self._looked_s

    def figures(self) -> dict[str, dict[str, float]]:
        """Gauges, by metric and table."""
        lags = self.lags()
        with self._lock:
            states = self._states
        sizes = {
            ROWS: {name: state.rows for name, state in states.items()},
            FILES: {name: state.files for name, state in states.items()},
            SNAPSHOTS: {name: state.snapshots for name, state in states.items()},
        }
        return {
            **{
                metric: {name: float(count) for name, count in found.items() if count != UNKNOWN}
                for metric, found in sizes.items()
            },
            BAD_RECORDS: {name: state.bad_records for name, state in states.items()},
            BAD_SHARE: {name: state.bad_share for name, state in states.items()},
            CONFLICTS: {name: state.conflicts for name, state in states.items()},
            BEHIND_RECORDS: {name: found.records for name, found in lags.items()},
            BEHIND_SECONDS: {name: found.seconds for name, found in lags.items()},
        }
