"""Tables in a Spark session: `penstock.spark.register(spark)`, then `SELECT` from each.

Needs the extra `spark`; no jar.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(
    spark: "SparkSession",
    *,
    warehouse: str = "warehouse",
    catalog: str = "penstock",
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Make the format known to a session, and a temporary view of each table of a catalog.

    A view has the table's name; where two namespaces have the same one, NAMESPACE_NAME. All queries
    of a view read the snapshot that is current now, as a DataFrame's do: call this again for newer
    rows, and for tables made since.

    Args:
        warehouse, catalog, properties: as of `penstock pipeline run`.

    Returns:
        The names of the views.

    Raises:
        InvalidRequestError: no such catalog, or a secret among the properties.
    """
    from penstock.pipeline.connector import register as register_format
    from penstock.pipeline.tables.catalog import open_catalog, translated
    from penstock.pipeline.tables.settings import CatalogSettings

    register_format(spark)
    settings = CatalogSettings(warehouse=warehouse, name=catalog, properties=dict(properties or {}))
    with open_catalog(settings) as opened, translated("list tables", catalog):
        found = sorted(
            tuple(identifier)
            for namespace in opened.list_namespaces()
            for identifier in opened.list_tables(namespace)
        )
    last = [identifier[-1] for identifier in found]
    views = []
    for identifier in found:
        view = identifier[-1] if last.count(identifier[-1]) == 1 else "_".join(identifier)
        reader: Any = (
            spark.read.format("penstock")
            .option("view", "table")
            .option("table", ".".join(identifier))
            .option("warehouse", warehouse)
            .option("catalog", catalog)
        )
        if properties:
            reader = reader.option("catalogProperties", json.dumps(dict(properties)))
        reader.load().createOrReplaceTempView(view)
        views.append(view)
    return views
