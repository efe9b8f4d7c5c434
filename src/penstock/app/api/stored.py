"""One call of the pipeline API compares the store's listing with the journal's, for `verify`."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.app.api.calls import Call, message
from penstock.app.api.sources import PipelineSources
from penstock.model.errors import InvalidRequestError
from penstock.pipeline import api_messages as api
from penstock.pipeline.api_messages import (
    STORED_CONDEMNED,
    STORED_JOB,
    STORED_LIVE,
    STORED_PATH,
    STORED_UNKNOWN,
)
from penstock.segment.keys import SEGMENTS_PREFIX, parse_job_key
from penstock.state.read.queries import Queries

_PREFIX: Final = re.compile(r"[0-9a-f]{2}", re.ASCII)
_PAGE: Final = 1000


def calls(sources: PipelineSources) -> Sequence[Call]:
    """See `pipeline_routes`."""

    async def stored(request: Request) -> Response:
        prefix: str = request.path_params["prefix"]
        if not _PREFIX.fullmatch(prefix):
            raise InvalidRequestError("list", repr(prefix), "a prefix has two hex digits")
        folder = f"{SEGMENTS_PREFIX}{prefix}/"
        # The store is listed first. An object that it lists was put before the journal is asked, so
        # the journal knows the object, or it is an upload whose commit isn't there yet.
        sizes = {info.key: info.size_bytes async for info in sources.store.list(folder)}
        await sources.confirm()
        known, jobs = await sources.ask(lambda queries: _known(queries, folder))
        keys = sorted(sizes.keys() | {key for key, state in known.items() if state == STORED_LIVE})
        return message(
            api.Stored(
                keys=keys,
                sizes=[sizes.get(key, -1) for key in keys],
                states="".join(known.get(key) or _unknown(key, jobs) for key in keys),
            )
        )

    return [(STORED_PATH + "/{prefix:str}", "GET", "stored", stored)]


def _known(queries: Queries, folder: str) -> tuple[dict[str, str], set[int]]:
    """Return the journal's objects below a folder, and the numbers of open jobs."""
    with queries.moment():
        found: dict[str, str] = {}
        after = folder
        while page := queries.objects(after, limit=_PAGE):
            for row in page:
                if not row.key.startswith(folder):
                    break
                is_live = row.condemned_ms is None and row.live_runs
                found[row.key] = STORED_LIVE if is_live else STORED_CONDEMNED
            else:
                after = page[-1].key
                continue
            break
        return found, {job.job for job in queries.pipeline_jobs()}


def _unknown(key: str, jobs: set[int]) -> str:
    parsed = parse_job_key(key)
    return STORED_JOB if parsed is not None and parsed.job in jobs else STORED_UNKNOWN
