"""Kafka's error codes, and the tables that turn our errors into them.

The codes are our own enumeration rather than kio's, since importing anything of kio takes a third
of a second and the first answers of a server (ApiVersions, Metadata, Produce) need error codes and
nothing else of it. kio's writer takes these as well: it reads `.value` alone.
Source: the error table of the Kafka protocol guide, 4.2.
"""

import enum
from typing import Final

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    ElsewhereError,
    FatalStorageError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.state.answers import Refusal


class ErrorCode(enum.IntEnum):
    """The codes that this server can answer with; numbers are the protocol's."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


class MalformedRequestError(InvalidRequestError):
    """The bytes of a request are not what its API and version prescribe; its connection ends."""


_BY_REFUSAL: Final = {
    Refusal.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Refusal.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Refusal.TOPIC_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    Refusal.INVALID_PARTITIONS: ErrorCode.INVALID_PARTITIONS,
    Refusal.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.FENCED_PRODUCER: ErrorCode.INVALID_PRODUCER_EPOCH,
    Refusal.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    Refusal.UNKNOWN_GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    Refusal.GROUP_NOT_EMPTY: ErrorCode.NON_EMPTY_GROUP,
    # Retriable for a client: another epoch of this agent, or another owner, will answer it.
    Refusal.FENCED_AGENT: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Refusal.STALE_SHARD: ErrorCode.NOT_COORDINATOR,
    # Objects are named by us alone, so a client can only ever see a server error for these.
    Refusal.OBJECT_IN_USE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.OBJECT_CONDEMNED: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.OBJECT_EXISTS: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.UNKNOWN_CREDENTIAL: ErrorCode.RESOURCE_NOT_FOUND,
    Refusal.GROUP_SUBSCRIBED: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    # What agents ask of the cluster for themselves; no client's request becomes such a command.
    Refusal.UNKNOWN_AGENT: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.AGENT_IS_ALIVE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.WAL_IN_USE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.LEVEL_NOT_KNOWN: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.CLOCKS_DISAGREE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # This agent's epoch is over, or its level is about to come on: others serve meanwhile.
    Refusal.WAL_NOT_OWNED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Refusal.LEVEL_NOT_ON: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # What the pipeline's jobs ask for, over HTTP.
    Refusal.UNKNOWN_JOB: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.JOB_IS_ALIVE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.JOB_TOO_OLD: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.OUT_OF_ORDER_COMMIT: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.INPUT_CHANGED: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.INVALID_REPLACEMENT: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.STALE_WRITE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.WRITER_IN_USE: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.INVALID_OBJECT: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.MALFORMED: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.UNKNOWN_HISTORY: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.PRODUCER_ID_MISMATCH: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Refusal.INVALID_TRANSACTION_STATE: ErrorCode.INVALID_TXN_STATE,
    Refusal.PLAIN_IN_TRANSACTION: ErrorCode.INVALID_TXN_STATE,
    Refusal.TRANSACTION_TOO_LARGE: ErrorCode.INVALID_TXN_STATE,
    Refusal.STALE_CONNECTION: ErrorCode.UNKNOWN_SERVER_ERROR,
    # Clients abort the transaction, and begin it again.
    Refusal.OTHER_CONNECTION: ErrorCode.ILLEGAL_GENERATION,
    Refusal.HISTORY_GREW: ErrorCode.UNKNOWN_SERVER_ERROR,
    Refusal.CLOCKS_DISAGREE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # The agent sends the entry again in order; a client never waits for that.
    Refusal.OUT_OF_ORDER_ENTRY: ErrorCode.REQUEST_TIMED_OUT,
}

# Looked up along the error's method resolution order, so a subclass without a row of its own is
# answered as its nearest ancestor.
_BY_ERROR: Final[dict[type[BaseException], ErrorCode]] = {
    # KAFKA_STORAGE_ERROR is retriable in every client: nothing was stored, space may come.
    StorageFullError: ErrorCode.KAFKA_STORAGE_ERROR,
    # Retriable, and it does not make clients throw away what they know about the cluster.
    OverloadedError: ErrorCode.REQUEST_TIMED_OUT,
    RetryableError: ErrorCode.REQUEST_TIMED_OUT,
    # Clients read the metadata again, which names others as leaders.
    ElsewhereError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    FencedError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ConflictError: ErrorCode.INVALID_REQUEST,
    InvalidRequestError: ErrorCode.INVALID_REQUEST,
    NotFoundError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    CorruptDataError: ErrorCode.KAFKA_STORAGE_ERROR,
    FatalStorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    PenstockError: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def refusal_code(refusal: int) -> ErrorCode:
    """The Kafka error for a refusal of the state machine."""
    return _BY_REFUSAL[Refusal(refusal)]


def error_code(error: BaseException) -> ErrorCode:
    """The Kafka error for an exception; foreign ones are UNKNOWN_SERVER_ERROR."""
    for kind in type(error).__mro__:
        code = _BY_ERROR.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
