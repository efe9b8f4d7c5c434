"""Tables whose keys and values are bytes, appended to."""

from collections.abc import Sequence

from pyiceberg.table import Table

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.append import AppendItem, append_rows
from penstock.pipeline.tables.columns import raw_schema
from penstock.pipeline.tables.evolution import check_record_columns
from penstock.pipeline.tables.files import files_options
from penstock.pipeline.tables.kinds import Design, Written
from penstock.pipeline.tables.parquet import FileTarget
from penstock.pipeline.tables.partitioning import parse_transforms, partition_spec
from penstock.pipeline.tables.settings import TableSettings
from penstock.pipeline.tables.values import RowPlan


class RawKind:
    """Keys and values as bytes."""

    def __init__(self, settings: TableSettings, client: PipelineClient, engine: Engine) -> None:
        self._settings = settings
        self._client = client
        self._engine = engine

    def design(self, items: Sequence[Sequence[Range]]) -> Design | None:  # noqa: ARG002
        """Always the same columns."""
        schema = raw_schema()
        transforms = parse_transforms(self._settings.partition)
        return Design(schema=schema, spec=partition_spec(schema, transforms))

    def check(self, table: Table) -> None:
        """Raises: InvalidRequestError: a column is gone or another."""
        check_record_columns(
            table.schema(), prefix="", with_value=True, table=".".join(table.name())
        )

    def write(
        self, table: Table, target: FileTarget, items: Sequence[Sequence[Range]]
    ) -> tuple[Table, Written]:
        """See `TableKind.write`."""
        tasks = [
            AppendItem(
                api=self._client.options,
                files=files_options(table.io.properties),
                target=target,
                ranges=list(ranges),
                plan=RowPlan(),
            )
            for ranges in items
        ]
        results = [result for _, result in self._engine.run(append_rows, tasks)]
        added = [file for result in results for file in result.files]
        return table, Written(
            added=added,
            bad=[file for result in results for file in result.bad],
            bytes_read=sum(result.bytes_read for result in results),
            rows=sum(file.row_count for file in added),
        )
