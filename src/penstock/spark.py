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
    url: str = "",
    registry: str = "",
) -> list[str]:
    """Make the format known to a session, and a temporary view of each table of a catalog.

    A view has the table's name; where two namespaces have the same one, NAMESPACE_NAME. All queries
    of a view read the snapshot that is current now, as a DataFrame's do: call this again for newer
    rows, and for tables made since.

    Args:
        warehouse, catalog, properties: as of `penstock pipeline run`.
        url: agents' HTTP addresses, with commas between: then the views of topics' tables have
            what the logs hold beyond them, too (docs/tables.md, "One view of table and log").
        registry: URL of the schema registry, for such views of tables of its schemas.

    Returns:
        The names of the views.

    Raises:
        InvalidRequestError: no such catalog, or a secret among the properties.
        AnalysisException: with `url`, a view can't be pinned: its topic is gone, for example.
    """
    from penstock.pipeline.connector import register as register_format
    from penstock.pipeline.tables.catalog import TOPIC_PROPERTY, open_catalog, translated
    from penstock.pipeline.tables.settings import CatalogSettings

    register_format(spark)
    settings = CatalogSettings(warehouse=warehouse, name=catalog, properties=dict(properties or {}))
    with open_catalog(settings) as opened, translated("list tables", catalog):
        found = sorted(
            tuple(identifier)
            for namespace in opened.list_namespaces()
            for identifier in opened.list_tables(namespace)
        )
        topics = {
            identifier: opened.load_table(identifier).properties.get(TOPIC_PROPERTY, "")
            for identifier in (found if url else ())
        }
    last = [identifier[-1] for identifier in found]
    views = []
    for identifier in found:
        view = identifier[-1] if last.count(identifier[-1]) == 1 else "_".join(identifier)
        reader: Any = (
            spark.read.format("penstock")
            .option("view", "table+log" if topics.get(identifier) else "table")
            .option("table", ".".join(identifier))
            .option("warehouse", warehouse)
            .option("catalog", catalog)
        )
        if topics.get(identifier):
            reader = reader.option("subscribe", topics[identifier]).option("url", url)
            reader = reader.option("registry", registry)
        if properties:
            reader = reader.option("catalogProperties", json.dumps(dict(properties)))
        reader.load().createOrReplaceTempView(view)
        views.append(view)
    return views
