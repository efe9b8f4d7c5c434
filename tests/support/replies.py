"""The bytes of what handlers answer, also where these are made in pieces."""

from __future__ import annotations

from typing import Any

from penstock.kafka.long_answer import LongAnswer
from penstock.kafka.replies import PiecedReply
from penstock.kafka.wire import schema
from penstock.system.turns import Turns


def body_of(reply: Any) -> bytes:
    """Of a reply, without its header."""
    if not isinstance(reply, PiecedReply):
        return b"".join(bytes(part) for part in reply)
    body = b"".join(bytes(piece) for piece, _ in reply.pieces)
    assert len(body) == reply.byte_count
    return body


async def encoded(response: Any) -> bytes:
    """Of what a handler's `handle` returns."""
    if isinstance(response, LongAnswer):
        return body_of(await response.reply(Turns()))
    return schema.encode_response(response)
