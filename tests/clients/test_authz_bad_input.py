"""Bad input from outside: the exact error, nothing changed, nothing of another environment."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from support.authz import POLICY, TEST_KEY, AuthzProcess

ROLE = {
    "predicate": "has_role",
    "args": [
        {"type": "User", "id": "alice"},
        {"type": "String", "id": "reader"},
        {"type": "Repository", "id": "anvil"},
    ],
}
CHECK = {
    "actor_type": "User",
    "actor_id": "alice",
    "action": "read",
    "resource_type": "Repository",
    "resource_id": "anvil",
    "context_facts": [],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthzProcess]:
    folder = tmp_path_factory.mktemp("authz-bad")
    server = AuthzProcess(folder / "data", folder / "log", "--test-key")
    server.start()
    assert server.call("POST", "/api/policy", {"src": POLICY})[0] == 200
    assert server.call("POST", "/api/batch", [{"inserts": [ROLE]}])[0] == 200
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0, server.tail()
    assert "Traceback" not in server.tail()


@pytest.fixture(autouse=True)
def nothing_changes(server: AuthzProcess) -> Iterator[None]:
    yield
    assert server.call("GET", "/api/facts?predicate=has_role") == (200, [ROLE])
    assert server.call("POST", "/api/authorize", CHECK) == (200, {"allowed": True})


@pytest.mark.parametrize("path", ["authorize", "list", "actions", "evaluate_query", "batch"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"17",
        b'"text"',
        b"\xff\xfe",
        b'{"actor_type": 3}',
        b'[{"inserts": 3}]',
        b'[{"inserts": [{"predicate": "has_role"}]}]',
        b'[{"inserts": [{"predicate": 1, "args": []}]}]',
        b'[{"deletes": [{"predicate": "has_role", "args": [{"type": null, "id": "x"}]}]}]',
        b'{"predicate": ["allow"], "calls": [], "constraints": {}}',
        b'{"actor_type": "User", "actor_id": "\\ud800", "action": "a", "resource_type": "R"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: body[:20].decode("latin-1") or "empty",
)
def test_what_is_not_of_a_calls_shape_is_400(server: AuthzProcess, path: str, body: bytes) -> None:
    status, answer = server.call("POST", f"/api/{path}", body=body)
    assert status == 400, answer
    assert list(answer) == ["message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_id": ""}, "type and id of a value must not be empty"),
        ({"actor_type": ""}, "type and id of a value must not be empty"),
        ({"action": ""}, "type and id of a value must not be empty"),
        ({"resource_id": "a\0b"}, "an id has no NUL and no lone surrogate"),
        ({"resource_id": "x" * 385}, "an id has at most 384 bytes, not 385"),
        (
            {"actor_type": "Integer", "actor_id": "01"},
            "'01' is not an Integer in its shortest decimal form",
        ),
    ],
)
def test_values_are_checked(server: AuthzProcess, changes: dict[str, str], message: str) -> None:
    status, answer = server.call("POST", "/api/authorize", CHECK | changes)
    assert (status, answer) == (400, {"message": message})


def test_a_fact_that_the_policy_does_not_accept_names_those_it_does(server: AuthzProcess) -> None:
    fact = {"predicate": "has_role", "args": [{"type": "User", "id": "a"}]}
    status, answer = server.call("POST", "/api/batch", [{"inserts": [ROLE, fact]}])
    assert status == 400
    assert answer["message"] == (
        "the policy has no fact has_role(User); it accepts has_role(User, String, Organization), "
        "has_role(User, String, Repository)"
    )
    # In a context it's the same.
    status, answer = server.call("POST", "/api/authorize", CHECK | {"context_facts": [fact]})
    assert status == 400
    assert "the policy has no fact has_role(User)" in answer["message"]


def test_what_is_too_much_is_413(server: AuthzProcess) -> None:
    status, answer = server.call("POST", "/api/batch", body=b" " * (10 * 1024 * 1024 + 1))
    assert status == 413, answer
    status, answer = server.call(
        "POST", "/api/authorize", CHECK | {"context_facts": [ROLE] * 1_001}
    )
    assert (status, answer) == (413, {"message": "1,001 context facts; 1,000 are allowed"})
    empty = {"predicate": "x", "args": []}
    status, answer = server.call("POST", "/api/batch", [{"inserts": [empty] * 100_001}])
    assert (status, answer) == (413, {"message": "100,001 changes; 100,000 are allowed"})
    wide = {"predicate": "x", "args": [{"type": "User", "id": "a"}] * 11}
    status, answer = server.call("POST", "/api/batch", [{"inserts": [wide]}])
    assert (status, answer) == (400, {"message": "x has 11 arguments; 10 are allowed"})


def test_ten_megabytes_of_facts_are_read(server: AuthzProcess) -> None:
    facts = [ROLE | {"predicate": "p" * 300} for _ in range(20_000)]
    body = json.dumps([{"inserts": facts}]).encode()
    assert 8 << 20 < len(body) < 10 << 20
    status, answer = server.call("POST", "/api/batch", body=body)
    assert status == 400
    assert "the policy has no fact ppp" in answer["message"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "predicate=",
        "predicate=has_role&args.0.id=alice",
        "predicate=has_role&args.10.type=User",
        "predicate=has_role&args.0.type=",
        "&".join(f"a{n}=1" for n in range(100)),
    ],
)
def test_bad_query_strings_of_facts_are_400(server: AuthzProcess, query: str) -> None:
    assert server.call("GET", f"/api/facts?{query}")[0] == 400


def test_sql_in_ids_is_an_id(server: AuthzProcess) -> None:
    for text in ("' OR 1=1 --", '"; DROP TABLE policy; --', "alice' UNION SELECT 1 --"):
        for field in ("actor_id", "action", "resource_id", "actor_type", "resource_type"):
            assert server.call("POST", "/api/authorize", CHECK | {field: text}) == (
                200,
                {"allowed": False},
            )
        status, answer = server.call("POST", "/api/list", CHECK | {"resource_type": text})
        assert (status, answer) == (200, {"results": [], "next_page_token": None})
        fact = {"predicate": text, "args": []}
        assert server.call("POST", "/api/batch", [{"inserts": [fact]}])[0] == 400
        assert server.call("POST", "/api/batch", [{"deletes": [fact]}])[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("POST", "/api", 404),
        ("POST", "/api/../api/authorize", 404),
        ("GET", "/api/authorize", 405),
        ("PUT", "/api/batch", 405),
    ],
)
def test_other_calls_are_refused(server: AuthzProcess, method: str, path: str, status: int) -> None:
    assert server.call(method, path)[0] == status


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", f"bearer {TEST_KEY}x"])
def test_no_call_works_without_a_key(server: AuthzProcess, header: str) -> None:
    headers = [("Authorization", header)]
    for method, path in (("POST", "/api/authorize"), ("GET", "/api/policy"), ("GET", "/v1/keys")):
        assert server.call(method, path, key="", headers=headers)[0] == 401


def test_environments_see_nothing_of_one_another(server: AuthzProcess) -> None:
    assert server.call("POST", "/v1/environments", {"name": "other"})[0] == 200
    assert server.call("POST", "/v1/environments", {"name": "other"})[0] == 400
    assert server.call("POST", "/v1/environments", {"name": "../other"})[0] == 400
    made = {
        scope: server.call("POST", "/v1/keys", {"environment": "other", "scope": scope})[1]
        for scope in ("read", "write")
    }
    read, write = (made[scope]["key"] for scope in ("read", "write"))
    assert server.call("POST", "/api/authorize", CHECK, key=read) == (200, {"allowed": False})
    assert server.call("GET", "/api/facts?predicate=has_role", key=read) == (200, [])
    assert server.call("GET", "/api/policy", key=read) == (200, {"policy": None})
    for key, path, content in (
        (read, "/api/policy", {"src": POLICY}),
        (read, "/api/clear_data", None),
        (write, "/v1/environments", {"name": "third"}),
        (write, "/v1/keys", {"environment": "default"}),
    ):
        assert server.call("POST", path, content, key=key)[0] == 403
    assert server.call("POST", "/api/policy", {"src": POLICY}, key=write)[0] == 200
    assert server.call("POST", "/api/clear_data", key=write)[0] == 200
    # A token of one environment means nothing in the other.
    status, _ = server.call("GET", "/api/policy", key=read, headers=[("OsoOffset", "x" * 50)])
    assert status == 200
    assert server.call("DELETE", "/v1/keys", {"number": made["read"]["number"]})[0] == 200
    assert server.call("DELETE", "/v1/keys", {"number": made["read"]["number"]})[0] == 404
    assert server.call("GET", "/api/policy", key=read)[0] == 401


def test_an_open_question_is_bounded(server: AuthzProcess) -> None:
    variables = [f"v{n}" for n in range(8)]
    question = {
        "predicate": ["has_role", variables[:3]],
        "calls": [["has_role", variables[n : n + 3]] for n in range(6)] * 20,
        "constraints": {},
    }
    status, answer = server.call("POST", "/api/evaluate_query", question)
    assert status == 413, answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/batch HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST /api/batch HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"\r\n" * 10 + b"x" * 40_000,
    ],
)
def test_what_is_not_http_gets_an_error_and_an_end(server: AuthzProcess, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data + b"\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    assert b"Connection: close" in answer
