"""Tables with the newest records of their topics, without Spark: as Arrow, and so for DuckDB,
Polars and pandas.

Needs the extra `spark` for its pyarrow and PyIceberg; neither PySpark nor Java takes part.
Documented in docs/tables.md, "One view of table and log".
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression


def read(topic: str, *, url: str | Sequence[str], **options: Any) -> "pa.Table":
    """Return all rows of a topic's table and of the log beyond it. Args and Raises: as `scan`."""
    with scan(topic, url=url, **options) as rows:
        return rows.read_all()


@contextmanager
def scan(
    topic: str,
    *,
    url: str | Sequence[str],
    warehouse: str = "warehouse",
    catalog: str = "penstock",
    properties: Mapping[str, str] | None = None,
    table: str = "",
    registry: str = "",
    columns: Sequence[str] | None = None,
    row_filter: "str | BooleanExpression | None" = None,
    fail_on_data_loss: bool = True,
    secret_file: str = "",
) -> Iterator["pa.RecordBatchReader"]:
    """The rows of a topic's table and of the log beyond it, each record once, in batches.

    What was acknowledged before the call is among them. Until the context ends, retention of the
    topic and expiry of its table's snapshots wait.

    Args:
        topic: its name.
        url: agents' HTTP addresses.
        warehouse, catalog, properties: as of `penstock pipeline run`.
        table: `namespace.table`; by default as the topic's configs say.
        registry: URL of the schema registry, where the table's schemas are a registry's.
        columns: wanted ones, in their order; None: all.
        row_filter: PyIceberg's, or its text: `offset > 100 and key is not null`.
        fail_on_data_loss: whether records that are neither in the table nor in the log any more
            are an error.
        secret_file: of the cluster's secret; else the environment's.

    Raises:
        NotFoundError: there is no such topic or table, or records are lost.
        ConflictError: the table holds other records than the log, or compaction by key has
            cleaned what was being read.
        InvalidRequestError: an option that can't be, or a schema that the table can't follow.
        RetryableError: agents, store or catalog don't answer.
    """
    from penstock.pipeline.client import ClientOptions, PipelineClient
    from penstock.pipeline.tables.settings import CatalogSettings
    from penstock.pipeline.tables.union import UnionSettings
    from penstock.pipeline.tables.union_scan import scan_union

    settings = UnionSettings(
        topic=topic,
        catalog=CatalogSettings(
            warehouse=warehouse, name=catalog, properties=dict(properties or {})
        ),
        table=table,
        registry=registry,
        fails_on_loss=fail_on_data_loss,
    )
    urls = (url,) if isinstance(url, str) else tuple(url)
    with (
        PipelineClient(ClientOptions(urls=urls, secret_file=secret_file)) as client,
        scan_union(client, settings, columns=columns, row_filter=row_filter) as rows,
    ):
        yield rows
