"""A program: one real producer that writes round the partitions of a topic until its input ends.

`writing_producer.py LIBRARY BOOTSTRAP TOPIC PARTITIONS` prints a JSON list [partition, offset,
value] per record that the client was told is stored. Metadata is as old as each library lets it
be: only what agents answer moves a producer to another one. An error that a client lets through
ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.committing_member import Ending

PAUSE_S = 0.01
PATIENCE_S = 60


def note(partition: int, offset: int, value: str) -> None:
    print(json.dumps([partition, offset, value]), flush=True)


def confluent(bootstrap: str, topic: str, partitions: int, ending: Ending) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "delivery.timeout.ms": PATIENCE_S * 1000,
            "log_level": 0,
        }
    )

    def told(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            note(message.partition(), message.offset(), message.value().decode())

    number = 0
    while not ending and not failed:
        value = f"confluent/{number}"
        producer.produce(topic, value.encode(), partition=number % partitions, on_delivery=told)
        producer.poll(PAUSE_S)
        number += 1
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed


def aiokafka(bootstrap: str, topic: str, partitions: int, ending: Ending) -> None:
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            request_timeout_ms=PATIENCE_S * 1000,
        )
        await producer.start()

        async def write(first: int) -> None:
            number = first
            while not ending:
                value = f"aiokafka/{number}"
                partition = number % partitions
                told = await producer.send_and_wait(topic, value.encode(), partition=partition)
                note(told.partition, told.offset, value)
                number += partitions
                await asyncio.sleep(PAUSE_S)

        try:
            await asyncio.gather(*(write(first) for first in range(partitions)))
        finally:
            await producer.stop()

    asyncio.run(main())


def python(bootstrap: str, topic: str, partitions: int, ending: Ending) -> None:
    from functools import partial

    from kafka import KafkaProducer

    failed: list[Any] = []

    def stored(value: str, told: Any) -> None:
        note(told.partition, told.offset, value)

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", retries=1_000)
    number = 0
    while not ending and not failed:
        value = f"python/{number}"
        sent = producer.send(topic, value.encode(), partition=number % partitions)
        sent.add_callback(partial(stored, value)).add_errback(failed.append)
        asyncio.run(asyncio.sleep(PAUSE_S))
        number += 1
    producer.flush(PATIENCE_S)
    producer.close()
    assert not failed, failed


LIBRARIES = {"confluent": confluent, "aiokafka": aiokafka, "python": python}


if __name__ == "__main__":
    library, bootstrap, topic, partitions = sys.argv[1:]
    LIBRARIES[library](bootstrap, topic, int(partitions), Ending())
