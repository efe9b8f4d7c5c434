"""The HTTP calls of `penstock repair`: what is found, and what is to be done about it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.agents_api import answered, json_response
from penstock.log.history_repair import HistoryRepair, HistoryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSources:
    """What the calls are answered by. None: this server can't have such damage."""

    histories: HistoryRepair | None = None


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What POST /v1/repair/histories takes. `history`: one of the open ones; None: all."""

    action: Literal["look", "append", "give_up"] = "look"
    history: int | None = None


def repair_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    """Routes for an application that has checked the secret."""
    repair = sources.histories
    if repair is None:
        return []

    async def histories(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body(), type=HistoryRequest)
        work = {"look": repair.look, "append": repair.append, "give_up": repair.give_up}
        reports = await work[wanted.action](wanted.history)
        return json_response({"histories": [_described(report) for report in reports]})

    return [Route("/v1/repair/histories", answered(histories), methods=["POST"])]


def _described(report: HistoryReport) -> dict[str, Any]:
    history = report.history
    return {
        "history": history.history,
        "start": history.start,
        "end": history.end,
        "reason": history.reason.name.lower(),
        "agent": history.agent,
        "noted_ms": history.noted_ms,
        "held_end": report.held_end,
        "closed": report.closed,
        "moves": report.moves,
        "topics": report.topics,
        "partitions": [asdict(found) for found in report.partitions],
    }
