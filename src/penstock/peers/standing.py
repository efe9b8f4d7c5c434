"""Asks other agents, over the peers' port, about one that the journal is away from.

docs/formats/peers.md has the tables. The asked agent answers from its memory alone.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec
from typing_extensions import Buffer

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.model.malformed import MALFORMED
from penstock.peers.codec import FrameKind, frame
from penstock.peers.receive import Frame
from penstock.peers.zone import Calls

STANDING_PATH: Final = "/peer/v1/standing"
PAYLOAD_BYTES_MAX: Final = 64


class Asked(NamedTuple):
    """An agent in one of its epochs, whose standing is asked for."""

    agent: int
    epoch: int


class Standing(NamedTuple):
    """An agent's answer about another's epoch.

    head_age_ms: since the journal's head was read at which the answering agent's replica is.
    is_over: the epoch was ended by an entry that the answering agent has applied.
    """

    head_age_ms: int
    is_over: bool


AnswerStanding = Callable[[Asked], Standing]

_encoder = msgspec.msgpack.Encoder()
_asked_decoder = msgspec.msgpack.Decoder(Asked)
_standing_decoder = msgspec.msgpack.Decoder(Standing)


def decode_asked(body: Buffer) -> Asked:
    """Parse a call.

    Raises:
        InvalidRequestError: it is malformed.
    """
    try:
        return _asked_decoder.decode(body)
    except MALFORMED as error:
        raise InvalidRequestError("read peer call", "standing", str(error)) from error


async def serve_standing(standing: Standing) -> AsyncIterator[Buffer]:
    """Frames of the whole answer: one of data, and the end."""
    payload = _encoder.encode(standing)
    yield frame(FrameKind.DATA, 0, len(payload)) + payload + frame(FrameKind.END)


async def ask_standing(calls: Calls, address: str, asked: Asked) -> Standing:
    """Ask one agent.

    Args:
        address: HOST:PORT of its peers' port.

    Raises:
        RetryableError: it is away, of a release that doesn't know this call, or its answer is
            not one.
    """
    frames: list[Frame] = []
    await calls.call(
        address,
        STANDING_PATH,
        _encoder.encode(asked),
        on_frame=frames.append,
        payload_bytes_max=[PAYLOAD_BYTES_MAX],
    )
    for found in frames:
        if found.kind == FrameKind.DATA:
            try:
                return _standing_decoder.decode(found.payload)
            except MALFORMED as error:
                raise RetryableError("ask standing", address, str(error)) from error
    raise RetryableError("ask standing", address, "it gave no answer")
