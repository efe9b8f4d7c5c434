"""The errors of Penstock: few kinds, one per what the caller should do about it.

The Kafka error code is looked up by the face (`penstock.kafka.errors`), never stored here.
"""


class PenstockError(Exception):
    """Root of every error that Penstock raises on purpose.

    Args:
        operation: what was being done, for example "append" or "open journal".
        subject: what it was done to, for example "flights-3" or a path.
        detail: what went wrong, with numbers and their units.
        hint: what the reader can do about it; may be empty.
    """

    def __init__(self, operation: str, subject: str, detail: str, hint: str = "") -> None:
        self.operation = operation
        self.subject = subject
        self.detail = detail
        self.hint = hint
        super().__init__(operation, subject, detail, hint)

    def __str__(self) -> str:
        text = f"{self.operation} {self.subject}: {self.detail}"
        return f"{text} ({self.hint})" if self.hint else text


class RetryableError(PenstockError):
    """Nothing happened; the same call may succeed later."""


class StorageFullError(RetryableError):
    """No space for bytes (WAL, objects or SQLite); it recovers once there is space."""


class OverloadedError(RetryableError):
    """A byte budget or a bounded queue is full."""


class ElsewhereError(RetryableError):
    """Another agent takes what this one can not take now: clients look for another leader."""


class InDoubtError(RetryableError):
    """The call wasn't answered in time and may still take effect: only a retry that can be
    recognised as one is safe (by a producer's sequence, by an entry's number)."""


class ConflictError(PenstockError):
    """Something is there already, or changed meanwhile."""


class FencedError(PenstockError):
    """A newer epoch of the same agent, producer or group owner exists."""


class InvalidRequestError(PenstockError):
    """The request can never succeed as it is."""


class OtherClusterError(InvalidRequestError):
    """The directory or store that was opened belongs to another cluster than this process."""

    def __init__(
        self, operation: str, subject: str, detail: str, hint: str = "", *, cluster_id: str
    ) -> None:
        """
        Args:
            cluster_id: of the other one.
        """
        super().__init__(operation, subject, detail, hint)
        self.cluster_id = cluster_id


class NotFoundError(PenstockError):
    """The named thing does not exist."""


class CorruptDataError(PenstockError):
    """Stored bytes are not what was written; subject names file and position."""


class FatalStorageError(PenstockError):
    """A failed fsync or commit: what is durable is unknown, so the process must end."""


class JournalOlderError(FatalStorageError):
    """The journal lost entries that were applied here (a restore, an asynchronous failover): this
    replica holds what the others never saw. It is set aside, and the agent must not serve."""
