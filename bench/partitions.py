"""What do 5,000 partitions cost: idle, in a produce to twelve others, and in a metadata answer?

    python bench/partitions.py --bootstrap HOST:PORT --server-pid PID [--partitions 5000]

Prints one JSON line: seconds to make them, CPU percent of a server that nobody talks to,
milliseconds of a Metadata request for all of them (median of 20, by a raw socket, until the whole
answer has been read). compare.py runs produce-1k on twelve partitions before and after it on the
same server, and one to all of them. Compare two commits by running it against a server of each.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

import wire


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children."""
    process = psutil.Process(pid)
    return float(sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)]))


def measure(bootstrap: str, pid: int, partitions: int, idle_s: float) -> dict[str, object]:
    """Make the topic, sit still, ask; the topic stays."""
    topic = f"wide-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    started = time.monotonic()
    future = admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=120)[topic]
    future.result(120)
    made_s = time.monotonic() - started
    del admin
    time.sleep(5)
    before, started = cpu_s(pid), time.monotonic()
    time.sleep(idle_s)
    idle_percent = 100 * (cpu_s(pid) - before) / (time.monotonic() - started)
    port = int(bootstrap.rsplit(":", 1)[1])
    times = []
    size = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(21):
            started = time.perf_counter()
            size = len(wire.ask(connection, wire.metadata(topic, number)))
            times.append((time.perf_counter() - started) * 1000)
    first_ms, rest = times[0], sorted(times[1:])
    return {
        "partitions": partitions,
        "create_s": round(made_s, 2),
        "idle_cpu_percent": round(idle_percent, 2),
        "metadata_first_ms": round(first_ms, 2),
        "metadata_p50_ms": round(rest[len(rest) // 2], 2),
        "metadata_bytes": size,
        "topic": topic,
        # 26 bytes are the least that version 1 needs per partition.
        "ok": size > partitions * 26,
    }


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--idle-seconds", type=float, default=20)
    options = parser.parse_args()
    arguments = (options.bootstrap, options.server_pid, options.partitions, options.idle_seconds)
    print(json.dumps(measure(*arguments)))


if __name__ == "__main__":
    main()
