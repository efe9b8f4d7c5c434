"""A stream of which the driver dies at its first commit: run as a program, in a process of its own.

Arguments: the agent's URL, the topic, the folder that rows come from, the checkpoint's, and when:
`before` the commit is sent (objects are put), or `after` its answer came (Spark has not noted it).
"""

from __future__ import annotations

import sys
from typing import Any

import psutil
from pyspark.sql.types import StructType

from penstock.pipeline.connector.source import PenstockDataSource
from penstock.pipeline.connector.write import StreamWriter
from penstock.pipeline.connector.write_columns import find_columns
from penstock.pipeline.connector.write_options import parse_write_options

WRITER_ID = "dying-"


class DyingWriter(StreamWriter):
    """Ends the JVM, and itself, at its commit."""

    def __init__(self, *parts: Any, when: str) -> None:
        super().__init__(*parts)
        self._when = when

    def commit(self, messages: Any, batchId: int) -> None:
        if self._when == "after":
            super().commit(messages, batchId)
        for process in psutil.Process().parents():
            if process.name() == "java":
                process.kill()


class DyingSource(PenstockDataSource):
    """The format `dying`, with the option `when`."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:
        given = {name: value for name, value in self.options.items() if name != "when"}
        options = parse_write_options(given, streaming=True)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns = find_columns(fields, topic=options.topic)
        return DyingWriter(options, columns, when=self.options["when"])


def main(url: str, topic: str, rows: str, checkpoint: str, when: str) -> None:
    """Start the stream, and die with it."""
    from penstock.pipeline.session import session

    spark = session("local[2]", memory="512m", name="dying")
    spark.dataSource.register(DyingSource)
    query = (
        spark.readStream.format("text")
        .load(rows)
        .writeStream.format("dying")
        .option("url", url)
        .option("topic", topic)
        .option("writerId", WRITER_ID + when)
        .option("when", when)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    from support import dying_writer  # what is pickled must not be of __main__

    dying_writer.main(*sys.argv[1:])
