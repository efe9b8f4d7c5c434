"""How long does a server take from its process's start to its first metadata answer, and how much
memory does it hold then?

    python bench/start.py [--servers kafka,penstock] [--rounds 5]  -> one JSON line per start

Each server starts on a data directory that it has used before (its first start, which formats
Kafka's and makes Penstock's, isn't counted). Resident memory is read after two idle seconds.
Compare two commits by running it in a checkout of each, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from servers import START_SECONDS_MAX, Contender, Running, answers_metadata, contenders


def measure(contender: Contender, data: Path) -> dict[str, object]:
    """Start the server once more on data and end it."""
    running = Running(contender, data, keep_data=True)
    running.stop()
    started = time.monotonic()
    # FOREGROUND: the start script becomes the server, so that its pid and time are the server's.
    process = subprocess.Popen(
        [*contender.command, str(running.port), str(data)],
        env={**os.environ, **contender.environment, "FOREGROUND": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not answers_metadata(running.port, timeout_s=0.5):
            if process.poll() is not None or time.monotonic() - started > START_SECONDS_MAX:
                return {"contender": contender.name, "ok": False}
            time.sleep(0.005)
        ready_s = time.monotonic() - started
        time.sleep(2)
        running.pid = process.pid
        return {
            "contender": contender.name,
            "ready_s": round(ready_s, 3),
            "rss_mb": round(running.rss_mb(), 1),
            "cpu_s": round(running.cpu_s(), 2),
            "ok": True,
        }
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    """One JSON line per start."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--servers", default="kafka,penstock")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name in options.servers.split(","):
                print(json.dumps(measure(contenders()[name], Path(folder) / name)), flush=True)


if __name__ == "__main__":
    main()
