"""Stop what an agent orders while its replicas differ without a majority."""

from collections.abc import Sequence
from typing import Final

from penstock.model.errors import RetryableError
from penstock.state.commands import (
    AnyCommand,
    AskDigest,
    DrainAgent,
    Fence,
    Heartbeat,
    InitCluster,
    Noop,
    NoteLostHistory,
    RegisterAgent,
    RemoveAgent,
    ReportDigest,
    SetFeatureLevel,
)

ALLOWED: Final = frozenset(
    {
        AskDigest,
        DrainAgent,
        Fence,
        Heartbeat,
        InitCluster,
        Noop,
        NoteLostHistory,
        RegisterAgent,
        RemoveAgent,
        ReportDigest,
        SetFeatureLevel,
    }
)
"""They say who belongs to the cluster, end the stop, or keep more: none is of a client."""


class WriteStop:
    """Refuses all commands but those, while an error is set."""

    def __init__(self) -> None:
        self.error: RetryableError | None = None
        """Why nothing may be written; None: it may."""

    def refusal(self, commands: Sequence[AnyCommand]) -> RetryableError | None:
        """Return why these must not be submitted now; None: they may be."""
        if self.error is None or all(type(command) in ALLOWED for command in commands):
            return None
        return self.error
