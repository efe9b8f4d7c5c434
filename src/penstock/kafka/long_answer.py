"""A long answer: an entity that is encoded in pieces, as its peer takes them.

`Exchange` makes one of each answer whose bytes were reserved. A handler makes it by itself where
the entity holds less than was reserved.
"""

import asyncio

from penstock.kafka.replies import (
    PIECE_BYTES,
    PIECE_ITEMS,
    SMALL_ANSWER_BYTES,
    AnyReply,
    PiecedReply,
)
from penstock.kafka.wire.encode import Entity, encode_in_steps, length_in_steps, pieces_of
from penstock.system.turns import Turns


class LongAnswer:
    """Sends an entity whose bytes were reserved.

    The entity is written twice, since a reply begins with its length. So it must not change.

    Args:
        held_bytes: roughly how much memory the entity takes.
    """

    __slots__ = ("entity", "held_bytes")

    def __init__(self, entity: Entity, *, held_bytes: int) -> None:
        self.entity = entity
        self.held_bytes = held_bytes

    async def reply(self, turns: Turns) -> AnyReply:
        """The reply; its length is found in turns of the event loop. One that turns out to be
        small is whole."""
        byte_count = await turns.run(length_in_steps(self.entity))
        if byte_count <= SMALL_ANSWER_BYTES:
            return [await turns.run(encode_in_steps(self.entity))]
        return PiecedReply(
            pieces_of(self.entity, piece_bytes=PIECE_BYTES, piece_items=PIECE_ITEMS),
            byte_count=byte_count,
            held_bytes=self.held_bytes,
        )


Answer = Entity | LongAnswer | asyncio.Future[None]
"""The result of a handler: an entity of the request's version; or a future, after which the handler
is called again, since there is room for the answer."""
