"""Each served API against its permissions: without them, with all, and with all but one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.kafka.registry import APIS
from support.acls import ALICE, ROOT, allow, authorize, take_back
from support.api_client import ApiClient
from support.log_rig import Rig
from support.permission_cases import CASES, REFUSALS, TOPIC, Asking, errors

DOCS = Path(__file__).resolve().parents[4] / "docs" / "acls.md"


class Guarded:
    """A broker with an authorizer, a topic t, and a client that is alice."""

    def __init__(self, rig: Rig) -> None:
        self.broker = rig.agent.broker
        authorize(self.broker)
        self.client = ApiClient(self.broker)
        self.become(ALICE)

    def become(self, principal: str) -> None:
        self.client.connection.principal = principal

    async def answer(self, api: str, name: str = "t") -> Any:
        case = CASES[api]
        known = self.broker.view.topic(name)
        asking = Asking(self.client, name, bytes(16) if known is None else known.topic_id)
        return await self.client.call(api, case.version, **case.fields(asking))

    async def refusals(self, api: str, name: str = "t") -> set[str]:
        return set(errors(await self.answer(api, name))) & REFUSALS


@pytest.fixture
async def guarded(rig: Rig) -> AsyncIterator[Guarded]:
    await rig.topic("t")
    yield Guarded(rig)


by_api = pytest.mark.parametrize("api", CASES)
by_topic = pytest.mark.parametrize("api", [api for api, case in CASES.items() if case.names_topic])


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_each_served_api_has_a_rule(api: Any) -> None:
    assert api.module in CASES
    text = DOCS.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and " | " in line]
    named = {name.strip() for row in rows for name in row.split(" | ")[0][2:].split(",")}
    assert api.name in named, "docs/acls.md says what each API needs"


@by_api
async def test_without_any_permission(guarded: Guarded, api: str) -> None:
    refused = CASES[api].refused
    assert await guarded.refusals(api) == (set() if refused is None else {refused})


@by_api
async def test_with_all_permissions(guarded: Guarded, api: str) -> None:
    if CASES[api].needs:
        await allow(guarded.broker, *CASES[api].needs)
    assert await guarded.refusals(api) == set()


@by_api
async def test_each_permission_is_needed(guarded: Guarded, api: str) -> None:
    needs = CASES[api].needs
    for missing in needs:
        await allow(guarded.broker, *needs)
        await take_back(guarded.broker, missing)
        assert await guarded.refusals(api), missing
        await take_back(guarded.broker, *needs)


@by_api
async def test_a_super_user_needs_none(guarded: Guarded, api: str) -> None:
    guarded.become(ROOT)
    assert await guarded.refusals(api) == set()


@by_topic
async def test_a_topic_that_exists_is_refused_as_one_that_does_not(
    guarded: Guarded, api: str
) -> None:
    others = [one for one in CASES[api].needs if one.resource_type != TOPIC]
    if others and api != "write_txn_markers":
        await allow(guarded.broker, *others)
    known, unknown = [await guarded.answer(api, name) for name in ("t", "absent")]
    assert list(errors(known)) == list(errors(unknown)) != []
    assert without_names(known) == without_names(unknown)


def without_names(answer: Any) -> str:
    return repr(answer).replace("'absent'", "'t'")
