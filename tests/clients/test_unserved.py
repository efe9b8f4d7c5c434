"""A client that wants what is not served gets its error at once: each by what its error is, since
one that asked until its time was over would end with a time-out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("PENSTOCK_TEST_BOOTSTRAP")), reason="another server has transactions"
)


def confluent_transaction(bootstrap: str) -> str:
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "confluent"})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(60)
    error = raised.value.args[0]
    assert error.fatal()
    assert "This server does not serve transactions yet." in error.str()
    return str(error.name())


def kafka_python_transaction(bootstrap: str) -> str:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kafka-python")
    try:
        with pytest.raises(KafkaError) as raised:
            producer.init_transactions()
    finally:
        producer.close(timeout=0)
    return type(raised.value).__name__


def aiokafka_transaction(bootstrap: str) -> str:
    async def run() -> str:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
        try:
            with pytest.raises(KafkaError) as raised:
                await asyncio.wait_for(producer.start(), 60)
        finally:
            await producer.stop()
        return type(raised.value).__name__

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (confluent_transaction, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (kafka_python_transaction, "TransactionalIdAuthorizationFailedError"),
        (aiokafka_transaction, "TransactionalIdAuthorizationFailed"),
    ],
    ids=["confluent-kafka", "kafka-python", "aiokafka"],
)
def test_a_transactional_producer_is_refused_at_once(
    bootstrap: str, begin: Callable[[str], str], expected: str
) -> None:
    assert begin(bootstrap) == expected
