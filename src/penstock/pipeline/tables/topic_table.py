"""Calls that change a topic's table besides its job meet the table here.

A commit goes on top of the newest snapshot, or is planned again.
"""

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from penstock.model.errors import ConflictError, InDoubtError, NotFoundError
from penstock.pipeline.api_messages import TableProgress, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.tables.catalog import load_table, no_table_error
from penstock.pipeline.tables.columns import TYPED_PREFIX
from penstock.pipeline.tables.commit import Change, commit_change, held_by, is_committed
from penstock.pipeline.tables.files import TableFiles, files_options
from penstock.pipeline.tables.offsets import Held
from penstock.pipeline.tables.settings import TableSettings
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


class TopicTable:
    """One table.

    Args:
        operation: what it is met for, for errors.
        cause: under which commits that don't come through are counted.
    """

    def __init__(
        self,
        client: PipelineClient,
        catalog: Catalog,
        settings: TableSettings,
        topic: TopicState,
        *,
        operation: str,
        cause: Cause,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._settings = settings
        self._topic = topic
        self._operation = operation
        self._cause = cause

    def load(self) -> tuple[Table, Held]:
        """Load the newest snapshot, and what of the log it holds.

        Raises:
            NotFoundError: there is no such table.
        """
        # Before the table is loaded: progress that is newer would say more than it holds.
        progress = progress_of(self._client, self._topic.topic_id, self._settings.full_name)
        offsets = None if progress is None else dict(progress.offsets)
        table = self._load()
        return table, held_by(table, self._topic.topic_id, offsets)

    def commit(self, table: Table, change: Change, saying: str) -> bool:
        """Commit on top of a snapshot; return whether the change is in the table.

        Args:
            saying: how the call goes on where another commit was first, for the log.
        """
        try:
            commit_change(table, change)
        except ConflictError as error:
            heard(self._cause, error, logger, saying)
            files = TableFiles(files_options(table.io.properties))
            files.delete([file.url for file in change.added])
            return False
        except InDoubtError as error:
            heard(self._cause, error, logger, "looking whether the commit is there")
            return is_committed(self._load(), change.name) is not None
        return True

    def _load(self) -> Table:
        table = load_table(self._catalog, self._settings.identifier)
        if table is None:
            raise no_table_error(self._operation, self._settings.full_name, self._settings.catalog)
        return table


def progress_of(client: PipelineClient, topic_id: str, table: str) -> TableProgress | None:
    """Return what the cluster knows of a table's progress; None: nothing."""
    rows = client.tables(topic_id)
    return next((row for row in rows if row.table == table), None)


def topic_named(client: PipelineClient, name: str, operation: str) -> TopicState:
    """Return a topic's state. Raises: NotFoundError: no topic has the name."""
    topics = client.topics(names=[name]).topics
    if not topics:
        raise NotFoundError(operation, f"topic {name!r}", "there is no such topic")
    return topics[0]


def place_prefix(table: Table) -> str:
    """Return what the names of a table's columns of partition and offset begin with."""
    return TYPED_PREFIX if f"{TYPED_PREFIX}offset" in table.schema().column_names else ""
