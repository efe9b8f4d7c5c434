"""Get Spark's own Kafka source, and the last Spark that has one, or say what is missing.

    python tests/peers/spark_kafka/get_source.py

pyspark 4.2.0 without its dependencies, which are those of the test environment, by pip; the jars of
the source and of Kafka's client by Maven, from Maven Central. The source also wants classes that
get tokens for a secured Kafka, whose jar is not always to be had; nothing here is secured, and a
few classes that do nothing, in shim/, stand in for them. All of it goes to .peers/spark-kafka.
Exit status 0 also where something is missing: the test that needs it is skipped then, and says so.
"""

import shutil
import subprocess
import sys
from pathlib import Path

SPARK = "4.2.0"
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / ".peers" / "spark-kafka"
SITE = FOLDER / "site"
JARS = FOLDER / "jars"
SHIM = JARS / "no-tokens.jar"
SECONDS_MAX = 1200


def missing() -> str:
    """What is not there yet; "" when all is."""
    if not (SITE / "pyspark").is_dir():
        return f"pyspark {SPARK}"
    for artifact in ARTIFACTS:
        _, name, version = artifact.split(":")
        if not (JARS / f"{name}-{version}.jar").is_file():
            return artifact
    return "" if SHIM.is_file() else SHIM.name


def build() -> str:
    """Get it unless it is there. Returns: what can't be had, or ""."""
    tools = [tool for tool in ("mvn", "javac", "jar") if shutil.which(tool) is None]
    if missing() and tools:
        return f"there is no {' and no '.join(tools)} on the PATH"
    JARS.mkdir(parents=True, exist_ok=True)
    if not (SITE / "pyspark").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        if problem := _run([*pip, str(SITE), f"pyspark=={SPARK}"]):
            return problem
    for artifact in ARTIFACTS:
        _, name, version = artifact.split(":")
        if (JARS / f"{name}-{version}.jar").is_file():
            continue
        copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        if problem := _run([*copy, f"-DoutputDirectory={JARS}"]):
            return problem
    return _build_shim() if not SHIM.is_file() else ""


def _build_shim() -> str:
    classes = FOLDER / "shim"
    classes.mkdir(exist_ok=True)
    sources = sorted(map(str, (HERE / "shim").glob("*.java")))
    path = str(SITE / "pyspark" / "jars" / "*")
    return _run(["javac", "--release", "17", "-cp", path, "-d", str(classes), *sources]) or _run(
        ["jar", "cf", str(SHIM), "-C", str(classes), "."]
    )


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=FOLDER, timeout=SECONDS_MAX, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {SECONDS_MAX} s"
    if done.returncode:
        return f"{' '.join(command[:4])} ...: {(done.stderr or done.stdout).strip()[-400:]}"
    return ""


if __name__ == "__main__":
    problem = build()
    print(f"no Spark Kafka source: {problem}" if problem else f"Spark's Kafka source is in {JARS}")
