"""The server in this process: order of answers, long questions, tokens, streams, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app.authz.server import AuthzServer, AuthzSettings, within
from penstock.authz.service import changes as changes_module
from penstock.authz.service import environment as environment_module
from penstock.authz.service import keeping
from penstock.config.addresses import Address
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.replica import replica as replica_module
from penstock.replica import tokens
from penstock.system.clock import SystemClock
from penstock.system.heard import Cause, swallowed_counts
from penstock.system.randomness import SystemRandom
from support.authz import POLICY, TEST_KEY

LOOPBACK = Address("127.0.0.1", 0)
DENSE = """
actor User {}
declare edge(User, User);
joined(x: User, y: User) if edge(x, y);
joined(x: User, y: User) if joined(x, z) and joined(z, y);
"""


class Client:
    """One connection; requests may be sent before others are answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self, method: str, path: str, content: object = None, *, key: str = TEST_KEY, **headers: str
    ) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {key}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["Content-Length"]))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def call(self, method: str, path: str, content: object = None, **headers: str) -> Any:
        self.send(method, path, content, **headers)
        return await self.answer()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AuthzServer]:
    settings = AuthzSettings(data=tmp_path / "data", http=LOOPBACK, with_test_key=True)
    server = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def connected(server: AuthzServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def role(user: str, repository: str = "anvil") -> dict[str, object]:
    values = (("User", user), ("String", "reader"), ("Repository", repository))
    return {"predicate": "has_role", "args": [{"type": kind, "id": id_} for kind, id_ in values]}


def check(user: str, repository: str = "anvil") -> dict[str, object]:
    return {
        "actor_type": "User",
        "actor_id": user,
        "action": "read",
        "resource_type": "Repository",
        "resource_id": repository,
    }


async def test_answers_of_a_connection_keep_the_order_of_its_requests(server: AuthzServer) -> None:
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        # Writes are answered later, checks at once: what is read is what was written before.
        for number in range(20):
            client.send("POST", "/api/authorize", check("a", str(number)))
            client.send("POST", "/api/batch", [{"inserts": [role("a", str(number))]}])
            client.send("POST", "/api/authorize", check("a", str(number)))
        found = [(await client.answer())[2] for _ in range(60)]
    assert [each.get("allowed") for each in found] == [False, None, True] * 20


async def test_concurrent_writes_share_entries(server: AuthzServer) -> None:
    environment = server.service.environments["default"]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        await clients[0].call("POST", "/api/policy", {"src": POLICY})
        before = environment.position
        for number, client in enumerate(clients):
            for turn in range(10):
                client.send("POST", "/api/batch", [{"inserts": [role(f"{number}-{turn}")]}])
        for client in clients:
            for _ in range(10):
                assert (await client.answer())[0] == 200
        assert environment.position - before < 150
        _, _, facts = await clients[0].call("GET", "/api/facts?predicate=has_role")
    assert len(facts) == 200


async def test_each_change_has_a_token_and_echoes_the_request_id(server: AuthzServer) -> None:
    environment = server.service.environments["default"]
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        for path, content in (
            ("/api/batch", [{"inserts": [role("a")]}]),
            ("/api/batch", []),
            ("/api/policy", {"src": POLICY}),
            ("/api/clear_data", None),
            ("/api/facts", role("b")),
            ("/api/bulk_load", [role("c")]),
            ("/api/bulk", {"delete": [role("c")], "tell": [role("d")]}),
            ("/api/bulk_delete", [role("d")]),
        ):
            status, headers, _ = await client.call("POST", path, content, X_Request_ID="id-1")
            assert status in (200, 202)
            assert tokens.decode(headers["OsoOffset"], environment.log) == environment.position
            assert headers["X-Request-ID"] == "id-1"
        _, headers, _ = await client.call("GET", "/api/stats", X_Request_ID="a b")
        assert "X-Request-ID" not in headers


async def test_older_calls_answer_as_they_did(server: AuthzServer) -> None:
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        assert (await client.call("POST", "/api/facts", role("a")))[2] == role("a")
        _, _, counts = await client.call("GET", "/api/stats")
        assert counts == {"num_roles": 1, "num_relations": 0, "num_facts": 1}
        resources = [{"type": "Repository", "id": each} for each in ("anvil", "x", "anvil")]
        _, _, found = await client.call(
            "POST",
            "/api/authorize_resources",
            {"actor_type": "User", "actor_id": "a", "action": "read", "resources": resources},
        )
        assert found == {"results": [resources[0], resources[2]]}
        pattern = {
            "predicate": "has_permission",
            "args": [{"type": "User", "id": "a"}, {"type": None, "id": None}, {"type": None}],
        }
        _, _, found = await client.call("POST", "/api/query", {"fact": pattern})
        assert [each["args"][1]["id"] for each in found["results"]] == ["read"]
        await client.call("DELETE", "/api/facts", role("a"))
        assert (await client.call("GET", "/api/facts?predicate=has_role"))[2] == []


async def test_a_repeated_request_is_answered_again(server: AuthzServer) -> None:
    headers = {"X_Oso_Instance_Id": "client", "X_Request_ID": "same"}
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        insert = [{"inserts": [role("a")]}]
        _, first, _ = await client.call("POST", "/api/batch", insert, **headers)
        await client.call("POST", "/api/batch", [{"deletes": [role("a")]}])
        _, again, _ = await client.call("POST", "/api/batch", insert, **headers)
        assert again["OsoOffset"] == first["OsoOffset"]
        assert (await client.call("POST", "/api/authorize", check("a")))[2] == {"allowed": False}


async def test_a_read_waits_for_its_tokens_position_and_then_gives_up(
    server: AuthzServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = server.service.environments["default"]
    async with connected(server) as client, connected(server) as other:
        await client.call("POST", "/api/policy", {"src": POLICY})
        token = environment.token(environment.position + 1)
        client.send("POST", "/api/authorize", check("a"), OsoOffset=token)
        await other.call("POST", "/api/batch", [{"inserts": [role("a")]}])
        assert (await client.answer())[2] == {"allowed": True}
        monkeypatch.setattr(environment_module, "TOKEN_WAIT_S", 0.05)
        token = environment.token(environment.position + 100)
        status, headers, answer = await client.call(
            "POST", "/api/authorize", check("a"), OsoOffset=token
        )
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "isn't here yet" in answer["message"]
        stranger = tokens.encode(b"stranger", 1_000_000)
        status, _, _ = await client.call("POST", "/api/authorize", check("a"), OsoOffset=stranger)
        assert status == 200


async def test_a_long_question_holds_up_no_other_and_is_bounded(
    server: AuthzServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_module, "STEPS_MAX", 10_000)
    question = {
        "predicate": ["joined", ["x", "y"]],
        "calls": [],
        "constraints": {"x": {"type": "User", "ids": None}, "y": {"type": "User", "ids": None}},
    }
    async with connected(server) as client, connected(server) as other:
        await client.call("POST", "/api/policy", {"src": DENSE})
        edges = [
            {"predicate": "edge", "args": [{"type": "User", "id": id_} for id_ in (str(x), str(y))]}
            for x in range(40)
            for y in (x + 1, x + 2)
        ]
        await client.call("POST", "/api/batch", [{"inserts": edges}])
        client.send("POST", "/api/evaluate_query", question)
        answered = asyncio.ensure_future(client.answer())
        count = 0
        while not answered.done():
            assert (await other.call("POST", "/api/authorize", check("a")))[0] == 200
            count += 1
        assert count > 1
        status, _, answer = await answered
        assert (status, answer["message"]) == (400, "it takes too many steps")
        await client.call("POST", "/api/batch", [{"deletes": edges[6:]}])
        status, _, answer = await client.call("POST", "/api/evaluate_query", question)
        assert status == 200
        assert {(row["x"], row["y"]) for row in answer["results"]} >= {("0", "4"), ("2", "4")}


async def test_the_tests_of_a_policy_have_a_time_together(
    server: AuthzServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = POLICY + 'test "one" { assert_not allow(User{"a"}, "read", Repository{"b"}); }'
    async with connected(server) as client:
        assert (await client.call("POST", "/api/policy", {"src": tested}))[0] == 200
        monkeypatch.setattr(changes_module, "TESTS_S", -1.0)
        status, _, answer = await client.call("POST", "/api/policy", {"src": tested + "\n"})
        assert (status, answer["error_type"]) == (400, "TestsFailed")
        assert "the test was stopped" in answer["message"]
        asking = "actor User {} ?= is_on() or 1 = 1; declare is_on();"
        status, _, answer = await client.call("POST", "/api/policy", {"src": asking})
        assert (status, answer["error_type"]) == (400, "Generic")
        assert "an inline query was stopped" in answer["message"]


@pytest.mark.slow
async def test_policies_and_facts_of_many_clients_leave_no_fact_that_is_not_accepted(
    server: AuthzServer,
) -> None:
    likes = "actor User {} declare likes(User, User);"
    values = [{"type": "User", "id": "a"}, {"type": "User", "id": "b"}]
    like = {"predicate": "likes", "args": values}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(8)]

        async def write(number: int, client: Client) -> None:
            for _ in range(15):
                await client.call("POST", "/api/policy", {"src": (POLICY, likes)[number % 2]})
                fact = (role("a"), like)[number // 2 % 2]
                status, _, _ = await client.call("POST", "/api/batch", [{"inserts": [fact]}])
                assert status in (200, 400)
                status, _, _ = await client.call("POST", "/api/batch", [{"deletes": [fact]}])
                assert status == 200

        await asyncio.gather(*(write(*each) for each in enumerate(clients)))
        _, _, metadata = await clients[0].call("GET", "/api/policy_metadata")
        has_roles = "Repository" in metadata["metadata"]["resources"]
        for fact, is_accepted in ((role("a"), has_roles), (like, not has_roles)):
            status, _, _ = await clients[0].call("POST", "/api/batch", [{"inserts": [fact]}])
            assert status == (200 if is_accepted else 400)


async def test_explain_names_the_rule_or_the_facts_that_would_allow_it(
    server: AuthzServer,
) -> None:
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        await client.call("POST", "/api/batch", [{"inserts": [role("a")]}])
        _, _, found = await client.call("POST", "/api/explain", check("a"))
        assert found["allowed"]
        assert found["because"][0]["predicate"] == "allow"
        _, _, found = await client.call("POST", "/api/explain", check("b"))
        assert not found["allowed"]
        assert [role("b")] in found["suggestions"]
        assert found["complete"]


async def next_event(client: Client) -> tuple[str, dict[str, Any]]:
    """The id and data of the next event of a stream."""
    fields: dict[str, str] = {}
    while True:
        line = (await client.reader.readline()).decode().strip()
        name, colon, text = line.partition(": ")
        if colon and name in ("id", "data"):
            fields[name] = text
        if len(fields) == 2:
            return fields["id"], json.loads(fields["data"])


async def test_a_watcher_sees_each_change_and_goes_on_where_it_was_cut_off(
    server: AuthzServer,
) -> None:
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        async with connected(server) as watcher:
            watcher.send("GET", "/api/watch")
            await watcher.reader.readuntil(b": watching\n\n")
            await client.call("POST", "/api/batch", [{"inserts": [role("a")]}])
            await client.call("POST", "/api/batch", [{"inserts": [{"predicate": "x", "args": []}]}])
            token, data = await next_event(watcher)
            assert data["changes"] == [{"insert": role("a")}]
        await client.call("POST", "/api/batch", [{"deletes": [role("a")]}])
        await client.call("POST", "/api/policy", {"src": POLICY + "\n", "filename": "p.polar"})
        async with connected(server) as watcher:
            watcher.send("GET", "/api/watch", Last_Event_ID=token)
            assert (await next_event(watcher))[1]["changes"] == [{"delete": role("a")}]
            assert (await next_event(watcher))[1]["changes"] == [
                {"policy": {"filename": "p.polar"}}
            ]
            await client.call("POST", "/api/clear_data")
            assert (await next_event(watcher))[1]["changes"] == [{"clear": True}]
        status, _, _ = await client.call("GET", "/api/watch?after=nonsense")
        assert status == 400


async def test_snapshots_are_taken_under_load_and_a_watcher_learns_what_is_gone(
    server: AuthzServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "SNAPSHOT_ENTRIES", 20)
    monkeypatch.setattr(replica_module, "_CHECKPOINT_DUE_BYTES", 1)
    environment = server.service.environments["default"]
    folder = server.settings.data / "snapshots" / "default"
    async with connected(server) as client:
        await client.call("POST", "/api/policy", {"src": POLICY})
        token = environment.token(environment.position)
        async with asyncio.timeout(60):
            number = 0
            while len(keeping.snapshots(folder)) < 2 or keeping.snapshots(folder)[0][0] < 30:
                await client.call("POST", "/api/batch", [{"inserts": [role(str(number))]}])
                number += 1
        status, _, answer = await client.call("GET", f"/api/watch?after={token}")
        assert status == 404, answer
        assert "aren't kept any more" in answer["message"]
        _, _, facts = await client.call("GET", "/api/facts?predicate=has_role")
        assert len(facts) == number


async def test_a_watcher_that_leaves_is_counted_out(server: AuthzServer) -> None:
    async with connected(server) as watcher:
        watcher.send("GET", "/api/watch")
        await watcher.reader.readuntil(b": watching\n\n")
        assert len(server._connections) == 1
    async with asyncio.timeout(30):
        while server._connections:
            await asyncio.sleep(0.01)


async def test_the_end_answers_what_was_asked_and_ends_streams(tmp_path: Path) -> None:
    settings = AuthzSettings(data=tmp_path, http=LOOPBACK, with_test_key=True)
    server = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    await server.start()
    async with connected(server) as client, connected(server) as watcher:
        await client.call("POST", "/api/policy", {"src": POLICY})
        watcher.send("GET", "/api/watch")
        await watcher.reader.readuntil(b": watching\n\n")
        client.send("POST", "/api/batch", [{"inserts": [role("a")]}])
        await asyncio.sleep(0)
        while not any(each._task for each in server._connections if not each._is_streaming):
            await asyncio.sleep(0)
        await server.stop()
        assert (await client.answer())[0] == 200
        assert (await watcher.reader.read()).endswith(b"0\r\n\r\n")
    again = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    await again.start()
    async with connected(again) as client:
        assert (await client.call("POST", "/api/authorize", check("a")))[2] == {"allowed": True}
    await again.stop()


async def test_environments_are_opened_as_they_are_used_and_closed_when_idle(
    tmp_path: Path,
) -> None:
    settings = AuthzSettings(
        data=tmp_path, http=LOOPBACK, with_test_key=True, environments_open_max=2
    )
    server = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    await server.start()
    keys = {}
    async with connected(server) as client:
        for number in range(5):
            name = f"e{number}"
            await client.call("POST", "/v1/environments", {"name": name})
            _, _, made = await client.call("POST", "/v1/keys", {"environment": name})
            keys[name] = made["key"]
        assert len(server.service.environments) == 2
        async with connected(server) as watcher:
            watcher.send("GET", "/api/watch", key=keys["e0"])
            await watcher.reader.readuntil(b": watching\n\n")
            for _ in range(2):
                for name, key in keys.items():
                    client.send("POST", "/api/policy", {"src": POLICY}, key=key)
                    assert (await client.answer())[0] in (200, 202)
                    client.send("POST", "/api/batch", [{"inserts": [role(name)]}], key=key)
                    assert (await client.answer())[0] == 200
                    client.send("POST", "/api/authorize", check(name), key=key)
                    assert (await client.answer())[2] == {"allowed": True}
                    # The one that is watched stays.
                    assert "e0" in server.service.environments
                    assert len(server.service.environments) <= 2
            assert (await next_event(watcher))[1]["changes"][0].keys() == {"policy"}
        for name, key in keys.items():
            client.send("POST", "/api/authorize", check("e1"), key=key)
            assert (await client.answer())[2] == {"allowed": name == "e1"}
    await server.stop()


@pytest.mark.parametrize(
    ("files", "connections", "environments"), [(1_024, 462, 42), (1 << 20, 1_000, 200), (64, 10, 4)]
)
def test_connections_and_environments_fit_the_limit_of_open_files(
    tmp_path: Path, files: int, connections: int, environments: int
) -> None:
    found = within(AuthzSettings(data=tmp_path, http=LOOPBACK), files)
    assert (found.connections_max, found.environments_open_max) == (connections, environments)


async def test_one_process_has_a_directory(server: AuthzServer) -> None:
    second = AuthzServer(server.settings, clock=SystemClock(), random=SystemRandom())
    with pytest.raises(ConflictError, match="is using this data directory"):
        await second.start()
    await second.stop()


async def test_the_public_key_is_for_loopback_alone(tmp_path: Path) -> None:
    settings = AuthzSettings(data=tmp_path, http=Address("0.0.0.0", 0), with_test_key=True)
    with pytest.raises(InvalidRequestError, match="test key is public"):
        AuthzServer(settings, clock=SystemClock(), random=SystemRandom())


async def test_a_policys_file_is_set_and_watched(tmp_path: Path) -> None:
    path = tmp_path / "policy.polar"
    path.write_text(POLICY)
    settings = AuthzSettings(
        data=tmp_path / "data", http=LOOPBACK, policy=path, watches=True, with_test_key=True
    )
    server = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    await server.start()
    environment = server.service.environments["default"]
    assert (environment.policy.version, environment.policy.filename) == (1, "policy.polar")
    refused_count = swallowed_counts()[Cause.AUTHZ_POLICY.value]
    path.write_text("actor User {")
    async with asyncio.timeout(30):
        while swallowed_counts()[Cause.AUTHZ_POLICY.value] == refused_count:
            await asyncio.sleep(0.05)
    assert environment.policy.version == 1
    path.write_text(POLICY + "\n# changed\n")
    async with asyncio.timeout(30):
        while environment.policy.version == 1:
            await asyncio.sleep(0.05)
    await server.stop()
    path.write_text("actor User {")
    refused = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    with pytest.raises(InvalidRequestError, match="it is refused"):
        await refused.start()
    await refused.stop()
