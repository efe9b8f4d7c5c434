"""A client of one broker's handlers, as one connection calls them: through the requests' bytes."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from datetime import timedelta
from typing import Any

from kio.serial import entity_reader

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema
from penstock.model.steps import at_once
from penstock.records import batch as batches
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from support.replies import body_of
from support.replies import encoded as encoded_answer

_numbers = itertools.count(1)


class Sink:
    """The connection's side that takes all answers, and notes the error that ends it."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return 1 << 20

    def is_asked_more(self) -> bool:
        return False

    def takes_files(self) -> bool:
        return False

    def reserve_answer(self, byte_count: int) -> None:
        pass

    def end_when_answered(self, error: Exception) -> None:
        self.error = error


class ApiClient:
    """Calls handlers; what a request's version has no field for is left out of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sink = Sink()
        self.connection: ConnectionState
        self.connect()

    def connect(self) -> None:
        """Have another connection, which has seen what the agent has applied."""
        sink: Any = self.sink
        self.connection = ConnectionState(
            next(_numbers), sink, seen_position=self.broker.position()
        )

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send one request; its answer."""
        entry = BY_MODULE[api]
        context = RequestContext(
            entry.key, version, 1, "client", "127.0.0.1", self.broker, self.connection
        )
        request_type = getattr(schema.request_types(api, version), f"{entry.name}Request")
        body = memoryview(bytearray(schema.encode_request(schema.build(request_type, **fields))))
        handler = entry.load()
        if entry.raw:
            reply = handler.serve(context, body)
            encoded = body_of(await reply if asyncio.isfuture(reply) else reply)
        else:
            decoded = at_once(schema.taken_steps(api, version, body))
            encoded = await encoded_answer(await handler.handle(context, decoded))
        response_type = getattr(schema.response_types(api, version), f"{entry.name}Response")
        response, size = entity_reader(response_type)(encoded, 0)
        assert size == len(encoded)
        return response

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """A nested entity of a request."""
        return schema.build(getattr(schema.request_types(api, version), kind), **fields)

    async def produce(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        producer: tuple[int, int],
        sequence: int = 0,
        transactional_id: str | None = "x",
        version: int = 12,
        transactional: bool = True,
    ) -> Any:
        """Send a batch of a producer, by its id and epoch; the partition's answer."""
        records = [
            Record(offset_delta=number, timestamp=1, key=None, value=value, headers=())
            for number, value in enumerate(values)
        ]
        batch = encode_batch(
            records,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=batches.TRANSACTIONAL if transactional else 0,
        )
        found = self.broker.view.topic(topic)
        data = self.part(
            "produce", version, "PartitionProduceData", index=partition, records=bytes(batch)
        )
        named = self.part(
            "produce",
            version,
            "TopicProduceData",
            name=topic,
            topic_id=uuid.UUID(bytes=bytes(found.topic_id if found else 16)),
            partition_data=(data,),
        )
        response = await self.call(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=(named,),
        )
        return response.responses[0].partition_responses[0]
