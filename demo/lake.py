"""The demo's second half: the topic becomes an Iceberg table, Spark SQL reads it, the topic is
compacted by key and read again. Spark runs on the Java of a wheel; nothing else is installed.

What it shows, on what demo/flights.py has produced:
1. the topic becomes an Iceberg table, written by Spark's executors and committed with its offsets;
2. the same command again adds nothing;
3. Spark SQL's table of delays per carrier equals the one that is computed from the data;
4. the topic is compacted by key: what is left is the last flight of each carrier, at the offset
   that it always had.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

FIELDS = "carrier string, dep_delay int, arr_delay int"
QUERY = """
    SELECT f.carrier AS carrier, count(*) AS flights,
           count(f.dep_delay) AS departures, coalesce(sum(f.dep_delay), 0) AS departure_sum,
           count(f.arr_delay) AS arrivals, coalesce(sum(f.arr_delay), 0) AS arrival_sum,
           count_if(f.arr_delay > {late}) AS late
    FROM (SELECT from_json(string(value), '{fields}') AS f FROM flights)
    GROUP BY f.carrier ORDER BY f.carrier
"""
COMPACTED_SECONDS_MAX = 300


def run(
    bootstrap: str,
    url: str,
    topic: str,
    *,
    straight: Mapping[str, Any],
    last: Mapping[str, tuple[int, int]],
    late_minutes: int,
) -> bool:
    """Do all of it; whether all is as it must be.

    Args:
        url: of the server's HTTP port.
        straight: delays per carrier, computed from the data.
        last: per carrier, partition and offset of its last flight.
    """
    from penstock.pipeline.client import ClientOptions, PipelineClient
    from penstock.pipeline.session import session
    from penstock.pipeline.spark_engine import SparkEngine
    from penstock.pipeline.tables.job import run_table_once
    from penstock.pipeline.tables.settings import CatalogSettings, TableSettings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-demo-lake-") as warehouse,
            PipelineClient(ClientOptions(urls=(url,))) as client,
        ):
            engine = SparkEngine(spark)
            settings = TableSettings(topic=topic, catalog=CatalogSettings(warehouse=warehouse))
            began = time.monotonic()
            made = run_table_once(client, engine, settings)
            print(
                f"Iceberg table {made.table}: {made.rows:,} rows in {made.files} files, "
                f"{time.monotonic() - began:.1f} s on Spark"
            )
            again = run_table_once(client, engine, settings)
            found = delays(spark, settings, late_minutes)
            same = same_delays(found, straight) and again.rows == 0
            print(
                "Spark SQL's delays per carrier from the table "
                + ("are those of the data." if same else "DIFFER from the data's.")
            )
            return compacted(bootstrap, client, engine, topic, last) and same
    finally:
        spark.stop()


def delays(spark: SparkSession, settings: Any, late_minutes: int) -> list[Any]:
    """Per carrier, by Spark SQL over the table's files."""
    from penstock.pipeline.tables.catalog import load_table, open_catalog

    with open_catalog(settings.catalog) as catalog:
        table = load_table(catalog, settings.identifier)
        assert table is not None
        files = [task.file.file_path for task in table.scan().plan_files()]
    spark.read.parquet(*files).createOrReplaceTempView("flights")
    return spark.sql(QUERY.format(late=late_minutes, fields=FIELDS)).collect()


def same_delays(found: list[Any], straight: Mapping[str, Any]) -> bool:
    """Whether Spark's sums are those of the data."""
    names = ("flights", "departures", "departure_sum", "arrivals", "arrival_sum", "late")
    theirs = {row["carrier"]: tuple(row[name] for name in names) for row in found}
    ours = {
        carrier: tuple(getattr(delay, name) for name in names)
        for carrier, delay in straight.items()
    }
    return theirs == ours


def compacted(
    bootstrap: str, client: Any, engine: Any, topic: str, last: Mapping[str, tuple[int, int]]
) -> bool:
    """Compact the topic by key, and read it again."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    from penstock.pipeline.compaction.items import CompactionSettings
    from penstock.pipeline.compaction.job import compact

    changes = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changes.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    # Compaction waits for what is still in the WAL, which moves within moments.
    deadline = time.monotonic() + COMPACTED_SECONDS_MAX
    before = dropped = 0
    while True:
        summary = compact(client, engine, CompactionSettings(), names=[topic])
        before = max(before, summary.runs_before)
        dropped += summary.dropped_records
        left = read(bootstrap, topic)
        if len(left) <= len(last) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    same = left == dict(last)
    print(
        f"compacted by key: {dropped:,} flights were left out, {len(left)} are read again, "
        + ("the last of each carrier." if same else "which is NOT the last of each carrier.")
    )
    return same


def read(bootstrap: str, topic: str) -> dict[str, tuple[int, int]]:
    """By carrier, partition and offset; a second record of a carrier has a name of its own."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-again",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: dict[str, tuple[int, int]] = {}
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(60)
            if message is None:
                raise TimeoutError(f"{topic} could not be read again")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    raise KafkaException(error)
                ended.add(message.partition())
                continue
            name = message.key().decode()
            while name in found:
                name += "'"
            found[name] = message.partition(), message.offset()
        return found
    finally:
        consumer.close()
