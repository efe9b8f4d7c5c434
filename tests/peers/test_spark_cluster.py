"""Jobs, a table and the connector on a real cluster: a standalone master and two workers, in
processes of their own, as docs/spark.md says it is done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.packed import archive, build
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.java import java_home
from penstock.version import VERSION
from support.compacted_log import CompactedLog
from support.server import REPOSITORY, ServerProcess
from support.spark_cluster import SparkCluster, spark_cluster, spark_home
from support.tables import Lake

SECONDS_MAX = 300
PYTHON = ".".join(map(str, sys.version_info[:2]))
READ = """
import sys
from penstock.pipeline.session import check_executors, session

master, url, topic = sys.argv[1:]
spark = session(master)
assert check_executors(spark)
frame = spark.read.format("penstock").option("url", url).option("subscribe", topic).load()
rows = frame.groupBy("partition").count().collect()
print(sorted((row["partition"], row["count"]) for row in rows))


def places(_):
    import numba, penstock, pyarrow

    return [sys.prefix, numba.__file__, penstock.__file__, pyarrow.__file__]


for found in spark.sparkContext.parallelize(range(4), 4).map(places).collect():
    print(*found)
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log", {"SEGMENT_AGE_MS": "100"})
    server.start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def log(server: ServerProcess) -> Iterator[CompactedLog]:
    with PipelineClient(ClientOptions(urls=(f"http://{server.http}",))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        log.write(4)
        yield log


def run(
    environment: dict[str, str], *arguments: str, cwd: Path = Path("/")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def environment_archive(folder: Path, *, version: str = VERSION) -> Path:
    """An environment to ship: this one's Python and packages, and a Penstock of its own."""
    root = folder / "environment"
    python = root / "bin" / "python"
    python.parent.mkdir(parents=True)
    shutil.copytree(REPOSITORY / "src" / "penstock", root / "lib" / "penstock")
    (root / "lib" / "penstock" / "version.py").write_text(f'VERSION = "{version}"\n')
    python.write_text(
        '#!/bin/sh\nhere=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
        f'PYTHONPATH="$here/lib:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    packed = folder / "env.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for entry in root.iterdir():
            archive.add(entry, arcname=entry.name)
    return packed


def shipped(cluster: SparkCluster, archive: Path) -> dict[str, str]:
    return cluster.environment("./environment/bin/python", "--archives", f"{archive}#environment")


def other_python() -> tuple[str, str]:
    """A Python of another version than this one, on the PATH or of pyenv, and the version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (12, 13, 14, 10):
        name, version = f"python3.{minor}", f"3.{minor}"
        for python in (shutil.which(name), *map(str, pyenv.glob(f"{version}.*/bin/{name}"))):
            asked = "import sys; print('%d.%d' % sys.version_info[:2])"
            if python is not None:
                told = subprocess.run(
                    [python, "-c", asked], capture_output=True, text=True, check=False
                )
                if told.stdout.strip() == version:
                    return python, version
    pytest.skip("there is no other Python on the PATH, nor of pyenv")


def test_compaction_and_a_table_run_on_the_executors(
    cluster: SparkCluster, server: ServerProcess, log: CompactedLog, tmp_path: Path
) -> None:
    url, before = f"http://{server.http}", cluster.executors_started()
    common = ("--url", url, "--master", cluster.master, "--json")
    compacted = run(
        shipped(cluster, environment_archive(tmp_path)),
        *("-m", "penstock", "pipeline", "compact", *common),
    )
    assert compacted.returncode == 0, compacted.stderr
    summary = json.loads(compacted.stdout)
    assert (summary["partitions"], summary["runs_before"], summary["refused"]) == (3, 12, [])
    assert log.run_counts() == {0: 1, 1: 1, 2: 1}
    log.check_read_from_everywhere()
    lake = Lake(tmp_path / "warehouse")
    table = run(
        cluster.environment(),
        *("-m", "penstock", "pipeline", "table", "--topic", log.topic),
        *("--warehouse", str(lake.folder), *common),
    )
    assert table.returncode == 0, table.stderr
    found = lake.rows(log.topic, "partition", "offset", "key", "value")
    assert found == [(*place, one.key, one.value) for place, one in sorted(log.records.items())]
    assert cluster.executors_started() >= before + 4


def test_the_connector_reads_there_by_a_spark_of_ones_own(
    cluster: SparkCluster, server: ServerProcess, log: CompactedLog
) -> None:
    """SPARK_HOME names it, and JAVA_HOME its Java."""
    environment = cluster.environment()
    environment |= {"SPARK_HOME": str(spark_home()), "JAVA_HOME": str(java_home())}
    read = run(environment, "-c", READ, cluster.master, f"http://{server.http}", log.topic)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines()[0] == counts(log)


def test_an_environment_that_venv_pack_packed_is_all_that_executors_need(
    cluster: SparkCluster, server: ServerProcess, log: CompactedLog, tmp_path: Path
) -> None:
    problem = build()
    if problem:
        pytest.skip(f"no packed environment: {problem}")
    # By the path that executors have it at the driver's host plans a read.
    (tmp_path / "environment").symlink_to(sys.prefix)
    arguments = ("-c", READ, cluster.master, f"http://{server.http}", log.topic)
    read = run(shipped(cluster, archive()), *arguments, cwd=tmp_path)
    assert read.returncode == 0, read.stderr[:8000]
    first, *places = read.stdout.splitlines()
    assert first == counts(log)
    work = f"{cluster.logs}/work"
    for place in " ".join(places).split():
        assert place.startswith(work), places
        assert "/environment" in place


def counts(log: CompactedLog) -> str:
    """What READ prints of it."""
    return str([(n, sum(p == n for p, _ in log.records)) for n in range(log.partitions)])


def test_executors_with_another_python_are_a_clear_error(
    cluster: SparkCluster, server: ServerProcess
) -> None:
    python, version = other_python()
    done = run(
        cluster.environment(python),
        *("-m", "penstock", "pipeline", "compact", "--url", f"http://{server.http}"),
        *("--master", cluster.master),
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"run Python {version}, the driver {PYTHON}" in last
    assert "PYSPARK_PYTHON" in last
    assert "Traceback" not in done.stderr


def test_executors_with_another_penstock_are_a_clear_error(
    cluster: SparkCluster, server: ServerProcess, tmp_path: Path
) -> None:
    done = run(
        shipped(cluster, environment_archive(tmp_path, version="0.0.7")),
        *("-m", "penstock", "pipeline", "compact", "--url", f"http://{server.http}"),
        *("--master", cluster.master),
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"{os.uname().nodename} has Penstock 0.0.7, the driver {VERSION}" in last
    assert "Traceback" not in done.stderr
