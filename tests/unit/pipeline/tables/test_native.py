"""When Iceberg's own procedures are asked for, and what follows where one fails.

The session here answers as Spark with Iceberg's runtime does, and expires by PyIceberg: the
procedures themselves are tested with Spark 4.1 (tests/peers/test_native_iceberg.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.model.errors import RetryableError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.maintenance import Maintenance, MaintenanceSummary, maintain_table
from penstock.pipeline.tables.native import join_natively
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from support.api_server import ApiServer
from support.tables import Lake, follow, produce_values


class Row(dict[str, Any]):
    def asDict(self) -> dict[str, Any]:
        return dict(self)


class Session:
    """Expires all snapshots but the current one; or fails with `failure`."""

    def __init__(self, lake: Lake, topic: str, failure: str = "") -> None:
        self._lake = lake
        self._topic = topic
        self._failure = failure
        self._rows: list[Row] = []
        self.settings: dict[str, str] = {}

    @property
    def conf(self) -> Session:
        return self

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def sql(self, text: str) -> Session:
        table = self._lake.table(self._topic)
        old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
        self._rows = []
        if "rewrite_data_files" in text:
            self._rows = [Row(rewritten_data_files_count=0, added_data_files_count=0)]
        elif "expire_snapshots" in text:
            if self._failure:
                raise PySparkException(self._failure)
            current = table.current_snapshot()
            assert current is not None
            old.remove(current.snapshot_id)
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
        elif text.startswith("SELECT"):
            self._rows = [Row(snapshot_id=number) for number in old]
        return self

    def collect(self) -> list[Row]:
        return self._rows


def maintain(api: ApiServer, lake: Lake, topic: str, failure: str = "") -> MaintenanceSummary:
    engine = LocalEngine(1)
    engine.session = Session(lake, topic, failure)  # type: ignore[attr-defined]
    upkeep = Maintenance(snapshot_age_ms=0)
    return maintain_table(api.client, engine, lake.settings(topic), upkeep, is_native=True)


@pytest.mark.slow
def test_snapshots_stay_while_they_alone_say_what_the_table_holds(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """After a rollback the table's property names offsets that its rows don't reach."""
    snapshots = []
    for number in range(3):
        produce_values(api, topic, [b"%d" % number])
        snapshots.append(follow(api, lake, topic).snapshot_id)
    table = lake.table(topic)
    table.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    # Somebody's own commit, such as joined files: the snapshot with offsets is behind it.
    table.append(table.scan().to_arrow())
    summary = maintain(api, lake, topic)
    assert summary.snapshots_expired == 0
    assert "rolled back" in summary.not_expired
    assert follow(api, lake, topic).rows == 2
    assert [value for (value,) in lake.rows(topic, "value")] == [b"0", b"0", b"1", b"2"]
    summary = maintain(api, lake, topic)
    assert summary.not_expired == ""
    assert summary.snapshots_expired > 0
    assert follow(api, lake, topic).commits == 0


class WithoutTable(Session):
    """Joins nothing, whatever the table."""

    def sql(self, text: str) -> Session:
        self._rows = [Row(rewritten_data_files_count=0, added_data_files_count=0)]
        return self


def told_of(lake: Lake, **changes: str) -> dict[str, str]:
    """What a session is told of a catalog over REST whose warehouse is in S3."""
    session: Any = WithoutTable(lake, "t")
    properties = {"uri": "http://h:1", "s3.endpoint": "http://h:2", "s3.region": "r", **changes}
    catalog = CatalogSettings(warehouse="s3://bucket/lake", properties=properties)
    assert join_natively(session, TableSettings(topic="t", catalog=catalog), files_min=2) == (0, 0)
    told: dict[str, str] = session.settings
    return told


def test_a_session_is_told_of_s3_as_pyiceberg_is(lake: Lake) -> None:
    prefix = "spark.sql.catalog.penstock"
    expected = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": "http://h:1",
        f"{prefix}.warehouse": "s3://bucket/lake",
        f"{prefix}.cache-enabled": "false",
        f"{prefix}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{prefix}.s3.endpoint": "http://h:2",
        f"{prefix}.s3.path-style-access": "true",
        f"{prefix}.client.region": "r",
    }
    assert told_of(lake) == expected
    del expected[f"{prefix}.s3.path-style-access"]
    assert told_of(lake, **{"s3.force-virtual-addressing": "true"}) == expected


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["org.apache.iceberg.CommitFailedException: 1", "no space"])
def test_orphans_go_where_expiring_fails(
    api: ApiServer, lake: Lake, topic: str, failure: str
) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    orphan = Path(lake.table(topic).location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))
    with pytest.raises(RetryableError, match=failure):
        maintain(api, lake, topic, failure)
    assert not orphan.exists()
    assert [value for (value,) in lake.rows(topic, "value")] == [b"a"]
