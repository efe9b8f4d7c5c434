"""Committing for the administrative handlers: with a deadline, and an outcome per command."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from penstock.kafka.admin.lines import describe_first, note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.kafka.outcomes import ItemError, Outcome
from penstock.model.errors import FencedError, PenstockError
from penstock.state.answers import AnyAnswer, Refused
from penstock.state.commands import AnyCommand

TIMEOUT_MIN_S: Final = 1.0
"""Clients that send a timeout of zero mean "answer without waiting", for which Kafka answers
REQUEST_TIMED_OUT whatever happens; here a commit takes milliseconds, so it is awaited."""
TIMEOUT_MAX_S: Final = 300.0
DEFAULT_TIMEOUT: Final = timedelta(seconds=60)
"""The timeout of the APIs whose request has none."""


async def commit(
    context: RequestContext, commands: Sequence[AnyCommand], timeout: timedelta = DEFAULT_TIMEOUT
) -> list[Outcome]:
    """Commit commands in one go; one outcome per command.

    Args:
        timeout: the request's. When it passes, the commands may still be applied.
    """
    if not commands:
        return []
    changes = describe_first(context.broker.view, commands)
    seconds = min(max(timeout.total_seconds(), TIMEOUT_MIN_S), TIMEOUT_MAX_S)
    try:
        async with asyncio.timeout(seconds), context.broker.creations.sending(commands):
            answers = await context.broker.committer.commit(commands)
    except ItemError as error:
        return [error.outcome] * len(commands)
    except TimeoutError:
        text = f"not known to be done after {seconds:g} s"
        note_changes(context, [f"{text}: {change}" for change in changes], count=len(commands))
        return [Outcome(ErrorCode.REQUEST_TIMED_OUT, text)] * len(commands)
    except FencedError as error:
        # This agent is ending: an administrator looks for a controller again, which any other is.
        return [Outcome(ErrorCode.NOT_CONTROLLER, str(error))] * len(commands)
    except PenstockError as error:
        return [Outcome(error_code(error), str(error))] * len(commands)
    made = [change for change, answer in zip(changes, answers, strict=False) if _is_made(answer)]
    note_changes(context, made, count=sum(map(_is_made, answers)))
    return [_outcome(answer) for answer in answers]


def _is_made(answer: AnyAnswer) -> bool:
    return not isinstance(answer, Refused)


def _outcome(answer: AnyAnswer) -> Outcome:
    if isinstance(answer, Refused):
        return Outcome(refusal_code(answer.reason), answer.detail or None)
    return Outcome(answer=answer)
