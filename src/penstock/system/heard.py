"""Errors after which the program goes on: each is counted, and has a log line once per cause and
minute.

One list per process, as there is one `/metrics` per process. What is swallowed deep in a storage
adapter needs no port through ten constructors for it. `tests/unit/test_heard_everywhere.py` walks
the source: each `except` that goes on calls `heard`, or has its reason in the test.
"""

import enum
import logging
import threading
from collections.abc import Mapping
from typing import Final

from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.system.clock import SystemClock
from penstock.system.seldom import Seldom


class Cause(enum.StrEnum):
    """Label values of `penstock_swallowed_errors_total`: what could not be done."""

    APPEND_ENTRY = "append to the journal"
    ARCHIVE_LISTING = "follow a listing of the archive"
    ARCHIVE_OBJECT = "read an object of the archive"
    ASK_AGENT = "ask an agent of the journal"
    ATTEMPT = "run a task of a job"
    AUTHZ_CALL = "answer a call of the authorization service"
    AUTHZ_DECISIONS = "write the log of decisions"
    AUTHZ_JOURNAL = "open what follows a shared authorization journal"
    AUTHZ_SNAPSHOTS = "take snapshots of the authorization service"
    AUTHZ_POLICY = "set the policy of a file"
    CLAIM_SHARDS = "claim shards of groups"
    COMMIT_GROUP = "commit a stream's offsets to a group"
    CONFIRM_HEAD = "confirm the journal's head"
    DAMAGED_FRAMES = "look at damaged WAL frames"
    DATABASE_FULL = "commit to the database"
    END_EPOCH = "end the own epoch"
    END_WORKER = "end a worker"
    EVENT_LOOP = "callback of the event loop"
    FILE_REGION = "check a region of a segment's file"
    FLUSH = "make a flush durable"
    FOLLOW_JOURNAL = "follow the journal"
    GROUP_JOURNAL = "journal a group's command"
    SHARE_RELAY = "ask the owner of a share group"
    GROUP_UNREADABLE = "read a group"
    HAND_OVER = "hand over shards of groups"
    HOLD_STATE = "hold a state to hash it"
    JOB_LEASE = "renew or close a job"
    JOB_LOST = "keep a job"
    JOIN_FILES = "join small files of a table"
    JOURNAL_FILE = "write journal files"
    JOURNAL_HINTS = "listen for hints of the journal"
    LOAD_CERTIFICATE = "load a certificate"
    AUDIT = "write the audit log"
    LOAD_JWKS = "load keys of tokens"
    LOAD_SECRET = "load the cluster's secret"  # noqa: S105 - what was being done
    LOOK_UP_OBJECT = "look up an object"
    MEMBERSHIP = "beat, fence or raise the feature level"
    NOTED_RANGES = "read noted ranges"
    OPEN_EPOCH = "open an epoch"
    OPEN_WAL = "open the own WAL"
    PEER_BLOCKS = "read blocks of a peer"
    PEER_WAL = "read a peer's WAL"
    PRODUCER_ID = "give out a producer id"
    PUT_FLUSH = "put a flush's object"
    REACH_WRITER = "reach worker 0"
    RECORD_CHECK = "check records"
    REMOVE_FILE = "remove a file"
    REPLICA_COPY = "open the copy of a replicated service"
    REPLICA_MACHINE = "apply an entry of a replicated service"
    REBUILD_FILE = "rebuild a damaged file of a table"
    REPLAY_LETTERS = "add dead letters to a table"
    REPAIR = "find a copy to repair from"
    SCRUB = "read all that is stored"
    SEGMENT_INDEX = "read a segment's index"
    SERVE_WORKER = "serve a worker"
    SIGN_URL = "sign a URL"
    SNAPSHOT = "use a snapshot"
    TLS_HANDSHAKE = "shake hands by TLS"
    TAKEOVER = "take over a WAL"
    TRANSACTION = "serve a transaction's request"
    TRIM = "trim the journal and the archive"
    WAL_SPACE = "have space in the WAL"
    WATCH_PEER = "watch for a peer's end"


_FORESEEN: Final = (PenstockError, OSError, TimeoutError)
"""Errors of the world around the program; a traceback of others names the bug."""


class Heard:
    """Counts errors and says them seldom. Any thread.

    Args:
        clock: of the minute in which a cause has one line.
    """

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[str, int] = {cause.value: 0 for cause in Cause}
        """Failures by cause, from the start."""
        self._seldom = Seldom(clock)
        self._lock = threading.Lock()

    def forget(self, clock: Clock) -> None:
        """Begin again: no cause has had its line."""
        self._seldom = Seldom(clock)

    def count(
        self,
        cause: Cause,
        error: BaseException | str,
        logger: logging.Logger,
        saying: str,
        level: int = logging.WARNING,
    ) -> None:
        """See `heard`."""
        with self._lock:
            self.counts[cause.value] += 1
        self.say(cause.value, error, logger, saying, level)

    def say(
        self,
        kind: str,
        error: BaseException | str,
        logger: logging.Logger,
        saying: str,
        level: int = logging.WARNING,
    ) -> None:
        """Write one line per kind and minute, with the number of those left out."""
        if not logger.isEnabledFor(level):
            return
        with self._lock:
            count = self._seldom.due(kind)
        if not count:
            return
        left_out = f" ({count - 1} more since the last such line)" if count > 1 else ""
        trace = error if isinstance(error, Exception) and not isinstance(error, _FORESEEN) else None
        logger.log(level, "%s: %s%s", saying, text_of(error), left_out, exc_info=trace)


def text_of(error: BaseException | str) -> str:
    """Return an error's text; its type's name if it has none, as a TimeoutError."""
    return str(error) or type(error).__name__


_PROCESS = Heard(SystemClock())


def heard(
    cause: Cause,
    error: BaseException | str,
    logger: logging.Logger,
    saying: str,
    level: int = logging.WARNING,
) -> None:
    """Count an error after which the program goes on, and say it once per cause and minute.

    Args:
        error: what was caught, or its text.
        logger: of the module that goes on.
        saying: the line's beginning: what failed, and how the program goes on.
    """
    _PROCESS.count(cause, error, logger, saying, level)


def say_seldom(
    kind: str,
    error: BaseException | str,
    logger: logging.Logger,
    saying: str,
    level: int = logging.WARNING,
) -> None:
    """Say an error that is counted elsewhere, once per kind and minute."""
    _PROCESS.say(kind, error, logger, saying, level)


def swallowed_counts() -> Mapping[str, int]:
    """Return how many errors of each cause there were; the mapping goes on counting."""
    return _PROCESS.counts


def forget(clock: Clock | None = None) -> None:
    """Let each cause have its line again; for tests.

    Args:
        clock: the minute's from now on; None: the system's.
    """
    _PROCESS.forget(clock or SystemClock())
