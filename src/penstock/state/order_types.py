"""The order's port and its entries, of the log's commands, answers and changes."""

from typing import TypeAlias

from penstock.order import port, write_stop
from penstock.state.answers import AnyAnswer
from penstock.state.changes import Change
from penstock.state.commands import AnyCommand

AppliedEntry: TypeAlias = port.AppliedEntry[AnyAnswer, Change]
AppliedEntries: TypeAlias = port.AppliedEntries[AnyAnswer, Change]
OnApplied: TypeAlias = port.OnApplied[AnyAnswer, Change]
Committer: TypeAlias = port.Committer[AnyCommand, AnyAnswer]
Order: TypeAlias = port.Order[AnyCommand, AnyAnswer]
WriteStop: TypeAlias = write_stop.WriteStop[AnyCommand]
