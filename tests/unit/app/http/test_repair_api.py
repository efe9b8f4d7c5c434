"""The calls of `penstock repair`, to a server that can't have what is asked for."""

import json
from typing import Any

import pytest
from starlette.applications import Starlette

from penstock.app.http.repair_api import PLACES_MAX, RepairSources, repair_routes


async def post(application: Starlette, path: str, body: dict[str, Any]) -> tuple[int, str]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
    }
    await application(scope, receive, send)
    return sent[0]["status"], b"".join(part["body"] for part in sent[1:]).decode()


@pytest.mark.parametrize("action", ["look", "append", "give_up"])
async def test_a_server_of_its_own_says_that_it_has_no_lost_histories(action: str) -> None:
    application = Starlette(routes=list(repair_routes(RepairSources())))
    status, text = await post(application, "/v1/repair/histories", {"action": action})
    assert status == 409
    assert "only this server writes its journal" in text
    assert "ask an agent of a cluster" in text


class Repair:
    """A repair that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def look(self, places: Any) -> list[Any]:
        self.asked.append(("look", places))
        return []

    async def find(self, places: Any, *, source: str) -> list[Any]:
        self.asked.append(("find", places, source))
        return []

    async def restore(self, places: Any, *, source: str) -> list[Any]:
        self.asked.append(("restore", places, source))
        return []

    async def accept_loss(self, places: Any) -> list[Any]:
        self.asked.append(("accept_loss", places))
        return []


@pytest.mark.parametrize(
    ("body", "status", "asked"),
    [
        ({}, 200, ("look", None)),
        ({"action": "accept_loss", "places": [[4096, 7]]}, 200, ("accept_loss", [(4096, 7)])),
        ({"places": [[0, (1 << 63) - 1]]}, 200, ("look", [(0, (1 << 63) - 1)])),
        ({"action": "find", "source": "/x"}, 200, ("find", None, "/x")),
        ({"action": "restore", "places": [[1, 2]]}, 200, ("restore", [(1, 2)], "")),
        ({"places": [[-1, 0]]}, 400, None),
        ({"places": [[0, 1 << 63]]}, 400, None),
        ({"places": [[0, 0]] * (PLACES_MAX + 1)}, 400, None),
        ({"action": "delete"}, 400, None),
    ],
)
async def test_runs_are_named_by_partition_and_offset(
    body: dict[str, Any], status: int, asked: Any
) -> None:
    repair = Repair()
    sources = RepairSources(damage=repair)  # type: ignore[arg-type]
    application = Starlette(routes=list(repair_routes(sources)))
    found, _ = await post(application, "/v1/repair/damage", body)
    assert found == status
    assert repair.asked == ([] if asked is None else [asked])
