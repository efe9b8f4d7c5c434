"""Kafka's error codes, and librdkafka's, as errors of one line: the one place for both.

librdkafka numbers its own errors below zero and gives a broker's as they are.
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
            # The protocol has one code for all errors of a server's own, and no room for more.
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
"""librdkafka puts one of these before its own text, where the server gave no text."""

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
    """The protocol's name of a code, or its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def refusal(operation: str, subject: str, code: int, message: str | None = None) -> PenstockError:
    """The error of a code that is not 0: a RetryableError where the same request may succeed."""
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
    """Our error for one of librdkafka's.

    Args:
        failure: why the last connection failed, where one did: librdkafka tells that to its log,
            and of a call that waited for a connection only that it timed out.
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
