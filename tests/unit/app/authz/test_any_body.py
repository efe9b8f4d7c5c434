"""Any JSON, and any bytes, get an answer that isn't a bug of the server, and change nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.authz.service.call import Answer, Call
from penstock.authz.service.service import Service
from penstock.system.clock import SystemClock
from penstock.system.heard import Cause, swallowed_counts
from penstock.system.randomness import SystemRandom
from support.authz import POLICY, TEST_KEY

PATHS = [
    "authorize",
    "list",
    "actions",
    "evaluate_query",
    "authorize_resources",
    "query",
    "explain",
    "expect",
    "batch",
    "bulk",
    "bulk_load",
    "bulk_delete",
    "agents/event/message_to_user",
]
TEXT = st.sampled_from(
    ["", "a", "User", "String", "Integer", "Actor", "Repository", "allow", "has_role", "read", "*"]
) | st.text(max_size=5)
VALUE = st.fixed_dictionaries({"type": TEXT | st.none(), "id": TEXT | st.none()})
FACT = st.fixed_dictionaries({"predicate": TEXT, "args": st.lists(VALUE, max_size=4)})
NAMES = st.sampled_from(["x", "y", "z"])
CALL = st.tuples(TEXT, st.lists(NAMES, max_size=4))
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "actor_type": TEXT,
        "actor_id": TEXT,
        "action": TEXT,
        "resource_type": TEXT,
        "resource_id": TEXT,
        "resources": st.lists(VALUE, max_size=3),
        "context_facts": st.lists(FACT, max_size=2),
        "page_size": st.integers(-1, 3) | st.none(),
        "page_token": TEXT | st.none(),
        "predicate": CALL,
        "calls": st.lists(CALL, max_size=3),
        "constraints": st.dictionaries(
            NAMES,
            st.fixed_dictionaries(
                {"type": TEXT | st.none(), "ids": st.lists(TEXT, max_size=2) | st.none()}
            ),
        ),
        "fact": FACT,
        "delete": st.lists(FACT, max_size=2),
        "request_id": TEXT,
        "expected": st.booleans(),
    },
)
LISTS = st.lists(
    FACT
    | st.fixed_dictionaries({"inserts": st.lists(FACT, max_size=2)})
    | st.fixed_dictionaries({"deletes": st.lists(FACT, max_size=2)}),
    max_size=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
BODY = st.binary(max_size=50) | (SHAPED | LISTS | JSON).map(
    lambda content: json.dumps(content).encode("utf-8", "surrogatepass")
)


async def answered(service: Service, path: str, body: bytes) -> Answer:
    headers = {"authorization": f"Bearer {TEST_KEY}"}
    found = service.api.call(Call("POST", f"/api/{path}", "", headers, body))
    return found if isinstance(found, Answer) else await found


@pytest.mark.slow
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from(PATHS), BODY), min_size=1, max_size=20))
def test_any_body_gets_an_answer(tmp_path_factory, calls):
    async def run() -> None:
        service = Service(
            tmp_path_factory.mktemp("any"),
            clock=SystemClock(),
            random=SystemRandom(),
            fsync=False,
        )
        await service.open(with_test_key=True)
        await service.changes.set_policy(service.environment("default"), POLICY, "")
        bugs = swallowed_counts()[Cause.AUTHZ_CALL.value]
        try:
            for path, body in calls:
                answer = await answered(service, path, body)
                assert answer.status in (200, 400, 413), (path, body, answer.body)
                json.loads(answer.body)
            assert swallowed_counts()[Cause.AUTHZ_CALL.value] == bugs
        finally:
            await service.close()

    asyncio.run(run())


@pytest.mark.slow
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_policy_and_any_query_string_get_an_answer(tmp_path_factory, source, query):
    async def run() -> None:
        service = Service(
            tmp_path_factory.mktemp("any"),
            clock=SystemClock(),
            random=SystemRandom(),
            fsync=False,
        )
        await service.open(with_test_key=True)
        try:
            body = json.dumps({"src": source}).encode("utf-8", "surrogatepass")
            answer = await answered(service, "policy", body)
            assert answer.status in (200, 202, 400), answer.body
            headers = {"authorization": f"Bearer {TEST_KEY}"}
            for path in ("facts", "watch", "policy", "policy_metadata"):
                found = service.api.call(Call("GET", f"/api/{path}", query, headers, b""))
                answer = found if isinstance(found, Answer) else await found
                assert answer.status in (200, 400), answer.body
        finally:
            await service.close()

    asyncio.run(run())


def test_a_data_directory_that_lost_its_key_file_at_the_first_start_gets_another(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[str, int]:
        service = Service(tmp_path, clock=SystemClock(), random=SystemRandom(), fsync=False)
        await service.open()
        text = service.key_file.read_text().strip()
        access = service.directory.access(text)
        assert access is not None
        assert access.scope == "admin"
        count = len(service.directory.keys)
        await service.close()
        return text, count

    first, count = asyncio.run(run())
    assert count == 1
    assert asyncio.run(run()) == (first, 1)
    (tmp_path / "key").unlink()
    second, count = asyncio.run(run())
    assert (second != first, count) == (True, 2)
    # An operator who took the file away later is not given another each time.
    (tmp_path / "key").unlink()
    with pytest.raises(FileNotFoundError):
        asyncio.run(run())
