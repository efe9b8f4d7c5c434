"""The calls of `penstock repair`, to a server that can't have what is asked for."""

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette

from penstock.app.repair_api import RepairSources, repair_routes


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
def test_a_server_of_its_own_says_that_it_has_no_lost_histories(action: str) -> None:
    application = Starlette(routes=list(repair_routes(RepairSources())))
    status, text = asyncio.run(post(application, "/v1/repair/histories", {"action": action}))
    assert status == 409
    assert "this server's journal is its own" in text
    assert "ask an agent of a cluster" in text
