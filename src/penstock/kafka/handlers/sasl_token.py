"""The messages of a mechanism after SaslHandshake 0: bytes without any header, both ways.

A failure ends the connection without an answer, as it did in Kafka before 1.0.
"""

import asyncio
from typing import Final

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.sasl_authenticate import take
from penstock.kafka.replies import Reply

RAW: Final = True


def serve(context: RequestContext, body: memoryview) -> "asyncio.Future[Reply]":
    """Take the message."""
    return asyncio.get_running_loop().create_task(_serve(context, bytes(body)))


async def _serve(context: RequestContext, message: bytes) -> Reply:
    session = context.connection.session
    assert session is not None
    answer, _ = await take(context, session, message)
    return [answer]
