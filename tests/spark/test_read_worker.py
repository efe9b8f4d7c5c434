"""A Python worker that reads task after task, in a process of its own and without Spark."""

import subprocess
import sys
from pathlib import Path

from support.server import ServerProcess
from support.topics import Topics

SOURCES = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import gc, sys
sys.path.insert(0, sys.argv[3])
from penstock.pipeline.connector.options import parse
from penstock.pipeline.connector.read import PenstockReader

columns = ("key", "value", "offset", "timestamp")
options = parse({"url": sys.argv[1], "subscribe": sys.argv[2], "leaseMs": "0"}, mode="batch")
reader = PenstockReader(options, columns)
[task] = reader.partitions()
rows = 0
for _ in range(2):
    rows += sum(batch.num_rows for batch in reader.read(task))
print(rows, len(gc.get_objects()))
"""


def test_a_collection_after_each_task_is_cheap(tmp_path: Path):
    """Spark collects garbage after each task: what reading has loaded must not be gone through."""
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log")
    server.start()
    try:
        topics = Topics(server.bootstrap)
        topic = topics.make(1)
        topics.write(topic, [b"%d" % n for n in range(100)])
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"http://{server.http}", topic, str(SOURCES)],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        server.stop()
    rows, tracked = map(int, answer.stdout.split())
    assert rows == 200
    assert tracked < 1_000
