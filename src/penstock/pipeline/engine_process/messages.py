"""Messages between the scheduler and its engine process: docs/formats/engine-process.md."""

from typing import Any, Final

import msgspec

from penstock.model.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.pipeline.api_messages import JobRequest
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.jobs import Job, JobSettings

LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 64 << 20
PERMANENT: Final = "permanent"
RETRY: Final = "retry"


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    pass


class Start(_Message, frozen=True, tag="start"):
    """Open the engine."""

    engine: EngineChoice
    api: ClientOptions
    settings: JobSettings


class Ready(_Message, frozen=True, tag="ready"):
    """Jobs may come. `pids`: this process, and its Java."""

    shown: str
    pids: list[int]


class FailedStart(_Message, frozen=True, tag="failed_start"):
    """The engine can't be opened. `kind`: PERMANENT or RETRY."""

    kind: str
    text: str


class Alive(_Message, frozen=True, tag="alive"):
    """The engine was found alive. `swallowed`: errors that this process went on after."""

    swallowed: dict[str, int]


class EngineLost(_Message, frozen=True, tag="engine_lost"):
    """The engine is gone, and this process ends."""

    text: str


class Run(_Message, frozen=True, tag="run"):
    """Do a job."""

    token: int
    job: Job


class StopJob(_Message, frozen=True, tag="stop_job"):
    """End it between two steps."""

    token: int


class Done(_Message, frozen=True, tag="done"):
    """A job is through."""

    token: int
    summary: dict[str, Any]


class Failed(_Message, frozen=True, tag="failed"):
    """A job failed."""

    token: int
    text: str


class OpenLease(_Message, frozen=True, tag="open_lease"):
    """Register a job with the cluster."""

    token: int
    request: JobRequest


class Lease(_Message, frozen=True, tag="lease"):
    """It is registered."""

    token: int
    job: int
    position: int
    time_ms: int
    lease_ms: int


class LeaseRefused(_Message, frozen=True, tag="lease_refused"):
    """It isn't: a PenstockError by its kind and its four texts."""

    token: int
    kind: str
    texts: tuple[str, str, str, str]


class LeaseLost(_Message, frozen=True, tag="lease_lost"):
    """The cluster has closed it."""

    job: int
    text: str


class CloseLease(_Message, frozen=True, tag="close_lease"):
    """It is over."""

    job: int


class Stop(_Message, frozen=True, tag="stop"):
    """End: no job runs."""


ToEngine = Start | Run | StopJob | Lease | LeaseRefused | LeaseLost | Stop
FromEngine = Ready | FailedStart | Alive | EngineLost | Done | Failed | OpenLease | CloseLease
Message = ToEngine | FromEngine

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)
_KINDS: Final = {
    kind.__name__: kind
    for kind in (ConflictError, FencedError, InvalidRequestError, NotFoundError, RetryableError)
}


def encode(message: Message) -> bytes:
    """Return the message with its length before it.

    Raises:
        InvalidRequestError: it is longer than MESSAGE_BYTES_MAX.
    """
    body = _ENCODER.encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise InvalidRequestError(
            "send", type(message).__name__, f"{len(body)} bytes, more than {MESSAGE_BYTES_MAX}"
        )
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length_of(head: bytes) -> int:
    """Return how many bytes follow. Raises: InvalidRequestError: more than MESSAGE_BYTES_MAX."""
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise InvalidRequestError("receive", "a message", f"it announces {length} bytes")
    return length


def decode(body: bytes) -> Message:
    """Return the message. Raises: InvalidRequestError: it isn't one."""
    try:
        message: Message = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError("receive", "a message", str(error)) from error
    return message


def refusal(token: int, error: PenstockError) -> LeaseRefused:
    """Return what says the error."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), "")
    return LeaseRefused(token, kind, (error.operation, error.subject, error.detail, error.hint))


def refused_error(message: LeaseRefused) -> PenstockError:
    """Return the error that was said."""
    return _KINDS.get(message.kind, RetryableError)(*message.texts)
