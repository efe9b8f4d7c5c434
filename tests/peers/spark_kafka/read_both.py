"""A program: the rows of a topic as Spark's Kafka source gives them, and as ours does, compared.

    read_both.py BOOTSTRAP URL TOPIC JARS

Batch and stream each, with headers. Prints what was compared as JSON; ends with 1 and the rows
that differ if any do. Runs on the pyspark that PYTHONPATH names first.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.pipeline.session import session


def main() -> None:
    bootstrap, url, topic, jars = sys.argv[1:]
    conf = {"spark.jars": ",".join(map(str, Path(jars).glob("*.jar")))}
    spark = session("local[2]", memory="1g", conf=conf)
    formats = {
        "kafka": {"kafka.bootstrap.servers": bootstrap},
        "penstock": {"url": url},
    }
    common = {"subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}

    def batch(name: str, **more: str) -> tuple[Any, list[str]]:
        frame = spark.read.format(name).options(**formats[name], **common, **more).load()
        return frame.schema, sorted(map(repr, frame.collect()))

    def stream(name: str) -> list[str]:
        rows: list[str] = []
        frame = spark.readStream.format(name).options(**formats[name], **common)
        frame = frame.option("maxOffsetsPerTrigger", "100").load()
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.foreachBatch(
                lambda part, _: rows.extend(map(repr, part.collect()))
            )
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.start().awaitTermination()
        return sorted(rows)

    some = json.dumps({topic: {"0": 7, "1": 0}})
    compared = {
        "schema": [batch(name)[0].simpleString() for name in formats],
        "batch": [batch(name)[1] for name in formats],
        "range": [batch(name, endingOffsets=some)[1] for name in formats],
        "stream": [stream(name) for name in formats],
    }
    spark.stop()
    for what, (theirs, ours) in compared.items():
        if theirs != ours:
            wrong = sorted(set(theirs) ^ set(ours))[:4]
            sys.exit(f"{what}: {len(theirs)} and {len(ours)}: {wrong}")
    print(json.dumps({what: len(theirs) for what, (theirs, _) in compared.items()}))


if __name__ == "__main__":
    main()
