"""A program: one real consumer of a group that commits all that it reads, until its input ends.

`committing_member.py LIBRARY GROUP BOOTSTRAP TOPIC` prints a JSON object per commit that the
client was told of: the offset by partition. An error that a client lets through ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SESSION_MS = 7_000
POLL_MS = 200


class Ending:
    """Set once the parent closes this process's input."""

    def __init__(self) -> None:
        self._over = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self._over.set()

    def __bool__(self) -> bool:
        return self._over.is_set()


def note(positions: dict[int, int]) -> None:
    print(json.dumps(positions), flush=True)


def confluent(group_id: str, bootstrap: str, topic: str, ending: Ending) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "socket.timeout.ms": 6_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not ending:
        messages = [one for one in consumer.consume(100, timeout=POLL_MS / 1000) if not one.error()]
        if not messages:
            continue
        try:
            done = consumer.commit(asynchronous=False)
        except KafkaException:
            continue
        # A partition without news is told of, too, with no offset.
        note({one.partition: one.offset for one in done if one.error is None and one.offset >= 0})
    consumer.close()


def aiokafka(group_id: str, bootstrap: str, topic: str, ending: Ending) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            request_timeout_ms=6_000,
        )
        await consumer.start()
        try:
            while not ending:
                found = await consumer.getmany(timeout_ms=POLL_MS)
                positions = {one: records[-1].offset + 1 for one, records in found.items()}
                if not positions:
                    continue
                try:
                    await consumer.commit(positions)
                except KafkaError:
                    continue
                note({one.partition: offset for one, offset in positions.items()})
        finally:
            await consumer.stop()

    asyncio.run(main())


def kafka_python(group_id: str, bootstrap: str, topic: str, ending: Ending) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        request_timeout_ms=SESSION_MS + 1_000,
    )
    while not ending:
        found = consumer.poll(timeout_ms=POLL_MS)
        positions = {one: records[-1].offset + 1 for one, records in found.items()}
        if not positions:
            continue
        try:
            consumer.commit(
                {one: OffsetAndMetadata(offset, "", -1) for one, offset in positions.items()}
            )
        except KafkaError:
            continue
        note({one.partition: offset for one, offset in positions.items()})
    consumer.close(autocommit=False)


def led_by_lines(library: str, group_id: str, bootstrap: str, topic: str, ending: Ending) -> None:
    from peers.line_clients import line_programs
    from support.line_client import LineClient

    programs, missing = line_programs(java=True)
    program = next((one for one in programs if one.library == library), None)
    assert program is not None, missing
    client = LineClient(program, "member", bootstrap, topic, group_id)
    while not ending:
        if client.ask(f"poll {POLL_MS}")["records"]:
            note({int(place): end for place, end in client.ask("commit")["offsets"].items()})
    status = client.end()
    assert status == 0, status


if __name__ == "__main__":
    library, *arguments = sys.argv[1:]
    runs = {
        "confluent": confluent,
        "aiokafka": aiokafka,
        "python": kafka_python,
    }
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    run: Callable[..., None] = runs.get(library) or partial(led_by_lines, library)
    run(*arguments, Ending())
