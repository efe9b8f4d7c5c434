"""Iceberg's own procedures on a table: run by the Python of Spark 4.1, told about in JSON.

python tests/peers/native_iceberg.py WAREHOUSE TABLE JAR...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.pipeline.session import session

CATALOG = "spark.sql.catalog.penstock"


def main(warehouse: str, table: str, *jars: str) -> None:
    """Read, rewrite, expire, read again."""
    spark = session(
        "local[2]",
        conf={
            "spark.jars": ",".join(jars),
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            CATALOG: "org.apache.iceberg.spark.SparkCatalog",
            f"{CATALOG}.type": "jdbc",
            f"{CATALOG}.uri": f"jdbc:sqlite:{Path(warehouse) / 'catalog.db'}",
            f"{CATALOG}.warehouse": Path(warehouse).as_uri(),
            "spark.sql.session.timeZone": "UTC",
        },
    )
    # With the catalog's name, which is that of the namespace, too: procedures take a first part
    # that is a catalog's for one.
    name = f"penstock.{table}"
    before = spark.sql(f"SELECT key, value FROM {name}").collect()
    rewritten = spark.sql(
        f"CALL penstock.system.rewrite_data_files(table => '{name}', "
        "options => map('rewrite-all', 'true'))"
    ).collect()[0]
    snapshots = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").count()
    spark.sql(
        f"CALL penstock.system.expire_snapshots(table => '{name}', "
        "older_than => TIMESTAMP '2200-01-01', retain_last => 1)"
    ).collect()
    after = spark.sql(f"SELECT key, value FROM {name}").collect()
    told = {
        "before": sorted([bytes(row.key).decode(), bytes(row.value).decode()] for row in before),
        "after": sorted([bytes(row.key).decode(), bytes(row.value).decode()] for row in after),
        "rewritten": rewritten.rewritten_data_files_count,
        "added": rewritten.added_data_files_count,
        "snapshots": [snapshots, spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").count()],
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
