"""An agent gives negative answers only about the present, so that clients never go back in time.

A client that has seen a topic, an offset or a generation on one agent must not learn from the next
agent, whose replica may lag, that there is no such thing. So every negative answer, and every
answer about a moment's state alone (ListOffsets, OffsetFetch, states of groups), is given only
after the replica has reached a head of the journal that was read after the request arrived. While
the journal is away such answers are errors that clients retry; answers about known things go on.

A server that stands alone has the journal's head always: there nothing here waits.

| what | says |
| --- | --- |
| `confirm` | for answers that always need it |
| `settled` | for answers that are looked up, and only need it where something was not found |
| `group_error` | for what a coordinator refuses |
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.groups.errors import GroupError
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError, Outcome
from penstock.model.errors import PenstockError
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

AWAY_TEXT: Final = "the journal is away, so it is not known whether that is so; try again"


class Certainty:
    """Says whether negative answers to one request may be given.

    Args:
        final: they may, since this agent has applied everything from before the request.
        away: they may not, since the journal does not answer.
    """

    __slots__ = ("away", "doubted", "final")

    def __init__(self, *, final: bool, away: bool = False) -> None:
        self.final = final
        self.away = away
        self.doubted = False
        """A negative answer was asked for that may be wrong."""

    def no(self, code: ErrorCode, instead: ErrorCode) -> ErrorCode:
        """A negative answer.

        Args:
            code: what is so as far as this agent knows.
            instead: what clients of this API retry, while the journal is away.
        """
        if self.final:
            return code
        self.doubted = True
        return instead if self.away else code

    def refusal(self, error: ItemError) -> ItemError:
        """A negative answer of an administrative API: what to raise."""
        if self.final:
            return error
        self.doubted = True
        if not self.away:
            return error
        return ItemError(ErrorCode.REQUEST_TIMED_OUT, AWAY_TEXT)

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome of an item, unless it may be the agent's own ignorance: see
        `refusal`."""
        if self.final:
            return outcome
        self.doubted = True
        return Outcome(ErrorCode.REQUEST_TIMED_OUT, AWAY_TEXT) if self.away else outcome


FINAL: Final = Certainty(final=True)
AWAY: Final = Certainty(final=False, away=True)


def first(context: RequestContext) -> Certainty:
    """Return the certainty of a first look. If the look has `doubted`, the caller looks again with
    the certainty of `second`."""
    return FINAL if context.broker.heads is None else Certainty(final=False)


async def second(context: RequestContext) -> Certainty:
    """Wait for a confirmation of the journal's head; return the certainty of a second look."""
    return FINAL if await confirm(context) else AWAY


async def confirm(context: RequestContext) -> bool:
    """Wait until this agent knows all that happened before the call; False: it can't be known
    now, and what is answered must be an error that clients retry."""
    broker = context.broker
    if broker.heads is None:
        return True
    try:
        async with asyncio.timeout(broker.settings.confirm_timeout_s):
            await broker.heads.confirm_head()
    except (PenstockError, TimeoutError) as error:
        saying = "clients must try again, since the journal's head can't be confirmed"
        heard(Cause.CONFIRM_HEAD, error, logger, saying)
        return False
    return True


async def settled(context: RequestContext, look: Callable[[Certainty], Awaitable[_T]]) -> _T:
    """Return the result of `look`, or if that is negative its result after a confirmation.

    Args:
        look: has no effect besides its result, and makes negative answers by the certainty's
            methods.
    """
    certainty = first(context)
    found = await look(certainty)
    if certainty.doubted:
        found = await look(await second(context))
    return found


_POSITIVE: Final = frozenset(
    {
        GroupError.NONE,
        # It gives an id, which the next request brings back.
        GroupError.MEMBER_ID_REQUIRED,
        # Those that let a client look for the coordinator again.
        GroupError.COORDINATOR_NOT_AVAILABLE,
        GroupError.NOT_COORDINATOR,
        GroupError.UNKNOWN_SERVER_ERROR,
    }
)


async def group_error(context: RequestContext, group_id: str, error: GroupError) -> GroupError:
    """Return the error for a client in place of an error of a group's coordinator.

    An agent that was stopped for a while may take itself for the owner of a group that another
    agent owns by now. Then it doesn't know members that the group has.
    """
    return (await group_errors(context, [group_id], [error]))[0]


async def group_errors(
    context: RequestContext, group_ids: Sequence[str], errors: Sequence[GroupError]
) -> list[GroupError]:
    """Do the same as `group_error` for many groups, with one confirmation."""
    if context.broker.heads is None or all(error in _POSITIVE for error in errors):
        return list(errors)
    is_known = await confirm(context)
    told = []
    async for group_id, error in context.broker.turns.each(zip(group_ids, errors, strict=True)):
        if error not in _POSITIVE:
            refused = context.broker.groups.refused(group_id)
            instead = refused if is_known else GroupError.COORDINATOR_NOT_AVAILABLE
            told.append(error if instead is GroupError.NONE else instead)
        else:
            told.append(error)
    return told
