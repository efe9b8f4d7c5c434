"""Kafka's error codes as errors of one line."""

from penstock.kafka.errors import ErrorCode
from penstock.model.errors import PenstockError, RetryableError


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
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
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


def code_name(code: int) -> str:
    """The protocol's name of a code, or its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def check(operation: str, subject: str, code: int, message: str | None = None) -> None:
    """Raise if a code is an error.

    Raises:
        RetryableError: for codes after which the same request may succeed.
        RefusedError: for the others.
    """
    if code == 0:
        return
    if code in RETRIABLE and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise RetryableError(operation, subject, message or "try again", code_name(code))
    raise RefusedError(operation, subject, code, message)
