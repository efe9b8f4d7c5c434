"""The agent's side of the pipeline's door: docs/formats/pipeline-api.md.

Imported with `penstock.app.http_port`. The answers are made of `sources`, what every call has is
`calls`; each group of calls is a module in this folder.
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
from penstock.app.api.sources import DoorRefusedError, PipelineSources
from penstock.config.addresses import Address
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
"""The statuses of answers: the values of the label of `CALLS`."""


def pipeline_routes(sources: PipelineSources) -> Sequence[BaseRoute]:
    """Routes for an application that has checked the secret."""
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
        if _is_of_a_page(request, on_loopback=sources.on_loopback):
            response = problem(403, "invalid", "not from a web page")
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
        return problem(400, "invalid", "the request's body ended early")
    except (InvalidRequestError, OverflowError) as error:
        # The latter of a number that no state can hold.
        return problem(400, "invalid", str(error))
    except NotFoundError as error:
        return problem(404, "not_found", str(error))
    except (RetryableError, FencedError) as error:
        # Fenced is this agent: another one goes on.
        return problem(503, "retry", str(error))
    except DoorRefusedError as error:
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
    """An answer that is no success; `kind` and `reason`: see `Problem`."""
    body: Any = msgspec.json.encode(Problem(error=text, kind=kind, reason=reason))
    return Response(body, status, headers, "application/json")
