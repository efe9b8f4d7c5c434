"""Filters of a view of table and log are heeded on both sides, as far as no row is lost by it."""

from __future__ import annotations

from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThan
from pyspark.sql import datasource as spark

from penstock.pipeline.api_messages import Range
from penstock.pipeline.connector.union_filters import union_filters

TOPIC = "0" * 32


def test_places_cut_the_logs_part_by_the_names_of_the_table() -> None:
    filters = [
        spark.EqualTo(("kafka_partition",), 1),
        spark.GreaterThan(("kafka_offset",), 9),
        # A column of the value, whatever it is called.
        spark.EqualTo(("partition",), 7),
        spark.EqualTo(("kafka_headers", "partition"), 7),
    ]
    found = union_filters(filters, prefix="kafka_", is_upsert=False)
    assert found.cut(Range(TOPIC, 0, 0, 50)) is None
    assert found.cut(Range(TOPIC, 1, 5, 50)) == Range(TOPIC, 1, 10, 50)
    assert found.cut(Range(TOPIC, 1, 5, 10)) is None


def test_of_keys_only_what_is_about_the_key_is_heeded() -> None:
    filters = [
        spark.EqualTo(("key",), b"k"),
        spark.GreaterThan(("offset",), 9),
        spark.EqualTo(("value",), b"v"),
    ]
    found = union_filters(filters, prefix="", is_upsert=True)
    assert found.rows == EqualTo("key", b"k")
    assert found.cut(Range(TOPIC, 0, 0, 5)) == Range(TOPIC, 0, 0, 5)
    both = union_filters(filters[:2], prefix="", is_upsert=False)
    assert both.rows == And(EqualTo("key", b"k"), GreaterThan("offset", 9))
    assert union_filters([], prefix="", is_upsert=False).rows == AlwaysTrue()
