"""Makes the journal of a restored cluster. See docs/formats/cluster-journal.md."""

import asyncio
import logging

import psycopg

from penstock.model.errors import ConflictError, RetryableError
from penstock.replica.beginning import Beginning, encode_beginning
from penstock.replica.postgres.checks import check_durability
from penstock.replica.postgres.pipeline import connect, raise_lost
from penstock.replica.postgres.settings import PostgresSettings
from penstock.replica.postgres.statements import Statements
from penstock.replica.postgres.tables import open_tables
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


async def begin_journal(
    url: str, *, name: str, beginning: Beginning, settings: PostgresSettings | None = None
) -> None:
    """Make the journal `name` of a database, for a cluster whose first snapshot is put already.

    Args:
        url, name: as for `PostgresJournal.open`.

    Raises:
        ConflictError: there is such a journal, of another cluster.
        RetryableError: the database doesn't answer, twice. The journal is made whole, or not at
            all, which isn't known.
        InvalidRequestError: the database isn't durable.
    """
    settings = settings or PostgresSettings()
    try:
        cluster_id = await _begin(url, name, beginning, settings)
    except RetryableError as error:
        # The answer alone may be lost: a second try then finds this cluster's journal. A restore
        # that ended here would leave a whole cluster and say that there is none.
        heard(Cause.APPEND_ENTRY, error, logger, f"journal {name} is begun once more")
        cluster_id = await _begin(url, name, beginning, settings)
    if cluster_id != beginning.cluster_id:
        raise ConflictError(
            "restore", name, f"another process has just made this journal, of cluster {cluster_id}"
        )


async def _begin(url: str, name: str, beginning: Beginning, settings: PostgresSettings) -> str:
    """The id of the cluster that has the journal, which is made if there was none."""
    statements = Statements(name)

    def first_rows() -> tuple[str, tuple[object, ...]]:
        return statements.begin, (beginning.cluster_id, encode_beginning(beginning))

    connection = await connect(url, timeout_s=settings.connect_timeout_s)
    try:
        async with asyncio.timeout(2 * settings.call_timeout_s):
            await check_durability(connection, allow_fsync_off=settings.allow_fsync_off)
            return await open_tables(connection, statements, name, first_rows)
    except (TimeoutError, psycopg.Error) as error:
        raise_lost("begin journal", error)
    finally:
        connection.pgconn.finish()
