"""Iceberg's own runtime for Spark 4.1, what it reads S3 by, and a SQLite catalog.

All by Maven, from Maven Central, into .peers/iceberg. Nothing is got where they are there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ARTIFACTS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
)
JARS = Path(__file__).resolve().parents[2] / ".peers" / "iceberg"
SECONDS_MAX = 1200


def jars() -> list[Path]:
    """Where they are, or will be."""
    names = [artifact.split(":")[1:] for artifact in ARTIFACTS]
    return [JARS / f"{name}-{version}.jar" for name, version in names]


def build() -> str:
    """Get them unless they are there. Returns: what can't be had, or ""."""
    for artifact, jar in zip(ARTIFACTS, jars(), strict=True):
        if jar.is_file():
            continue
        if shutil.which("mvn") is None:
            return "there is no mvn on the PATH"
        copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        try:
            done = subprocess.run(
                [*copy, f"-DoutputDirectory={JARS}"],
                timeout=SECONDS_MAX, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{artifact} was not got within {SECONDS_MAX} s"
        if done.returncode:
            return f"{artifact}: {done.stdout.strip()[-500:]}"
    return ""
