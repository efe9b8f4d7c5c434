"""An agent serves the pipeline API of docs/formats/pipeline-api.md.

This module is imported with `penstock.app.http_port`, which is slow to load. Answers are made
from `sources`; `calls` has what every call needs; each group of calls is a module in this folder.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.api import commits as pipeline_commits
from penstock.app.api import objects as pipeline_objects
from penstock.app.api import reads as pipeline_reads
from penstock.app.api import stored as pipeline_stored
from penstock.app.api.calls import Handler
from penstock.app.api.sources import ApiRefusedError, PipelineSources
from penstock.app.http.callers import DeniedError
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.pipeline.api_messages import Problem

CORRUPT: Final = "corrupt_data"
CALLS: Final = "penstock_pipeline_calls_total"
_STATUSES: Final = (200, 204, 400, 403, 404, 409, 503)
"""The HTTP statuses of answers, which are the values of the label of `CALLS`."""


def pipeline_routes(sources: PipelineSources) -> Sequence[BaseRoute]:
    """Return the routes, for an application that has checked the secret."""
    routes: list[BaseRoute] = []
    for module in (pipeline_reads, pipeline_objects, pipeline_commits, pipeline_stored):
        for path, method, name, handle in module.calls(sources):
            for status in _STATUSES:
                sources.metrics.add(CALLS, 0, f"{name} {status}")
            answer = _answered(handle, name, sources)
            routes.append(Route(path, answer, methods=[method]))
    return routes


def _answered(handle: Handler, name: str, sources: PipelineSources) -> Handler:
    async def answer(request: Request) -> Response:
        response = await _answer(handle, request)
        sources.metrics.add(CALLS, 1, f"{name} {response.status_code}")
        return response

    return answer


async def _answer(handle: Handler, request: Request) -> Response:
    try:
        return await handle(request)
    except ClientDisconnect:
        return problem(400, "invalid", "the request's body ended early")
    except DeniedError as error:
        return problem(403, "denied", str(error))
    except (InvalidRequestError, OverflowError) as error:
        # OverflowError comes from a number that SQLite can't hold.
        return problem(400, "invalid", str(error))
    except NotFoundError as error:
        return problem(404, "not_found", str(error))
    except (RetryableError, FencedError) as error:
        # This agent is fenced, not the caller: another agent can answer.
        return problem(503, "retry", str(error))
    except ApiRefusedError as error:
        return problem(409, "refused", error.detail, error.reason)
    except CorruptDataError as error:
        return problem(409, "refused", str(error), CORRUPT)
    except PenstockError as error:
        return problem(409, "refused", str(error))


def problem(
    status: int,
    kind: str,
    text: str,
    reason: str = "",
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Make an answer that reports a failure; `kind` and `reason`: see `Problem`."""
    body: Any = msgspec.json.encode(Problem(error=text, kind=kind, reason=reason))
    return Response(body, status, headers, "application/json")
