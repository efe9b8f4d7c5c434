"""An archive of the classes that Spark's JVMs load: to map it takes 6 of the 14 seconds of the
processor that the start of a session and one query take without.

A JVM of the wheel's Spark loads 15,000 classes out of 281 jars, and checks their bytecode. The
archive (Java's "class data sharing") is made once per environment, of what a run of this module
loads, and lies in it. A JVM looks whether it was made of the same jars, and goes on without it if
not. What Spark's launcher makes of the class path can't be archived, since it names a jar twice;
so JVMs are given the same path without that.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import MutableMapping
from pathlib import Path

LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Spark's JVMs live for a minute at most here: what the optimizing compiler spends is never earned
back (starting a session and running one query: 15 s of CPU with it, 9 s without)."""
REPOSITORY = Path(__file__).resolve().parents[2]


def options(archive: Path) -> str:
    """What a JVM is given to use an archive; it says nothing of one that doesn't fit."""
    return f"{LEAN} -XX:SharedArchiveFile={archive} -Xlog:cds=off"


def use(environment: MutableMapping[str, str]) -> None:
    """Let JVMs that are started with this environment, which is this process's, use the archive;
    make it, where there is none yet."""
    jars = _jars()
    archive = _place(jars)
    if not archive.exists():
        _make(archive, jars)
    if archive.stat().st_size:
        environment["SPARK_LAUNCHER_OPTS"] = options(archive)
        environment["SPARK_SUBMIT_OPTS"] = f"-cp {jars}/* {options(archive)}"


def _jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def _place(jars: Path) -> Path:
    """Its name changes with each jar that is exchanged, and with the options."""
    from penstock.pipeline.java import java_home

    of = [str(jars), LEAN, str(java_home().joinpath("lib").resolve())]
    of += sorted(f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jars.glob("*.jar"))
    digest = hashlib.sha256("\n".join(of).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "spark-classes" / f"{digest}.jsa"


def _make(archive: Path, jars: Path) -> None:
    """Write the archive; an empty file, where this Java can't make one."""
    from penstock.pipeline.java import java_home

    archive.parent.mkdir(exist_ok=True)
    with (archive.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():  # another process was faster
            return
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            names, draft = Path(folder, "names"), Path(folder, "archive")
            lists = {
                **os.environ,
                "PYTHONPATH": str(REPOSITORY / "src"),
                "SPARK_SUBMIT_OPTS": f"-cp {jars}/* {LEAN} -XX:DumpLoadedClassList={names}",
            }
            dumps = [str(java_home() / "bin" / "java"), *LEAN.split(), "-Xshare:dump"]
            dumps += [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={draft}"]
            for command, environment in (
                ([sys.executable, __file__], lists),
                ([*dumps, "-Xlog:cds=off", "-cp", f"{jars}/*"], dict(os.environ)),
            ):
                done = subprocess.run(
                    command,
                    env=environment,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    print(f"Spark's classes are not archived:\n{done.stdout[-2000:]}")
                    draft.touch()
                    break
            draft.rename(archive)


def main() -> None:
    """Do what most tests of Spark do, for the classes that it takes."""
    from penstock.pipeline.session import session

    warnings.simplefilter("ignore")
    spark = session("local[2]", name="classes", conf={"spark.sql.shuffle.partitions": "2"})
    frame = spark.range(100).selectExpr("id % 7 as key", "id as value")
    frame.groupBy("key").count().orderBy("key").collect()
    frame.mapInArrow(lambda batches: batches, "key long, value long").toPandas()
    frame.createOrReplaceTempView("numbers")
    with tempfile.TemporaryDirectory() as folder:
        frame.write.parquet(f"{folder}/files")
        spark.read.parquet(f"{folder}/files").join(frame, "key").count()
        stream = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/rows")
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
