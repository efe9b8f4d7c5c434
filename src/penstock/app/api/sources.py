"""Calls of the pipeline API are answered from the state, the log and the store."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from penstock.log import Log
from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.observability.metrics import Metrics
from penstock.order.port import Heads
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.answers import AnyAnswer, Refusal, Refused
from penstock.state.commands import AnyCommand
from penstock.state.levels import LevelNotOnError
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView, Topic
from penstock.state.schema import PIPELINE_LEVEL

T = TypeVar("T")

COMMAND_BYTES_MAX: Final = 16 << 20
"""The largest journal entry that a request may make."""
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")


class ApiRefusedError(ConflictError):
    """Answered 409. `reason`: a Refusal's name in lower case, or a reason of this API's own."""

    def __init__(self, operation: str, subject: str, detail: str, *, reason: str) -> None:
        super().__init__(operation, subject, detail)
        self.reason = reason


def refused(reason: Refusal, detail: str) -> ApiRefusedError:
    """Make an error from a refusal of apply."""
    return ApiRefusedError("commit", "job", detail, reason=reason.name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSources:
    """The sources of the pipeline API's answers, in a server of any shape.

    `objects_url`: the store's URL without credentials, "" where the store has no URL that may be
    shown; `heads`: None where this agent is always at the journal's head.
    """

    cluster_id: str
    version: str
    ages: Ages
    view: StateView
    queries: Callable[[], Queries]
    log: Log
    heads: Heads | None
    store: ObjectStore
    pool: Executor
    metrics: Metrics
    scratch: str
    objects_url: str
    block_bytes: int
    object_bytes_max: int
    confirm_timeout_s: float
    without_secret: bool = False
    """Whether calls need no secret, since clients that reach this port can also read and write
    everything by Kafka's protocol."""

    async def confirm(self) -> None:
        """Wait until this agent has applied all entries from before the call, and queries see them.

        Raises:
            RetryableError: the journal's head can't be read now.
        """
        if self.heads is not None:
            try:
                async with asyncio.timeout(self.confirm_timeout_s):
                    await self.heads.confirm_head()
            except TimeoutError as error:
                raise RetryableError("confirm", "journal", "it doesn't answer") from error
            except NotFoundError as error:
                # This agent is so far behind that the journal has dropped entries it needs, and it
                # ends. Another agent can answer the question.
                raise RetryableError("confirm", "journal", str(error)) from error
        await self.log.let_queries_find()

    async def ask(self, question: Callable[[Queries], T]) -> T:
        """Ask the state in a thread of the pool, which has its own connection."""
        return await asyncio.get_running_loop().run_in_executor(
            self.pool, lambda: question(self.queries())
        )

    async def commit(self, command: AnyCommand) -> AnyAnswer:
        """Journal a command.

        Raises:
            ApiRefusedError: apply refused the command.
            InvalidRequestError: the command is too long, or has a number that entries can't hold.
        """
        _check_command(command)
        try:
            (answer,) = await self.log.commit([command])
        except LevelNotOnError as error:
            raise self._level_not_on() from error
        if isinstance(answer, Refused) and answer.reason is Refusal.LEVEL_NOT_ON:
            raise self._level_not_on()
        if isinstance(answer, Refused):
            raise refused(answer.reason, answer.detail)
        return answer

    def topic(self, topic_id: str) -> Topic | None:
        """Find a topic by its id's hexadecimal digits, in this agent's view.

        Raises:
            InvalidRequestError: the text is not a topic id.
        """
        if not _TOPIC_ID.fullmatch(topic_id):
            raise InvalidRequestError("look up topic", repr(topic_id), "an id has 32 hex digits")
        return self.view.topic_by_id(bytes.fromhex(topic_id))

    def partition(self, topic_id: str, partition: int) -> PartitionKey:
        """Raises: NotFoundError: there is no such partition, InvalidRequestError."""
        topic = self.topic(topic_id)
        if topic is None or not 0 <= partition < topic.partitions:
            raise NotFoundError(
                "look up",
                f"partition {partition} of topic {topic_id}",
                "there is no such partition",
            )
        return partition_key(topic.topic_key, partition)

    def _level_not_on(self) -> PenstockError:
        """Make the error of a cluster below the pipeline's feature level. Agents raise the level by
        themselves, as soon as every agent knows it."""
        live = [agent.level_max for agent in self.view.agents() if agent.live]
        text = f"feature level {self.view.feature_level} is on, jobs need {PIPELINE_LEVEL}"
        if min(live, default=0) < PIPELINE_LEVEL:
            return refused(
                Refusal.LEVEL_NOT_ON,
                f"{text}, but an agent of an older release still takes part: upgrade that agent",
            )
        return RetryableError("commit", "job", f"{text}: the level is being raised")


def _check_command(command: AnyCommand) -> None:
    # The command is encoded here first: an error where entries are made would fail every command
    # that waits there.
    try:
        size_bytes = len(msgspec.msgpack.encode(command))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError("commit", type(command).__name__, str(error)) from error
    if size_bytes > COMMAND_BYTES_MAX:
        raise InvalidRequestError(
            "commit",
            type(command).__name__,
            f"it takes {size_bytes} bytes, {COMMAND_BYTES_MAX} at most are possible",
            "commit fewer runs at once",
        )


def url_without_credentials(location: str) -> str:
    """Return a store's path or URL as a URL that may be shown: no user, no password, no query."""
    if "://" not in location:
        return Path(location).resolve().as_uri()
    url = urlsplit(location)
    host = url.netloc.rpartition("@")[2]
    return urlunsplit((url.scheme, host, url.path, "", ""))
