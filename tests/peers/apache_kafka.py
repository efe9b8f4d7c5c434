"""A running broker of Apache Kafka 4.3.1, to ask what it answers; or a sentence why there is none.

Its jars are those of the Java client (`peers.line_clients.kafka_java`).
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from peers.line_clients import kafka_java
from support.ports import adjacent_ports
from support.server import answers_metadata
from support.waiting import eventually

FORMAT_SECONDS_MAX = 120
STOP_SECONDS_MAX = 120
USERS_PORT = 2
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
HEAP = ("-Xmx512m", "-Xms128m")
COMMON = """
process.roles=broker,controller
node.id=1
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT
offsets.topic.replication.factor=1
sasl.enabled.mechanisms=PLAIN
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@contextmanager
def running_kafka(folder: Path, users: Sequence[str] = (), **configs: str) -> Iterator[int]:
    """A started one with its data and log in a folder: its port. Skips the test without Java.

    Args:
        users: who authenticate at the port `USERS_PORT` after it, by PLAIN, with their own names
            as passwords.
        configs: of the broker; `_` stands for a dot.
    """
    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)
    *java, _ = program.command
    port = adjacent_ports(USERS_PORT + 1)
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"
    if users:
        listeners += f",USERS://127.0.0.1:{port + USERS_PORT}"
    passwords = " ".join(f'user_{user}="{user}"' for user in users)
    own = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.name.users.plain.sasl.jaas.config": f"{PLAIN} required {passwords};",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
        "log.dirs": str(folder / "data"),
        **{name.replace("_", "."): value for name, value in configs.items()},
    }
    properties = folder / "server.properties"
    properties.write_text(COMMON + "".join(f"{name}={value}\n" for name, value in own.items()))
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # An id that begins with "-" is taken for an option.
    wanted = ("format", "--standalone", f"--cluster-id={cluster_id}", "-c", str(properties))
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", *wanted],
        capture_output=True,
        text=True,
        timeout=FORMAT_SECONDS_MAX,
        check=False,
    )
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    log = folder / "kafka.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*java, *HEAP, "kafka.Kafka", str(properties)],
            stdout=output,
            stderr=output,
        )
        try:
            eventually(
                lambda: process.poll() is not None or answers_metadata("127.0.0.1", port),
                lambda is_ready: is_ready,
            )
            assert process.poll() is None, log.read_text()[-4000:]
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
