"""The HTTP port of a server with an authorizer: no call gives a principal what its rules don't."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.app.api import objects as objects_module
from penstock.app.api.grants import Grants
from penstock.app.http.callers import DeniedError as DeniedCallerError
from penstock.app.http.rules import RULES
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.api_messages import JobRequest, Range, TableProgress
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.transport import DeniedError
from penstock.security.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.commands import DeleteTopic
from support.api_server import (
    ApiServer,
    new_key,
    offsets_in,
    replacement,
    serve_in_thread,
    write_request,
)
from support.waiting import eventually as until

SECRET = "the-secret-of-the-cluster"


def rule(
    principal: str,
    operation: Operation,
    name: str,
    kind: ResourceType = ResourceType.TOPIC,
    permission: Permission = Permission.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, PatternType.LITERAL, principal, "*", operation, permission)


def commit(api: ApiServer, command: Any) -> None:
    api.on_loop(api.server.parts.log.commit([command]))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server with two topics in one object: alice reads `open`, bob reads both."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    for name in ("PENSTOCK_API_KEY", "PENSTOCK_API_KEY_FILE", "PENSTOCK_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    data = tmp_path_factory.mktemp("secured") / "data"
    secret_file = data.parent / "secret"
    secret_file.write_text(SECRET)
    with serve_in_thread(
        data,
        segment_age_ms=3_600_000,
        authorizer="acl",
        cluster_secret_file=str(secret_file),
        audit_file=str(data.parent / "audit.log"),
        backup_targets=str(data.parent / "copies"),
    ) as api:
        for name in ("hidden", "open"):
            api.create(name)
            api.produce(name, 0, count=4)
        api.drain()
        commit(
            api,
            CreateAcls(
                bindings=[
                    rule("User:alice", Operation.READ, "open"),
                    rule("User:alice", Operation.WRITE, "open"),
                    rule("User:bob", Operation.READ, "open"),
                    rule("User:bob", Operation.READ, "hidden"),
                ]
            ),
        )
        yield api
    monkeypatch.undo()


def call(
    api: ApiServer, method: str, path: str, key: str = "", body: bytes = b"", **headers: str
) -> tuple[int, Any]:
    assert api.server.http_address is not None
    connection = http.client.HTTPConnection(*api.server.http_address, timeout=60)
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw


def key_of(api: ApiServer, principal: str) -> str:
    wanted = json.dumps({"principal": principal}).encode()
    status, made = call(api, "POST", "/v1/keys", SECRET, wanted)
    assert status == 200, made
    return str(made["key"])


class As:
    """A client that calls as a principal."""

    def __init__(self, api: ApiServer, principal: str) -> None:
        self.key = key_of(api, principal)
        urls = (f"http://{api.server.http_address}",)
        self.client = PipelineClient(
            ClientOptions(urls, deadline_s=60.0), secret=ClusterSecret(self.key)
        )
        self.objects = ObjectAccess(self.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.close()
        self.client.close()


BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/pipeline/jobs"): {"kind": "read", "name": "n"},
    ("POST", "/v1/pipeline/topics"): {},
    ("POST", "/v1/pipeline/offsets"): {"items": [["HIDDEN", 0, 0]]},
    ("POST", "/v1/pipeline/runs"): {"ranges": [["HIDDEN", 0, 0, 9]]},
    ("POST", "/v1/pipeline/producers"): {"partitions": [["HIDDEN", 0]]},
    ("POST", "/v1/pipeline/accesses"): {"method": "GET", "keys": ["KEY"], "seconds": 9},
    ("POST", "/v1/pipeline/replace"): {
        "job": 1,
        "n": 1,
        "input_keys": [],
        "objects": [],
        "partitions": [
            {"topic_id": "HIDDEN", "partition": 0, "inputs": [], "outputs": [], "clean_end": -1}
        ],
    },
    ("POST", "/v1/pipeline/write"): {
        "job": 1,
        "writer_id": "w",
        "batch_id": 1,
        "incarnation": "i",
        "objects": [],
        "runs": [
            {
                "topic_id": "HIDDEN",
                "partition": 0,
                "object": 0,
                "position": 0,
                "batches": [],
                "crcs": "",
            }
        ],
    },
    ("PUT", "/v1/pipeline/tables"): {"topic_id": "HIDDEN", "table": "t", "offsets": []},
    ("POST", "/v1/keys"): {"principal": "User:mallory"},
    ("POST", "/v1/backup"): {"to": "/tmp/never"},
    ("POST", "/v1/takeover"): {"directory": "/tmp/never"},
}
"""A body of each call that has one."""

PATHS = {
    "{key:path}": "KEY",
    "{key}": "0123456789abcdef",
    "{agent:int}": "1",
    "{job:int}": "1",
    "{prefix:str}": "00",
    "{writer:path}": "w",
}
QUERIES = {
    "/v1/pipeline/records": "?topic_id=HIDDEN&partition=0&start=0&end=9",
    "/v1/repair/rebuild": "?partition_key=1&start=0&end=1",
}
EMPTY = {
    ("POST", "/v1/pipeline/topics"): {"topics": []},
    ("GET", "/v1/pipeline/jobs"): {"jobs": []},
    ("GET", "/v1/pipeline/tables"): {"tables": []},
    ("POST", "/v1/pipeline/accesses"): {"urls": [""]},
}
"""Calls that answer whoever calls, and what is left of their answers where no rule allows more."""
HARMLESS = {("GET", "/healthz"), ("GET", "/v1/pipeline/info")}


def object_key(api: ApiServer) -> str:
    (page,) = api.client.runs([Range(ids(api)["hidden"], 0, 0, 4)])
    (key,) = page.object_keys
    return key


def ids(api: ApiServer) -> dict[str, str]:
    return {topic.name: topic.topic_id for topic in api.client.topics().topics}


ABSENT = {
    ("GET", "/v1/agents"),
    ("POST", "/v1/agents/{agent:int}/drain"),
    ("DELETE", "/v1/agents/{agent:int}"),
    ("POST", "/v1/takeover"),
}
"""Calls that agents of a cluster have, and this server hasn't: `guarded` checks their cluster
operation before their handlers as it does others'."""


def test_every_route_is_among_the_rules(secured: ApiServer) -> None:
    """So that the next test has seen them all."""
    app: Any = secured.server._http[0]._server.config.app
    served = {
        (method, route.path) for route in app.app._app.routes for method in route.methods - {"HEAD"}
    }
    assert served == RULES.keys() - ABSENT
    assert all(RULES[key].cluster is not None for key in ABSENT)


def test_no_route_gives_anything_to_a_principal_without_rules(secured: ApiServer) -> None:
    topic = ids(secured)
    shown = {"HIDDEN": topic["hidden"], "KEY": object_key(secured)}
    headers = {"range": "bytes=20-30", "content-type": "application/json"}
    with (
        As(secured, "User:nobody") as nobody,
        JobLease(secured.client, kind="test", name="another's") as job,
    ):
        for method, path in sorted(RULES.keys() - ABSENT):
            target = path
            for pattern, value in PATHS.items():
                target = target.replace(pattern, str(job.job) if value == "1" else value)
            if path == "/v1/pipeline/tables" and method == "DELETE":
                target += "?topic_id=HIDDEN&table=t"
            target += QUERIES.get(path, "")
            body = json.dumps(BODIES.get((method, path), {})) if method != "GET" else ""
            if path.endswith("{key:path}") and method == "PUT":
                target = target.replace("KEY", new_key(job.job))
            for word, text in shown.items():
                target, body = target.replace(word, text), body.replace(word, text)
            sent = body.encode()
            status, answer = call(secured, method, target, nobody.key, sent, **headers)
            if (method, path) in HARMLESS:
                assert status == 200
            elif (method, path) in EMPTY:
                assert status == 200, answer
                for name, left in EMPTY[method, path].items():
                    assert answer[name] == left
            else:
                assert (status, answer.get("kind")) == (403, "denied"), (path, answer)
            # Who shows nothing gets nothing, and a web page gets nothing.
            status, _ = call(secured, method, target, "", sent, **headers)
            assert status == (200 if path == "/healthz" else 401)
            page = {**headers, "origin": "http://evil.example"}
            assert call(secured, method, target, SECRET, sent, **page)[0] == 403
        assert secured.client.is_job_open(job.job)


def test_a_grant_for_one_topic_does_not_read_anothers_bytes(secured: ApiServer) -> None:
    topic = ids(secured)
    key = object_key(secured)
    with As(secured, "User:alice") as alice, As(secured, "User:bob") as bob:
        assert [each.name for each in alice.client.topics().topics] == ["open"]
        (page,) = alice.client.runs([Range(topic["open"], 0, 0, 4)])
        position, length = page.rows[4:6]
        found = alice.objects.get_range(key, position, position + length)
        assert offsets_in(found) == [0, 1, 2, 3]
        (page,) = bob.client.runs([Range(topic["hidden"], 0, 0, 9)])
        hidden, hidden_length = page.rows[4:6]
        assert page.object_keys == [key], "both topics lie in one object"
        assert bob.objects.get_range(key, hidden, hidden + hidden_length)
        for start, end in (
            (hidden, hidden + hidden_length),
            (hidden, hidden + 1),
            (min(hidden, position), max(hidden + hidden_length, position + length)),
            (position, position + length + 1),
            (position - 1, position + length),
            (0, 16),
        ):
            with pytest.raises(DeniedError):
                alice.client.get_object(key, start, end)
        with pytest.raises(DeniedError):
            list(alice.client.runs([Range(topic["hidden"], 0, 0, 9)]))
        with pytest.raises(DeniedError):
            alice.client.records(topic["hidden"], 0, 0, 9)
        assert alice.client.accesses("GET", [key], seconds=9) == [""]
        # An object that isn't there looks like one that is another's.
        with pytest.raises(DeniedError):
            alice.client.get_object(key[:-6] + "x.seg", position, position + 1)


def test_items_with_anothers_bytes_between_them_are_read_alone(secured: ApiServer) -> None:
    topic = ids(secured)
    key = object_key(secured)
    with As(secured, "User:alice") as alice:
        (page,) = alice.client.runs([Range(topic["open"], 0, 0, 4)])
        position, length = page.rows[4:6]
        own = (key, position, position + length)
        with pytest.raises(DeniedError):
            alice.objects.get_views([own, (key, 0, 16)])
        space = memoryview(bytearray(2 * length))
        alice.objects.read_into(space, [own, own])
        assert space[:length] == space[length:]


def test_a_rule_that_is_taken_back_ends_reading(secured: ApiServer) -> None:
    topic = ids(secured)
    gone = rule("User:carol", Operation.READ, "open")
    commit(secured, CreateAcls(bindings=[gone]))
    with As(secured, "User:carol") as carol:
        assert carol.client.records(topic["open"], 0, 0, 4)
        commit(secured, DeleteAcls(bindings=[gone]))
        with pytest.raises(DeniedError):
            carol.client.records(topic["open"], 0, 0, 4)


def test_a_revoked_key_ends_at_once(secured: ApiServer) -> None:
    with As(secured, "User:alice") as alice:
        assert alice.client.topics().topics
        key_id = alice.key.split("_")[1]
        listed = call(secured, "GET", "/v1/keys", SECRET)[1]["keys"]
        assert key_id in [key["id"] for key in listed]
        assert alice.key.split("_", 2)[2] not in json.dumps(listed)
        assert call(secured, "DELETE", f"/v1/keys/{key_id}", SECRET)[0] == 200
        assert call(secured, "GET", "/v1/pipeline/info", alice.key)[0] == 401
        with pytest.raises(InvalidRequestError, match="credential"):
            alice.client.topics()
        assert call(secured, "DELETE", f"/v1/keys/{key_id}", SECRET)[0] == 404


def test_a_job_is_its_openers(secured: ApiServer) -> None:
    topic = ids(secured)
    with As(secured, "User:alice") as alice, As(secured, "User:bob") as bob:
        with JobLease(alice.client, kind="write", name="alice's") as job:
            key = new_key(job.job)
            with pytest.raises(DeniedError):
                bob.client.put_object(key, [b"bytes"])
            with pytest.raises(DeniedError):
                bob.client.accesses("PUT", [key], seconds=9)
            with pytest.raises(DeniedError):
                bob.client.close_job(job.job)
            with pytest.raises(DeniedError):
                bob.client.renew_job(job.job)
            assert bob.client.jobs() == []
            assert [found.name for found in alice.client.jobs()] == ["alice's"]
            alice.client.put_object(key, [b"bytes"])
            assert alice.client.get_object(key, 0, 5) == b"bytes"
            with pytest.raises(DeniedError):
                bob.client.get_object(key, 0, 5)
            wanted = write_request(alice.objects, job, topic["open"], {0: 1}, writer_id="w1")
            with pytest.raises(DeniedError, match="transactional_id"):
                alice.client.write(wanted)
            allowed = rule("User:alice", Operation.WRITE, "w1", ResourceType.TRANSACTIONAL_ID)
            commit(secured, CreateAcls(bindings=[allowed]))
            assert alice.client.write(wanted).ranges
            with pytest.raises(DeniedError):
                bob.client.writer("w1")
            # Neither may rewrite history: READ and WRITE are not DELETE.
            with pytest.raises(DeniedError, match="delete"):
                alice.client.replace(replacement(alice.client, alice.objects, job, topic["open"]))
        with pytest.raises(DeniedError):
            bob.client.save_table(TableProgress(topic_id=topic["open"], table="t", offsets=[]))
        with pytest.raises(DeniedError):
            bob.client.open_job(JobRequest(kind="pin", name="0" * 32))
        with pytest.raises((DeniedError, NotFoundError)):
            bob.client.records("0" * 32, 0, 0, 9)


def test_a_backup_needs_an_administrator_who_may_read_everything(
    secured: ApiServer, tmp_path: Path
) -> None:
    body = json.dumps({"to": str(tmp_path / "copy")}).encode()
    headers = {"content-type": "application/json"}
    commit(
        secured,
        CreateAcls(
            bindings=[
                rule("User:admin", Operation.ALTER, "kafka-cluster", ResourceType.CLUSTER),
                rule("User:admin", Operation.READ, "open"),
            ]
        ),
    )
    with As(secured, "User:admin") as admin:
        status, answer = call(secured, "POST", "/v1/backup", admin.key, body, **headers)
        assert (status, answer["kind"]) == (403, "denied")
        assert "hidden" in answer["error"]
    assert not (tmp_path / "copy").exists()


def test_a_backup_goes_where_the_settings_allow_it_alone(secured: ApiServer) -> None:
    headers = {"content-type": "application/json"}
    folder = Path(secured.server.settings.data).parent
    for place, expected in ((folder / "elsewhere", 403), (folder / "copies" / "one", 200)):
        body = json.dumps({"to": str(place)}).encode()
        assert call(secured, "POST", "/v1/backup", SECRET, body, **headers)[0] == expected
        assert place.exists() == (expected == 200)
    body = json.dumps({"action": "find", "source": "http://169.254.169.254/"}).encode()
    assert call(secured, "POST", "/v1/repair/damage", SECRET, body, **headers)[0] == 403


def test_the_secret_changes_without_a_stop(secured: ApiServer) -> None:
    file = Path(secured.server.settings.cluster_secret_file)
    new = "the-next-secret-of-the-cluster"

    def wait_for(secret: str, expected: int) -> None:
        until(lambda: call(secured, "GET", "/v1/status", secret)[0] == expected)

    file.write_text(f"{SECRET}\n{new}\n")
    wait_for(new, 200)
    assert call(secured, "GET", "/v1/status", SECRET)[0] == 200
    file.write_text(new)
    wait_for(SECRET, 401)
    file.write_text(SECRET)
    wait_for(SECRET, 200)


def test_what_callers_did_is_in_the_audit_log(secured: ApiServer) -> None:
    path = Path(secured.server.settings.audit_file)
    call(secured, "POST", '/v1/forged"', "a wrong key")
    with As(secured, "User:dave") as dave:
        assert call(secured, "GET", "/v1/status", dave.key)[0] == 403
        key_id = dave.key.split("_")[1]
        assert call(secured, "DELETE", f"/v1/keys/{key_id}", SECRET)[0] == 200

    def entries() -> list[tuple[Any, ...]]:
        found = [json.loads(text) for text in path.read_text().splitlines()]
        return [
            (each["principal"], each["call"], each["operation"], each["allowed"]) for each in found
        ]

    expected = {
        ("", 'POST /v1/forged"', "AUTHENTICATE", False),
        ("User:dave", "GET /v1/status", "DESCRIBE", False),
        ("Cluster:secret", "DELETE /v1/keys/{key}", "ALTER", True),
    }
    until(lambda: expected <= set(entries()))
    secrets = (SECRET, dave.key, dave.key.split("_", 2)[2], "a wrong key")
    assert not any(secret in path.read_text() for secret in secrets)
    assert path.stat().st_mode & 0o777 == 0o600


def test_bytes_of_a_deleted_topic_are_a_super_users_alone(secured: ApiServer) -> None:
    for name in ("kept", "short"):
        secured.create(name)
        secured.produce(name, 0, count=2)
    secured.drain()
    rules = [rule("User:erin", Operation.READ, name) for name in ("kept", "short")]
    commit(secured, CreateAcls(bindings=rules))
    (page,) = secured.client.runs([Range(ids(secured)["kept"], 0, 0, 2)])
    (key,) = page.object_keys
    with As(secured, "User:erin") as erin:
        assert erin.client.get_object(key, 0, 16)
        commit(secured, DeleteTopic(topic_id=bytes.fromhex(ids(secured)["short"])))
        with pytest.raises(DeniedError):
            erin.client.get_object(key, 0, 16)
        position, length = page.rows[4:6]
        assert erin.client.get_object(key, position, position + length)
        # Nor may who reads some topics list the runs of all.
        with pytest.raises(DeniedError):
            list(erin.client.runs())
        table = TableProgress(topic_id=ids(secured)["kept"], table="t", offsets=[])
        own = rule("User:erin", Operation.READ, "t", ResourceType.GROUP)
        commit(secured, CreateAcls(bindings=[own]))
        erin.client.save_table(table)
        with pytest.raises(DeniedError, match="delete"):
            erin.client.drop_table(table.topic_id, "t")


def test_near_items_are_read_one_by_one_where_all_at_once_is_denied(
    secured: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = object_key(secured)
    with As(secured, "User:bob") as bob:
        whole = bob.client.get_object(key, 0, 40)
        asked: list[tuple[int, int]] = []

        def narrow(key: str, start: int, end: int, *, origin: str = "") -> bytes:
            asked.append((start, end))
            if end - start > 10:
                raise DeniedError("read", key, "bytes of another topic lie between")
            return whole[start:end]

        monkeypatch.setattr(bob.objects, "get_range", narrow)
        views = bob.objects.get_views([(key, 0, 10), (key, 30, 40)])
        assert [bytes(view) for view in views] == [whole[:10], whole[30:40]]
        assert asked == [(0, 40), (0, 10), (30, 40)]


def test_an_answer_ends_where_a_rule_is_taken_back(
    secured: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_PIECE_BYTES", 16)
    real, count = Grants.need_range, 0

    async def taken_back(grants: Grants, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise DeniedCallerError("read", "key", "the rule is gone")
        await real(grants, *arguments)

    monkeypatch.setattr(Grants, "need_range", taken_back)
    path = f"/v1/pipeline/objects/{object_key(secured)}"
    with pytest.raises(http.client.IncompleteRead) as caught:
        call(secured, "GET", path, SECRET, range="bytes=0-127")
    assert len(caught.value.partial) < 128
