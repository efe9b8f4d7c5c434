"""Error codes of Kafka and of librdkafka become errors of one line here.

librdkafka numbers its own errors below zero, and passes a broker's codes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.kafka.errors import ErrorCode
from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    PenstockError,
    RetryableError,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class RefusedError(PenstockError):
    """The server answered with an error code."""

    def __init__(self, operation: str, subject: str, code: int, message: str | None = None) -> None:
        self.code = code
        hint = code_name(code)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            # The protocol has one code for all internal errors of a server, and no room for
            # details.
            hint += ": the server's log has the numbers"
        super().__init__(operation, subject, message or "refused", hint)


RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes after which the same request may succeed. Source: the protocol guide's error table."""

NO_SUCH_TOPIC: Final = "there is no such topic"
_GENERIC: Final = ("Broker: ", "Local: ")
"""librdkafka's own texts, which it uses where the server gave none, begin with one of these."""

_MAY_PASS: Final = frozenset(
    {"_TRANSPORT", "_RESOLVE", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE"}
    | {"_MSG_TIMED_OUT", "_WAIT_COORD", "_NOENT", "_DESTROY", "_PURGE_QUEUE", "_PURGE_INFLIGHT"}
)
_DAMAGED: Final = frozenset({"_BAD_MSG", "_BAD_COMPRESSION"})
_NEVER: Final = frozenset(
    {"_INVALID_ARG", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "_NOT_IMPLEMENTED"}
    | {"_UNSUPPORTED_FEATURE"}
)


def code_name(code: int) -> str:
    """Return the protocol's name of a code, or its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def refusal(operation: str, subject: str, code: int, message: str | None = None) -> PenstockError:
    """Make the error of a code other than 0: a RetryableError if the same request may succeed."""
    if code in RETRIABLE:
        return RetryableError(operation, subject, message or "try again", code_name(code))
    return RefusedError(operation, subject, code, message)


def check(operation: str, subject: str, code: int, message: str | None = None) -> None:
    """Raise if a code is an error.

    Raises:
        RetryableError: for codes after which the same request may succeed.
        RefusedError: for the others.
    """
    if code != 0:
        raise refusal(operation, subject, code, message)


def translated(
    error: KafkaError, operation: str, subject: str, *, failure: str = ""
) -> PenstockError:
    """Make our error from an error of librdkafka.

    Args:
        failure: why the last connection failed, or "". librdkafka writes that to its log alone; its
            error of a call that waited for a connection says only that the call timed out.
    """
    code, name, text = error.code(), error.name(), error.str()
    for generic in _GENERIC:
        text = text.replace(generic, "")
    if code > 0 or code == ErrorCode.UNKNOWN_SERVER_ERROR:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and error.str().startswith(_GENERIC):
            text = NO_SUCH_TOPIC
        return refusal(operation, subject, code, text)
    hint = f"librdkafka's {name}"
    if name in _MAY_PASS:
        if failure:
            text = f"{text}: {failure}"
        return RetryableError(operation, subject, text, hint)
    if name in _DAMAGED:
        return CorruptDataError(operation, subject, text, hint)
    if name in _NEVER:
        return InvalidRequestError(operation, subject, text, hint)
    return PenstockError(operation, subject, text, hint)
