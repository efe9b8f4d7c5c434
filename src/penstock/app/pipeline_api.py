"""The agent's side of the pipeline's door: docs/formats/pipeline-api.md.

Imported with `penstock.app.http`. What the answers are made of is `PipelineSources`; each group of
calls is a module beside this one.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.http_connection import read_body
from penstock.config.addresses import Address
from penstock.lake.door import Problem
from penstock.log.serving import ServingLog
from penstock.metadata.ages import Ages
from penstock.metadata.answers import AnyAnswer, Refusal, Refused
from penstock.metadata.commands import AnyCommand
from penstock.metadata.levels import LevelNotOnError
from penstock.metadata.ordering import Heads
from penstock.metadata.queries import Queries
from penstock.metadata.schema import PIPELINE_LEVEL
from penstock.metadata.view import MetadataView, Topic
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.model.malformed import MALFORMED
from penstock.observability.metrics import Metrics
from penstock.ports.objects import ObjectStore

T = TypeVar("T")

BODY_BYTES_MAX: Final = 64 << 20
"""Largest body of a JSON request: it holds a commit of many runs."""
COMMAND_BYTES_MAX: Final = 16 << 20
"""Largest journal entry that a request may make."""
CORRUPT: Final = "corrupt_data"
CALLS: Final = "penstock_pipeline_calls_total"
_STATUSES: Final = (200, 204, 400, 403, 404, 409, 503)
"""The statuses of answers: the values of the label of `CALLS`."""
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSources:
    """What answers are made of, in any shape of a server.

    `objects_url`: of the store without credentials, "" where it can't be told; `heads`: None where
    this agent is always at the journal's head.
    """

    cluster_id: str
    version: str
    ages: Ages
    view: MetadataView
    queries: Callable[[], Queries]
    log: ServingLog
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
    """Whoever reaches this port may read and write everything by Kafka's protocol, too."""
    on_loopback: bool = False
    """Without a secret, and nobody but this machine reaches the port."""

    async def confirm(self) -> None:
        """Wait until this agent knows all that happened before the call, and queries find it.

        Raises:
            RetryableError: it can't be known now.
        """
        if self.heads is not None:
            try:
                async with asyncio.timeout(self.confirm_timeout_s):
                    await self.heads.confirm_head()
            except TimeoutError as error:
                raise RetryableError("confirm", "journal", "it doesn't answer") from error
            except NotFoundError as error:
                # This agent lags behind what the journal still has, and ends. It says nothing of
                # what was asked for: another agent knows.
                raise RetryableError("confirm", "journal", str(error)) from error
        await self.log.let_queries_find()

    async def ask(self, question: Callable[[Queries], T]) -> T:
        """Ask the state in the pool, on a connection of the thread's own."""
        return await asyncio.get_running_loop().run_in_executor(
            self.pool, lambda: question(self.queries())
        )

    async def commit(self, command: AnyCommand) -> AnyAnswer:
        """Journal a command.

        Raises:
            DoorRefusedError: it was refused.
            InvalidRequestError: it is too long, or holds a number that no entry can.
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
        """Find a topic by its id's hexadecimal digits, as this agent knows it.

        Raises:
            InvalidRequestError: that is no id.
        """
        if not _TOPIC_ID.fullmatch(topic_id):
            raise InvalidRequestError("look up topic", repr(topic_id), "an id has 32 hex digits")
        return self.view.topic_by_id(bytes.fromhex(topic_id))

    def partition(self, topic_id: str, partition: int) -> PartitionKey:
        """Raises: NotFoundError: there is none, InvalidRequestError."""
        topic = self.topic(topic_id)
        if topic is None or not 0 <= partition < topic.partitions:
            raise NotFoundError(
                "look up", f"partition {partition} of topic {topic_id}", "there is no such one"
            )
        return partition_key(topic.topic_key, partition)

    def _level_not_on(self) -> PenstockError:
        """Agents raise the level by themselves, as soon as each knows it."""
        live = [agent.level_max for agent in self.view.agents() if agent.live]
        text = f"feature level {self.view.feature_level} is on, jobs need {PIPELINE_LEVEL}"
        if min(live, default=0) < PIPELINE_LEVEL:
            return refused(
                Refusal.LEVEL_NOT_ON,
                f"{text}, and an agent of an older release takes part still: upgrade it",
            )
        return RetryableError("commit", "job", f"{text}: it is being switched on")


def _check_command(command: AnyCommand) -> None:
    # Here, and not where entries are made: what fails there is an error of all that wait.
    try:
        size_bytes = len(msgspec.msgpack.encode(command))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError("commit", type(command).__name__, str(error)) from error
    if size_bytes > COMMAND_BYTES_MAX:
        raise InvalidRequestError(
            "commit",
            type(command).__name__,
            f"{size_bytes} bytes, {COMMAND_BYTES_MAX} at most",
            "commit fewer runs at once",
        )


def url_without_credentials(location: str) -> str:
    """A store's path or URL as a URL that may be shown: without user, password and query."""
    if "://" not in location:
        return Path(location).resolve().as_uri()
    url = urlsplit(location)
    host = url.netloc.rpartition("@")[2]
    return urlunsplit((url.scheme, host, url.path, "", ""))


class DoorRefusedError(ConflictError):
    """A 409. `reason`: a Refusal's name in lower case, or one of this door's own."""

    def __init__(self, operation: str, subject: str, detail: str, *, reason: str) -> None:
        super().__init__(operation, subject, detail)
        self.reason = reason


def refused(reason: Refusal, detail: str) -> DoorRefusedError:
    """Apply's refusal as an error."""
    return DoorRefusedError("commit", "job", detail, reason=reason.name.lower())


def pipeline_routes(sources: PipelineSources) -> Sequence[BaseRoute]:
    """Routes for an application that has checked the secret."""
    from penstock.app import (
        pipeline_commits,
        pipeline_objects,
        pipeline_reads,
        pipeline_stored,
    )

    routes: list[BaseRoute] = []
    for module in (pipeline_reads, pipeline_objects, pipeline_commits, pipeline_stored):
        for path, method, name, handle in module.calls(sources):
            for status in _STATUSES:
                sources.metrics.add(CALLS, 0, f"{name} {status}")
            answer = _answered(handle, name, sources)
            routes.append(Route(path, answer, methods=[method]))
    return routes


Call = tuple[str, str, str, Handler]
"""Path, method, name in metrics, and what answers."""


async def read_message(request: Request, kind: type[T]) -> T:
    """A JSON body.

    Raises:
        InvalidRequestError: it is none of that kind, or too long.
        OverloadedError: see `read_body`.
    """
    body = await read_body(request, BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise InvalidRequestError("read", request.url.path, str(error)) from error


def message(value: msgspec.Struct) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def nothing() -> Response:
    """An answer that tells nothing but that it is done."""
    return Response(b"{}", media_type="application/json")


def _answered(handle: Handler, name: str, sources: PipelineSources) -> Handler:
    async def answer(request: Request) -> Response:
        if _is_of_a_page(request, on_loopback=sources.on_loopback):
            response = _problem(403, "invalid", "not from a web page")
        else:
            response = await _answer(handle, request)
        sources.metrics.add(CALLS, 1, f"{name} {response.status_code}")
        return response

    return answer


def _is_of_a_page(request: Request, *, on_loopback: bool) -> bool:
    """Whether a web page that a person on this machine looks at may have sent it: one that tells
    its origin; or one whose host's name leads here by now, and which needs to tell none."""
    if "origin" in request.headers:
        return True
    host = request.url.hostname or ""
    return on_loopback and not Address(host, 1).is_loopback


async def _answer(handle: Handler, request: Request) -> Response:
    try:
        return await handle(request)
    except ClientDisconnect:
        return _problem(400, "invalid", "the request's body ended early")
    except (InvalidRequestError, OverflowError) as error:
        # The latter of a number that no state can hold.
        return _problem(400, "invalid", str(error))
    except NotFoundError as error:
        return _problem(404, "not_found", str(error))
    except (RetryableError, FencedError) as error:
        # Fenced is this agent: another one goes on.
        return _problem(503, "retry", str(error))
    except DoorRefusedError as error:
        return _problem(409, "refused", error.detail, error.reason)
    except CorruptDataError as error:
        return _problem(409, "refused", str(error), CORRUPT)
    except PenstockError as error:
        return _problem(409, "refused", str(error))


def _problem(status: int, kind: str, text: str, reason: str = "") -> Response:
    body: Any = msgspec.json.encode(Problem(error=text, kind=kind, reason=reason))
    return Response(body, status, media_type="application/json")
