"""`penstock repair` finds and mends damage by these HTTP calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.app.http.agents_api import answered, json_response
from penstock.app.http.connection import read_body
from penstock.app.http.progress_lines import CONTENT_TYPE, progress_lines
from penstock.app.http.targets import Targets
from penstock.log.damage.care import DamageCare
from penstock.log.damage.noted_ranges import NotedRanges
from penstock.log.damage.rebuilt_records import REBUILT_BYTES_MAX, RebuiltRecords
from penstock.log.damage.repair import DamagedRun, DamageRepair, Place
from penstock.log.history.repair import HistoryRepair, HistoryReport
from penstock.model.errors import InvalidRequestError
from penstock.model.ids import PartitionKey, partition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSources:
    """The functions that answer the calls. None: this server can't have damage of that kind."""

    damage: DamageRepair | None = None
    care: DamageCare | None = None
    rebuilt: RebuiltRecords | None = None
    lost_ranges: NotedRanges | None = None
    topic_id_of: Callable[[PartitionKey], bytes | None] = lambda _: None
    partition_name: Callable[[PartitionKey], str] = str
    histories: HistoryRepair | None = None
    targets: Targets | None = None
    """Says where copies may be looked for; None: anywhere."""
    without_secret: bool = False
    """Whether calls need no secret. Servers of one host need none, since clients that reach their
    ports may make a backup as well."""


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/repair/histories. `history`: an open history; None: all of them."""

    action: Literal["look", "append", "give_up"] = "look"
    history: int | None = None


PLACES_MAX: Final = 10_000
"""One call may name at most this many runs."""
PLACES_BODY_BYTES_MAX: Final = 1 << 20
"""Room for `PLACES_MAX` runs, which take 420 KB at most."""
_Int64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class DamageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/repair/damage. `places`: pairs of partition key and an offset of a run;
    None: all runs that this server or agent knows to be damaged. `source`: with find and restore, a
    directory or URL that may hold copies."""

    action: Literal["look", "find", "restore", "accept_loss"] = "look"
    source: str = ""
    places: Annotated[list[tuple[_Int64, _Int64]], msgspec.Meta(max_length=PLACES_MAX)] | None = (
        None
    )


class RebuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of POST /v1/repair/rebuild, whose body is batches: see `RebuiltRecords.fill`."""

    partition_key: _Int64
    start: _Int64
    end: _Int64
    accept_loss: bool = False


class LostRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/repair/lost. `after`: the partition key and start of the last range of
    the page before."""

    after: tuple[int, int] = (-1, -1)


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/repair/scan. `objects`: whether objects are read besides the WALs."""

    bytes_per_s: Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
    objects: bool = True


def repair_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    """Return the routes, for an application that has checked the secret."""
    return [*_damage_routes(sources), *_history_routes(sources)]


def _damage_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    repair = sources.damage
    if repair is None:
        return []

    async def damage(request: Request) -> Response:
        wanted = msgspec.json.decode(
            await read_body(request, PLACES_BODY_BYTES_MAX), type=DamageRequest
        )
        if wanted.source and sources.targets is not None:
            await asyncio.to_thread(sources.targets.check, "find copies", wanted.source)
        work: dict[str, Callable[[Sequence[Place] | None], Awaitable[list[DamagedRun]]]] = {
            "look": repair.look,
            "find": partial(repair.find, source=wanted.source),
            "restore": partial(repair.restore, source=wanted.source),
            "accept_loss": repair.accept_loss,
        }
        places = (
            None
            if wanted.places is None
            else [(PartitionKey(key), offset) for key, offset in wanted.places]
        )
        reports = await work[wanted.action](places)
        return json_response(
            {
                "runs": [
                    {
                        "partition": sources.partition_name(report.partition_key),
                        "partition_key": report.partition_key,
                        "topic_id": _topic_id(sources, report.partition_key),
                        "number": partition_of(report.partition_key),
                        "start": report.start,
                        "end": report.end,
                        "place": report.place,
                        "state": report.state,
                        "lost": report.lost,
                        "kept_batches": report.kept_batches,
                        "note": report.note,
                        "copy": report.copy,
                    }
                    for report in reports
                ]
            }
        )

    async def scan(request: Request) -> Response:
        wanted = msgspec.json.decode(await read_body(request), type=ScanRequest)
        assert sources.care is not None
        work = partial(
            sources.care.scan, bytes_per_s=wanted.bytes_per_s, reads_objects=wanted.objects
        )
        lines = progress_lines(lambda progress: work(progress=progress), result="scanned")
        return StreamingResponse(lines, media_type=CONTENT_TYPE)

    async def lost(request: Request) -> Response:
        assert sources.lost_ranges is not None
        wanted = msgspec.json.decode(await read_body(request) or b"{}", type=LostRequest)
        return json_response(
            {
                "ranges": [
                    {
                        "partition": sources.partition_name(key),
                        "partition_key": key,
                        "topic_id": _topic_id(sources, key),
                        "number": partition_of(key),
                        "start": start,
                        "end": end,
                    }
                    for key, start, end, _ in await sources.lost_ranges.page(wanted.after)
                ]
            }
        )

    async def rebuild(request: Request) -> Response:
        assert sources.rebuilt is not None
        wanted = msgspec.convert(dict(request.query_params), RebuildRequest, strict=False)
        body = await read_body(request, REBUILT_BYTES_MAX)
        rebuilt = await sources.rebuilt.fill(
            PartitionKey(wanted.partition_key),
            wanted.start,
            wanted.end,
            body,
            accept_loss=wanted.accept_loss,
        )
        return json_response({"filled": rebuilt.filled, "lost": rebuilt.lost})

    routes = [Route("/v1/repair/damage", answered(damage), methods=["POST"])]
    if sources.care is not None:
        routes.append(Route("/v1/repair/scan", answered(scan), methods=["POST"]))
    if sources.rebuilt is not None:
        routes.append(Route("/v1/repair/lost", answered(lost), methods=["POST"]))
        routes.append(Route("/v1/repair/rebuild", answered(rebuild), methods=["POST"]))
    return routes


def _topic_id(sources: RepairSources, key: PartitionKey) -> str:
    topic_id = sources.topic_id_of(key)
    return "" if topic_id is None else topic_id.hex()


def _history_routes(sources: RepairSources) -> Sequence[BaseRoute]:
    repair = sources.histories

    async def histories(request: Request) -> Response:
        if repair is None:
            raise InvalidRequestError(
                "repair",
                "lost histories",
                "only this server writes its journal, so no history can be lost from it",
                "ask an agent of a cluster; to repair damage, leave out --history",
            )
        wanted = msgspec.json.decode(await read_body(request), type=HistoryRequest)
        work = {"look": repair.look, "append": repair.append, "give_up": repair.give_up}
        reports = await work[wanted.action](wanted.history)
        return json_response({"histories": [_described(report) for report in reports]})

    return [Route("/v1/repair/histories", answered(histories), methods=["POST"])]


def _described(report: HistoryReport) -> dict[str, object]:
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
        "damaged": report.damaged,
        "topics": report.topics,
        "partitions": [asdict(found) for found in report.partitions],
    }
