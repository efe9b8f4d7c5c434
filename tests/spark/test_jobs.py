"""The same jobs on Spark's executors: verify, export, import; and the whole of `pipeline run`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.engine import Engine
from penstock.pipeline.export import export_topic
from penstock.pipeline.imports import import_topic
from penstock.pipeline.restore import transfer_objects
from penstock.pipeline.spark_engine import SparkEngine
from penstock.pipeline.verify import verify_cluster
from support.api_server import ApiServer, serve_in_thread
from support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture(scope="module")
def engine(spark: "SparkSession") -> Engine:
    return SparkEngine(spark)


@pytest.fixture(scope="module")
def name(api: ApiServer) -> str:
    topics = Topics(str(api.server.kafka_address))
    made = topics.make(3)
    for partition in range(3):
        topics.write(made, [b"%d" % n * 20 for n in range(1000)], partition=partition)
    api.drain()
    topics.write(made, [b"in the WAL"], partition=0)
    return made


def test_verify_reads_everything(api: ApiServer, engine: Engine, name: str) -> None:
    report = verify_cluster(api.client, engine)
    assert report.findings == []
    assert report.records >= 3001


def test_an_export_comes_back(api: ApiServer, engine: Engine, name: str, tmp_path: Path) -> None:
    exported = export_topic(api.client, engine, name, str(tmp_path), file_bytes=10_000)
    assert exported.records == 3001
    copy = Topics(str(api.server.kafka_address)).make(3)
    imported = import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert imported.records == 3001
    (topic,) = api.client.topics(names=[copy]).topics
    assert [state.high_watermark for state in topic.partitions] == [1001, 1000, 1000]


def test_spark_reads_an_export_as_it_is(
    api: ApiServer, spark: "SparkSession", engine: Engine, name: str, tmp_path: Path
) -> None:
    export_topic(api.client, engine, name, str(tmp_path))
    rows = spark.read.parquet(f"{tmp_path}/{name}")
    assert rows.count() == 3001
    assert rows.filter("partition = 0").agg({"offset": "max"}).collect()[0][0] == 1000


def test_a_restores_objects_are_copied(engine: Engine, api: ApiServer, tmp_path: Path) -> None:
    source = api.server.parts.layout.objects
    objects = [
        (str(path.relative_to(source)), path.stat().st_size) for path in source.rglob("*.seg")
    ]
    assert objects
    transfer_objects(engine, str(source), str(tmp_path / "copy"), objects, due=lambda _: [])
    for key, _ in objects:
        assert (tmp_path / "copy" / key).read_bytes() == (source / key).read_bytes()


def test_the_whole_schedule_runs_in_a_session_of_its_own(
    api: ApiServer, name: str, tmp_path: Path
) -> None:
    topics = Topics(str(api.server.kafka_address))
    table = topics.make(1, penstock_table="iceberg")
    topics.write(table, [b"1", b"2"])
    environment = {key: value for key, value in os.environ.items() if "PENSTOCK_" not in key}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "run", "--once", "--json",
         "--master", "local[1]", "--memory", "512m", "--url", str(api.server.http_address),
         "--warehouse", str(tmp_path / "warehouse")],
        env=environment, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = {line["job"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert outcomes[f"table of {table}"]["summary"]["rows"] == 2
    assert outcomes["compaction"]["error"] == ""
    # Spark leaves nothing where it was started, and says nothing when all is well.
    assert [path.name for path in tmp_path.iterdir()] == ["warehouse"]
    assert done.stderr == (
        f"penstock: engine spark, master local[1], warehouse {tmp_path / 'warehouse'}, "
        f"agents http://{api.server.http_address}\n"
    )
