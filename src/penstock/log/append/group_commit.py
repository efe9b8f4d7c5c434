"""One group commit: the appends and commands that share an entry, and what became of them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.log.append.plan import FramePlan, PartitionAppend
from penstock.model.errors import PenstockError
from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand
from penstock.state.order_types import AppliedEntry
from penstock.wal import WalPlace


@dataclass(slots=True)
class AppendRequest:
    """The batches of one produce request. `done` is called once, on the event loop, with the
    error if nothing was stored, else None; the appends then hold their answers."""

    appends: list[PartitionAppend]
    length: int
    deadline_s: float
    done: Callable[[PenstockError | None], None]
    source: int = 0
    """The connection that it came from; 0: none."""
    place: int = 0
    """In the order in which the lane was handed requests, from 1 on."""


@dataclass(slots=True)
class CommandRequest:
    """Commands of one `commit` call and the future of their answers."""

    commands: Sequence[AnyCommand]
    future: asyncio.Future[list[AnyAnswer]]


@dataclass(slots=True)
class GroupCommit:
    """One turn of the commit lane: one entry, one frame. Either `applied` or `error` is set once
    the turn is over."""

    appends: list[AppendRequest]
    commands: list[CommandRequest]
    plan: FramePlan | None = None
    """The frame of the appends; None: there are none."""
    place: WalPlace | None = None
    """Where the frame lies; None: no frame holds the entry."""
    applied: AppliedEntry | None = None
    error: PenstockError | None = None
    wal_s: float = 0.0
    """Seconds that writing the frame took; `journal_s`: all else."""
    journal_s: float = 0.0
