"""Other engines read a table at once, through other catalogs, from S3 too."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.catalog import open_catalog
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from penstock.pipeline.tables.schema_text import SchemaText
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from support.api_server import ApiServer
from support.rest_catalog import serve_rest_catalog
from support.s3 import S3Server
from support.tables import Lake, follow, new_record, produce, produce_values


def duck() -> duckdb.DuckDBPyConnection:
    """DuckDB with its Iceberg extension, loaded from files: nothing is fetched."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        assert package.__file__ is not None
        folder = Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}"
        connection.load_extension(str(folder / f"{name}.duckdb_extension"))
    return connection


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "log").start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.mark.slow
def test_duckdb_reads_a_table_and_what_became_of_it(api: ApiServer, lake: Lake, topic: str) -> None:
    produce(api, topic, 0, [new_record(b"k", b"1", headers=[("h", b"x")])] * 3)
    follow(api, lake, topic)
    connection = duck()
    query = (
        'SELECT "partition", count(*), max("offset"), any_value(headers[1].key) '
        "FROM iceberg_scan(?) GROUP BY 1 ORDER BY 1"
    )
    location = lake.table(topic).metadata_location
    assert connection.execute(query, [location]).fetchall() == [(0, 3, 2, "h")]
    produce_values(api, topic, [b"2"], partition=1)
    follow(api, lake, topic)
    location = lake.table(topic).metadata_location
    assert connection.execute(query, [location]).fetchall() == [(0, 3, 2, "h"), (1, 1, 0, None)]
    connection.close()


def test_duckdb_reads_an_upserted_table(api: ApiServer, lake: Lake, topic: str) -> None:
    for number in range(3):
        produce(api, topic, 0, [new_record(b"%d" % key, b"%d" % number) for key in range(5)])
        produce(api, topic, 0, [new_record(b"4", None)])
        follow(api, lake, topic, mode="upsert", buckets=2)
    connection = duck()
    location = lake.table(topic).metadata_location
    found = connection.execute(
        "SELECT decode(key), decode(value) FROM iceberg_scan(?) ORDER BY 1", [location]
    ).fetchall()
    assert found == [(str(key), "2") for key in range(4)]
    connection.close()


@pytest.mark.slow
def test_files_have_the_ids_of_columns_and_statistics(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce_values(api, topic, [b"a", b"b"])
    follow(api, lake, topic)
    (task,) = lake.table(topic).scan().plan_files()
    schema = lake.table(topic).schema()
    stored = pq.read_schema(task.file.file_path.removeprefix("file://"))
    for column in schema.fields:
        assert stored.field(column.name).metadata[b"PARQUET:field_id"] == b"%d" % column.field_id
    offset = schema.find_field("offset").field_id
    assert task.file.lower_bounds[offset] == (0).to_bytes(8, "little")
    assert task.file.upper_bounds[offset] == (1).to_bytes(8, "little")
    assert task.file.value_counts[offset] == 2
    # So a reader skips files by offset.
    assert not list(lake.table(topic).scan(row_filter="offset > 1").plan_files())


@pytest.mark.slow
def test_a_warehouse_in_s3(
    api: ApiServer, topic: str, s3_environment: S3Server, tmp_path: Path
) -> None:
    bucket = s3_environment.make_bucket()
    catalog = CatalogSettings(
        warehouse=f"s3://{bucket}/lake", properties={"uri": f"sqlite:///{tmp_path / 'c.db'}"}
    )
    settings = TableSettings(topic=topic, catalog=catalog, mode="upsert", buckets=2)
    produce(api, topic, 0, [new_record(b"a", b"1"), new_record(b"b", b"1"), new_record(None, b"")])
    summary = run_table_once(api.client, LocalEngine(2), settings)
    assert (summary.rows, summary.bad_records) == (2, 1)
    produce(api, topic, 0, [new_record(b"a", b"2"), new_record(b"b", None)])
    run_table_once(api.client, LocalEngine(2), settings)
    lake = Lake(tmp_path)
    with open_catalog(catalog) as opened:
        table = opened.load_table(("penstock", topic))
        rows = table.scan().to_arrow()
    assert rows.column("key").to_pylist() == [b"a"]
    assert rows.column("value").to_pylist() == [b"2"]
    assert table.location().startswith(f"s3://{bucket}/lake")
    upkeep = Maintenance(files_min=1, snapshot_age_ms=-3_600_000, orphan_age_ms=-3_600_000)
    done = maintain_table(api.client, LocalEngine(2), settings, upkeep)
    assert done.orphans_deleted > 0
    with open_catalog(catalog) as opened:
        assert opened.load_table(("penstock", topic)).scan().to_arrow().num_rows == 1
    # Nothing that is stored, or said to the API, holds a key of S3.
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert secret not in table.metadata.model_dump_json()
    assert secret not in repr(api.client.tables()) + repr(settings) + repr(lake)


def test_s3_without_a_catalog_says_what_is_missing(api: ApiServer, topic: str) -> None:
    settings = TableSettings(topic=topic, catalog=CatalogSettings(warehouse="s3://bucket/lake"))
    with pytest.raises(InvalidRequestError, match="where a SQLite catalog could be"):
        run_table_once(api.client, LocalEngine(1), settings)


@pytest.mark.slow
def test_a_rest_catalog_s_lost_reply(
    api: ApiServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit happened, and nobody was told: it is found, not repeated."""
    with serve_rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri()) as rest:
        catalog = CatalogSettings(
            warehouse=str(tmp_path / "warehouse"),
            name="lake",
            properties={"type": "rest", "uri": rest.url},
        )
        settings = TableSettings(topic=topic, catalog=catalog)
        produce_values(api, topic, [b"a"])
        assert run_table_once(api.client, LocalEngine(1), settings).rows == 1
        produce_values(api, topic, [b"b"])
        lost: list[str] = []

        def lose(path: str) -> None:
            lost.append(path)
            raise ConnectionResetError(path)

        rest.before_answer = lose
        monkeypatch.setattr("penstock.pipeline.tables.job._REST_S", 0.01)
        summary = run_table_once(api.client, LocalEngine(1), settings)
        assert (summary.rows, len(lost)) == (1, 1)
        rows = rest.catalog.load_table(("penstock", topic)).scan().to_arrow()
        assert sorted(rows.column("value").to_pylist()) == [b"a", b"b"]


AWKWARD = [b"a b", b"a/b", b"a%2Fb", b"\xc3\xbc#?", b"x=y&z+", b"~.."]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "s3"])
def test_files_of_awkward_partitions_and_folders_are_found_again(
    api: ApiServer, topic: str, s3_environment: S3Server, tmp_path: Path, place: str
) -> None:
    """Partition values go into paths quoted, and nobody may unquote them."""
    warehouse = str(tmp_path / "ware house%20ü")
    if place == "s3":
        warehouse = f"s3://{s3_environment.make_bucket()}/ware house"
    catalog = CatalogSettings(
        warehouse=warehouse, properties={"uri": f"sqlite:///{tmp_path / 'c.db'}"}
    )
    text = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}
    schema = SchemaText(kind="AVRO", text=json.dumps(text))
    settings = TableSettings(
        topic=topic,
        catalog=catalog,
        schema="file",
        value_schema=schema,
        partition="identity(s)",
    )
    produce_values(api, topic, [bytes([2 * len(value)]) + value for value in AWKWARD])
    assert run_table_once(api.client, LocalEngine(1), settings).files == len(AWKWARD)
    upkeep = Maintenance(files_min=1, snapshot_age_ms=-3_600_000, orphan_age_ms=-3_600_000)
    done = maintain_table(api.client, LocalEngine(1), settings, upkeep)
    assert done.files_joined == len(AWKWARD)
    with open_catalog(catalog) as opened:
        rows = opened.load_table(("penstock", topic)).scan().to_arrow()
    assert sorted(rows["s"].to_pylist()) == sorted(value.decode() for value in AWKWARD)
