"""How fast do `penstock produce` and `penstock consume` move lines, beside kcat in the same run?

    PYTHONPATH=src:bench python bench/bench_cli.py [--lines 1000000] [--bytes 100] [--rounds 3]
        [--partitions 1] [--durability object] [--kcat COMMAND]

A server is started, and in each round each program produces the same file to a topic of its own,
and reads a topic that was filled before; the programs take turns. A rate is lines by the seconds of
the whole process, its start included. `penstock produce` is idempotent, kcat is so when asked, and
then as slow as one request in flight for each partition makes it. Without kcat (Debian:
`apt-get install kcat`) a bare loop of confluent-kafka takes its place. Compare two commits by
running it at both, in turns.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from servers import ROOT, Running, contenders

PENSTOCK = (sys.executable, "-m", "penstock")
BARE = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
how, server, topic, file = sys.argv[1:]
if how == "produce":
    producer = Producer({"bootstrap.servers": server, "enable.idempotence": True})
    for line in open(file, "rb"):
        while True:
            try:
                producer.produce(topic, line[:-1])
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
else:
    settings = {"bootstrap.servers": server, "group.id": "bench", "enable.partition.eof": True}
    consumer = Consumer(settings)
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    left = set(partitions)
    with open(file, "wb") as out:
        while left:
            for message in consumer.consume(1000, 1.0):
                if message.error():
                    left.discard(message.partition())
                else:
                    out.write(message.value() + b"\\n")
"""


class Commands:
    """The command lines of one program.

    Args:
        base: the program.
        is_kcat: whether its options are kcat's; else the bare loop's.
    """

    def __init__(self, server: str, base: tuple[str, ...], *, is_kcat: bool) -> None:
        self._server = server
        self._base = base
        self._is_kcat = is_kcat

    def produce(self, topic: str, file: Path, *, idempotent: bool) -> list[str]:
        if self._is_kcat:
            options = ["-X", f"enable.idempotence={str(idempotent).lower()}", "-P", "-l", str(file)]
            return [*self._base, "-b", self._server, "-t", topic, *options]
        return [*self._base, "produce", self._server, topic, str(file)]

    def consume(self, topic: str, *, as_json: bool) -> list[str]:
        if self._is_kcat:
            options = ["-C", "-e", "-q", "-o", "beginning", *(["-J"] if as_json else [])]
            return [*self._base, "-b", self._server, "-t", topic, *options]
        return [*self._base, "consume", self._server, topic, "/dev/stdout"]


def seconds(command: list[str], output: Path | None = None) -> float:
    """How long a process takes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with Path(output or os.devnull).open("wb") as stream:
        began_s = time.monotonic()
        subprocess.run(command, check=True, stdout=stream, env=environment)
        return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--durability", default="")
    parser.add_argument("--kcat", default=shutil.which("kcat") or "")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(contenders()["penstock"], Path(folder) / "data")
        try:
            measure(asked, Path(folder), f"127.0.0.1:{running.port}")
        finally:
            running.stop()


def measure(asked: argparse.Namespace, folder: Path, server: str) -> None:
    """Print the rates of all rounds."""
    is_kcat = bool(asked.kcat)
    base = tuple(shlex.split(asked.kcat)) if is_kcat else (sys.executable, "-c", BARE)
    peer_name = "kcat" if is_kcat else "confluent-kafka"
    peer = Commands(server, base, is_kcat=is_kcat)
    file, json_file = folder / "lines", folder / "lines.json"
    fill = "abcdefghij" * (asked.bytes // 10)
    with file.open("w") as stream:
        for number in range(asked.lines):
            stream.write(f"{number:09d},{fill}"[: asked.bytes] + "\n")
    create = [*PENSTOCK, "topic", "create", "--server", server, f"--partitions={asked.partitions}"]
    if asked.durability:
        create += ["--config", f"penstock.durability={asked.durability}"]
    names = (f"bench-{number}" for number in range(1 << 30))

    def topic() -> str:
        name = next(names)
        seconds([*create, name])
        return name

    def ours(*arguments: str) -> list[str]:
        return [*PENSTOCK, *arguments, "--server", server]

    filled = topic()
    seconds(peer.produce(filled, file, idempotent=True))
    read = ("consume", filled, "--from-beginning", "--until-end")
    seconds(ours(*read, "--format", "json"), json_file)
    works: list[tuple[str, Callable[[], list[str]]]] = [
        (f"{peer_name} in, text", lambda: peer.produce(topic(), file, idempotent=False)),
        (
            f"{peer_name} in, idempotent",
            lambda: peer.produce(topic(), file, idempotent=True),
        ),
        ("penstock in, text", lambda: ours("produce", topic(), str(file))),
        (
            "penstock in, json",
            lambda: ours("produce", topic(), str(json_file), "--format", "json"),
        ),
        (f"{peer_name} out, text", lambda: peer.consume(filled, as_json=False)),
        ("penstock out, text", lambda: ours(*read)),
        (f"{peer_name} out, json", lambda: peer.consume(filled, as_json=True)),
        ("penstock out, json", lambda: ours(*read, "--format", "json")),
    ]
    rates: dict[str, list[float]] = defaultdict(list)
    if not is_kcat:  # the bare loop is idempotent and prints no JSON
        works = [
            row
            for row in works
            if row[0] not in {f"{peer_name} in, text", f"{peer_name} out, json"}
        ]
    for _ in range(asked.rounds):
        for name, make in works:
            rates[name].append(asked.lines / seconds(make()))
    for name, found in rates.items():
        shown = " ".join(f"{rate:>9,.0f}" for rate in found)
        print(f"{name:28} {statistics.median(found):>9,.0f} lines/s   {shown}")


if __name__ == "__main__":
    main()
