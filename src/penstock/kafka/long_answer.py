"""A long answer of a handler: an entity that is encoded in pieces, as its peer takes them."""

from typing import Any

from penstock.kafka.context import PIECE_BYTES, PIECE_ITEMS, PiecedReply
from penstock.kafka.encode import length_in_steps, pieces_of
from penstock.system.turns import Turns


class LongAnswer:
    """What a handler returns in place of an entity, where it has reserved the answer's bytes.

    The entity is written twice: a reply begins with its length. So it must not change.

    Args:
        held_bytes: what the entity takes in memory, roughly.
    """

    __slots__ = ("entity", "held_bytes")

    def __init__(self, entity: Any, *, held_bytes: int) -> None:
        self.entity = entity
        self.held_bytes = held_bytes

    async def reply(self, turns: Turns) -> PiecedReply:
        """The reply; its length is found in turns of the event loop."""
        return PiecedReply(
            pieces_of(self.entity, piece_bytes=PIECE_BYTES, piece_items=PIECE_ITEMS),
            byte_count=await turns.run(length_in_steps(self.entity)),
            held_bytes=self.held_bytes,
        )
