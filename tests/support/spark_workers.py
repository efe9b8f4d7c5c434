"""The Python processes of a Spark session, to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kill_python_workers(spark: SparkSession) -> bool:
    """All that the session's JVM has now, again and again. Returns: False."""
    gateway: Any = spark.sparkContext._gateway
    jvm = psutil.Process(gateway.proc.pid)
    workers: list[psutil.Process] = []
    for child in jvm.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # they come and go
            if "pyspark.daemon" in child.cmdline():
                workers += child.children()
            elif any("streaming_source_runner" in word for word in child.cmdline()):
                workers.append(child)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
    return False
