"""The HTTP calls of `penstock repair`: what is found, and what is to be done about it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.agents_api import answered, json_response
from penstock.log.damage_repair import DamageRepair
from penstock.log.history_repair import HistoryRepair, HistoryReport
from penstock.model.errors import InvalidRequestError
from penstock.model.ids import PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSources:
    """What the calls are answered by. None: this server can't have such damage."""

    damage: DamageRepair | None = None
    partition_name: Callable[[PartitionKey], str] = str
    histories: HistoryRepair | None = None
    without_secret: bool = False
    """The servers of one host need none: whoever reaches their ports may make a backup as well."""


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What POST /v1/repair/histories takes. `history`: one of the open ones; None: all."""

    action: Literal["look", "append", "give_up"] = "look"
    history: int | None = None


class DamageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What POST /v1/repair/damage takes."""

    action: Literal["look", "accept_loss"] = "look"


def repair_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    """Routes for an application that has checked the secret."""
    return [*_damage_routes(sources), *_history_routes(sources)]


def _damage_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    repair = sources.damage
    if repair is None:
        return []

    async def damage(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body(), type=DamageRequest)
        accept = wanted.action == "accept_loss"
        reports = await (repair.accept_loss() if accept else repair.look())
        return json_response(
            {
                "runs": [
                    {
                        "partition": sources.partition_name(report.partition_key),
                        "start": report.start,
                        "end": report.end,
                        "place": report.place,
                        "state": report.state,
                        "lost": report.lost,
                        "kept_batches": report.kept_batches,
                        "note": report.note,
                    }
                    for report in reports
                ]
            }
        )

    return [Route("/v1/repair/damage", answered(damage), methods=["POST"])]


def _history_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    repair = sources.histories

    async def histories(request: Request) -> Response:
        if repair is None:
            raise InvalidRequestError(
                "repair",
                "lost histories",
                "this server's journal is its own, and no other database can bring it back older",
                "ask an agent of a cluster; without --history damage is repaired",
            )
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
