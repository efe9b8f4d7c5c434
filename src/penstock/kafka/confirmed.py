"""Never back in time: what this agent does not know, it says only of the present.

A client that has seen a topic, an offset or a generation on one agent must not be told by the
next, whose replica may be behind, that there is none. So every negative answer, and every answer
that is nothing but a moment's state (ListOffsets, OffsetFetch, what groups look like), is given
only after the replica was seen to be at a head of the journal that was read after the request
arrived. While the journal is away such answers are errors that clients retry; what is known goes
on being told.

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
    """Whether negative answers to one request may be given.

    Args:
        final: they may: nothing happened since the request that this agent does not know of.
        away: they may not: the journal does not answer.
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
    """What a first look may say. Anything `doubted` in it is to be looked up again with what
    `second` gives."""
    return FINAL if context.broker.heads is None else Certainty(final=False)


async def second(context: RequestContext) -> Certainty:
    """What a second look may say: begins a confirmation and waits for it."""
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
        saying = "clients are told to try again, since the journal's head can't be confirmed"
        heard(Cause.CONFIRM_HEAD, error, logger, saying)
        return False
    return True


async def settled(context: RequestContext, look: Callable[[Certainty], Awaitable[_T]]) -> _T:
    """What `look` finds; where that is negative, what it finds after a confirmation.

    Args:
        look: has no effect but its result, and gives negative answers by the certainty's methods.
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
    """What a client is told instead of an error of a group's coordinator.

    An agent that was stopped may take itself for the owner of a group that another one has
    taken on since; the members that it doesn't know are then its own ignorance.
    """
    return (await group_errors(context, [group_id], [error]))[0]


async def group_errors(
    context: RequestContext, group_ids: Sequence[str], errors: Sequence[GroupError]
) -> list[GroupError]:
    """As `group_error`, of many groups with one confirmation."""
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
