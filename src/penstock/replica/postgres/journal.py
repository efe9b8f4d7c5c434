"""The journal as a table of a PostgreSQL database. See docs/formats/cluster-journal.md.

Connections: one for appends, one for reads, one for hints, one for seals and trims (which wait
for others). Each is made when it is needed and made again when it was lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import psycopg

from penstock.model.errors import NotFoundError
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.beginning import is_beginning
from penstock.replica.postgres.appends import Appends
from penstock.replica.postgres.checks import check_durability
from penstock.replica.postgres.hints import Hints
from penstock.replica.postgres.lane import Lane
from penstock.replica.postgres.pipeline import (
    connect,
    int8,
    raise_lost,
    read_int8,
)
from penstock.replica.postgres.settings import PostgresSettings
from penstock.replica.postgres.statements import Statements
from penstock.replica.postgres.tables import open_tables


class PostgresJournal:
    """Implements `penstock.ports.journal.Journal`."""

    def __init__(
        self, url: str, statements: Statements, settings: PostgresSettings, cluster_id: str
    ) -> None:
        """Use `open`."""
        self.cluster_id = cluster_id
        self._statements = statements
        lane = partial(Lane, url, settings=settings)
        timeouts = (
            f"SET statement_timeout = {round(settings.call_timeout_s * 1000)}",
            f"SET lock_timeout = {settings.lock_timeout_ms}",
        )
        # No statement timeout: on a server with synchronous standbys it would end the wait for
        # them, and what was not replicated would be visible. An append waits for no lock of
        # another.
        self._append_lane = lane(
            statements=[statements.append],
            setup=("SET statement_timeout = 0", f"SET lock_timeout = {settings.lock_timeout_ms}"),
            check=partial(check_durability, allow_fsync_off=settings.allow_fsync_off),
        )
        self._read_lane = lane(
            statements=[statements.read, statements.row, statements.trimmed, statements.head],
            setup=timeouts,
            tells_loss=True,
        )
        self._settle_lane = lane(
            statements=[statements.seal, statements.mark_trimmed, statements.trim], setup=timeouts
        )
        self._hint_lane = lane(statements=[])
        self._hints = Hints(self._hint_lane, statements.channel, settings)
        self._appends = Appends(
            self._append_lane,
            statements.append,
            timeout_s=settings.append_timeout_s,
            on_appended=self._hints.appended,
        )

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        name: str = "penstock",
        new_cluster_id: Callable[[], str] | None = None,
        settings: PostgresSettings | None = None,
    ) -> "PostgresJournal":
        """Open the journal `name` of a database.

        Args:
            url: a libpq URL or connection string; several hosts are allowed.
            name: what its tables begin with.
            new_cluster_id: gives the id if the journal has to be created; None: it must exist.

        Raises:
            RetryableError: the database doesn't answer.
            InvalidRequestError: it isn't durable, or the journal is a newer release's.
            NotFoundError: there is no such journal.
        """
        settings = settings or PostgresSettings()
        statements = Statements(name)
        first_rows = None
        if new_cluster_id is not None:
            first_rows = partial(_first_rows, statements, new_cluster_id)
        connection = await connect(url, timeout_s=settings.connect_timeout_s)
        try:
            async with asyncio.timeout(2 * settings.call_timeout_s):
                await check_durability(connection, allow_fsync_off=settings.allow_fsync_off)
                cluster_id = await open_tables(connection, statements, name, first_rows)
        except (TimeoutError, psycopg.Error) as error:
            raise_lost("open journal", error)
        finally:
            connection.pgconn.finish()
        return cls(url, statements, settings, cluster_id)

    async def append(self, body: bytes) -> int:
        """See `Journal`."""
        assert body, "an empty body is a seal"
        return await self._appends.append(body)

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        """See `Journal`."""
        found = await self._read_lane.call(self._statements.read, [int8(after), int8(limit)])
        rows = [_row(values) for values in found]
        if rows:
            self._hints.read()
        if rows and is_beginning(rows[0].body):
            raise NotFoundError(
                "read journal",
                f"position {rows[0].position}",
                "this restored journal begins after it, with a snapshot",
                "bootstrap from that snapshot",
            )
        if rows and rows[0].position != after + 1:
            # A gap, or a trimmed stretch; the mark was set before rows below it went.
            ((mark,),) = await self._read_lane.call(self._statements.trimmed)
            trimmed = read_int8(mark)
            if after < trimmed:
                raise NotFoundError(
                    "read journal",
                    f"position {after + 1}",
                    f"rows up to {trimmed} have been trimmed",
                    "bootstrap from a snapshot",
                )
        return rows

    async def row(self, position: int) -> JournalRow | None:
        """See `Journal`."""
        found = await self._read_lane.call(self._statements.row, [int8(position)])
        return _row(found[0]) if found else None

    async def head(self) -> JournalHead:
        """See `Journal`."""
        ((position, trimmed, stamp),) = await self._read_lane.call(self._statements.head)
        return JournalHead(read_int8(position), read_int8(trimmed) + 1, read_int8(stamp))

    async def seal(self, positions: Sequence[int]) -> None:
        """See `Journal`."""
        calls = [
            self._settle_lane.call(self._statements.seal, [int8(position)])
            for position in positions
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `Journal`."""
        await self._hints.wait(after, timeout_s)

    def share_among(self, readers: int) -> None:
        """See `Journal`."""
        self._hints.readers = readers

    async def trim(self, up_to: int) -> int:
        """See `Journal`."""
        await self._settle_lane.call(self._statements.mark_trimmed, [int8(up_to)])
        return len(await self._settle_lane.call(self._statements.trim))

    async def close(self) -> None:
        """See `Journal`."""
        self._hints.close()
        self._appends.close()
        for lane in (self._append_lane, self._read_lane, self._settle_lane, self._hint_lane):
            lane.close()


def _first_rows(
    statements: Statements, new_cluster_id: Callable[[], str]
) -> tuple[str, tuple[object, ...]]:
    return statements.insert_info, (new_cluster_id(),)


def _row(values: list[bytes]) -> JournalRow:
    position, stamp, body = values
    return JournalRow(read_int8(position), read_int8(stamp), body)
