"""A stream of table and log into files, run as a program, to be killed.

Arguments: the agent's URL, the topic, the warehouse, the folder of the files, the checkpoint's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(
    spark: SparkSession, url: str, topic: str, warehouse: str, out: str, checkpoint: str
) -> Any:
    """Start the stream, in small batches. Returns: the writer of its files, to be started."""
    return (
        spark.readStream.format("penstock")
        .option("view", "table+log")
        .option("url", url)
        .option("subscribe", topic)
        .option("warehouse", warehouse)
        .option("maxOffsetsPerTrigger", "8")
        .load()
        .select("partition", "offset")
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
    )


def main(*places: str) -> None:
    """Stream until the end of the process."""
    from penstock.pipeline.connector import register
    from penstock.pipeline.session import session

    spark = session("local[2]", memory="512m", name="streamer")
    register(spark)
    start(spark, *places).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
