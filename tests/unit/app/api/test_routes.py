"""The pipeline API against what must not come in, and what it tells of itself."""

import dataclasses
import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.http.callers import Callers
from penstock.app.http.gate import HttpGate, HttpLimits
from penstock.app.http.peer_routes import SecretCheck
from penstock.app.http_port import HttpSources, application
from penstock.app.server import Server
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.api_messages import JOBS_PATH, RUNS_PATH, JobRequest, Problem, TableProgress
from penstock.pipeline.client import RefusedError
from penstock.pipeline.lease import JobLease
from penstock.state.answers import AnyAnswer, Refusal, Refused
from penstock.state.commands import AnyCommand
from penstock.state.schema import PIPELINE_LEVEL
from penstock.system.clock import SystemClock
from support.api_server import (
    ApiServer,
    new_key,
    offsets_in,
    replacement,
    serve_in_thread,
    write_request,
)
from support.examples import examples


def _raw(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str]]:
    assert server.http_address is not None
    connection = http.client.HTTPConnection(*server.http_address, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


def test_web_pages_and_nonsense_are_refused(api: ApiServer) -> None:
    status, problem = _raw(api.server, "GET", "/v1/pipeline/info", Origin="http://evil.example")
    assert (status, problem["kind"]) == (403, "invalid")
    for host, expected in (("evil.example:80", 403), ("localhost:1", 200), ("[::1]:1", 200)):
        # A page whose name leads to this machine by now is its own origin.
        status, problem = _raw(api.server, "GET", "/v1/pipeline/info", Host=host)
        assert status == expected
    status, problem = _raw(api.server, "POST", "/v1/pipeline/topics", b"[1")
    assert (status, problem["kind"]) == (400, "invalid")
    status, problem = _raw(api.server, "POST", "/v1/pipeline/topics", b"\xff")
    assert status == 400
    status, problem = _raw(api.server, "POST", "/v1/pipeline/runs", b'{"after": "x"}')
    assert status == 400
    status, problem = _raw(api.server, "GET", "/v1/pipeline/records?topic_id=&partition=-1")
    assert status == 400
    status, problem = _raw(api.server, "GET", "/v1/pipeline/writers/nobody")
    assert (status, problem["kind"]) == (404, "not_found")


@pytest.mark.parametrize("number", [1 << 63, 1 << 70, -(1 << 70)])
def test_numbers_that_no_state_can_hold_are_refused(api: ApiServer, number: int) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=4)
    api.drain()
    job = api.client.open_job(JobRequest(kind="test", name="tests"))
    calls = {
        "offsets": {"items": [[topic_id, 0, number]]},
        "runs": {"ranges": [[topic_id, 0, number, number]]},
        "producers": {"partitions": [[topic_id, number]]},
        "replace": {
            "job": job.job,
            "n": 1,
            "input_keys": [],
            "objects": [],
            "partitions": [
                {"topic_id": topic_id, "partition": 0, "inputs": [number], "outputs": []}
            ],
        },
        "write": {
            "job": job.job,
            "writer_id": "w",
            "batch_id": number,
            "incarnation": "x",
            "objects": [],
            "runs": [],
        },
    }
    for path, body in calls.items():
        status, problem = _raw(
            api.server, "POST", f"/v1/pipeline/{path}", json.dumps(body).encode()
        )
        # Or nothing is found there.
        assert status in {200, 400, 404, 409}, (path, status, problem)
    for path in (f"jobs/{1 << 70}/renew", f"jobs/{1 << 63}/renew"):
        status, _ = _raw(api.server, "POST", f"/v1/pipeline/{path}")
        assert status in {400, 409}
    table = {"topic_id": topic_id, "table": "x", "offsets": [[0, number]]}
    status, _ = _raw(api.server, "PUT", "/v1/pipeline/tables", json.dumps(table).encode())
    assert status in {400, 409}
    assert offsets_in(api.read(topic_id, 0, 0, 4)) == [0, 1, 2, 3], "the server goes on"


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.lists(st.integers(-2, 1 << 40), max_size=8),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def _mutated(value: object, data: st.DataObject) -> object:
    """A JSON value with one thing in it that is another."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value)))
        return {**value, name: _mutated(value[name], data)}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(value) - 1))
        return [*value[:index], _mutated(value[index], data), *value[index + 1 :]]
    return data.draw(_VALUES)


# A pattern may hold what a later Python will take for something else.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_nothing_that_is_sent_breaks_the_server(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=4)
    api.drain()
    with JobLease(api.client, kind="test", name="tests") as job:
        bodies: dict[str, object] = {
            "topics": {"names": ["t"], "topic_ids": [topic_id], "pattern": "t.*"},
            "offsets": {"items": [[topic_id, 0, 5]]},
            "runs": {"ranges": [[topic_id, 0, 0, 4]], "after": "0:2", "limit": 3},
            "producers": {"partitions": [[topic_id, 0]]},
            "accesses": {"method": "PUT", "keys": [new_key(job.job)], "seconds": 5},
            "replace": msgspec.to_builtins(
                replacement(api.client, api.objects, job, topic_id, put=False)
            ),
            "write": msgspec.to_builtins(write_request(api.objects, job, topic_id, {0: 2})),
        }

        @settings(max_examples=examples(5))
        @given(st.data())
        def send(data: st.DataObject) -> None:
            path = data.draw(st.sampled_from(sorted(bodies)))
            body = json.dumps(_mutated(bodies[path], data)).encode()
            if data.draw(st.integers(0, 9)) == 0:
                body = body[: data.draw(st.integers(0, len(body)))]
            status, problem = _raw(api.server, "POST", f"/v1/pipeline/{path}", body)
            assert status in {200, 400, 404, 409}, (path, body, status, problem)
            if status != 200:
                assert problem["kind"]

        send()
    assert offsets_in(api.read(topic_id, 0, 0, 4)) == [0, 1, 2, 3]


def test_names_may_be_of_any_characters(api: ApiServer) -> None:
    topic_id = api.create("t")
    with JobLease(api.client, kind="test", name="größe/?#%") as job:
        writer_id = "spark/ü ?#%&+'\"://x"
        api.client.write(write_request(api.objects, job, topic_id, {0: 1}, writer_id=writer_id))
        writer = api.client.writer(writer_id)
        assert writer is not None
        assert writer.writer_id == writer_id
        assert api.client.writer(writer_id + "/") is None
        table = TableProgress(topic_id=topic_id, table="a b&c=d/ü", offsets=[(0, 1)])
        api.client.save_table(table)
        api.client.drop_table(topic_id, table.table)
        assert api.client.tables() == []


@pytest.mark.parametrize("path", [RUNS_PATH, "/v1/status"])
async def test_whoever_lacks_the_secret_is_told_so_as_jobs_are_told_all_else(path: str) -> None:
    answered: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        answered.append(dict(message))

    async def nothing(*_: Any) -> Any:
        raise AssertionError("nobody may get here")

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await SecretCheck(nothing, ClusterSecret("a-secret-of-a-test"))(scope, nothing, send)
    assert answered[0]["status"] == 401
    if path == RUNS_PATH:
        problem = msgspec.json.decode(answered[1]["body"], type=Problem)
        assert (problem.kind, problem.reason) == ("secret", "")


def test_without_a_secret_the_api_of_a_cluster_is_shut(api: ApiServer) -> None:
    pipeline = api.server.parts.pipeline_sources()
    assert pipeline.without_secret

    def paths(*, shared: bool, secret: ClusterSecret | None) -> set[str]:
        sources = HttpSources(
            metrics=api.server.parts.metrics,
            status=dict,
            not_ready=str,
            back_up=api.server.back_up,
            callers=Callers(secret=secret),
            pipeline=dataclasses.replace(pipeline, without_secret=not shared),
        )
        gate = HttpGate("http", HttpLimits(), SystemClock(), lambda port, happened: None)
        app: Any = application(sources, gate)
        return {route.path for route in app.app._app.routes}

    assert RUNS_PATH in paths(shared=False, secret=None)
    assert RUNS_PATH not in paths(shared=True, secret=None)
    assert RUNS_PATH in paths(shared=True, secret=ClusterSecret("0123456789abcdef"))


def test_jobs_wait_until_every_agent_knows_their_commands(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = api.server.parts.view
    log: Any = api.server.parts.log

    async def refuse(commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """As apply answers below the pipeline's level."""
        return [Refused(Refusal.LEVEL_NOT_ON) for _ in commands]

    monkeypatch.setattr(log, "commit", refuse)
    wanted = msgspec.json.encode(JobRequest(kind="test", name="tests"))
    _, problem = _raw(api.server, "POST", JOBS_PATH, wanted)
    assert problem["kind"] == "retry"
    assert "being raised" in problem["error"]
    (agent,) = view.agents()
    older = dataclasses.replace(agent, agent_id=99, level_max=PIPELINE_LEVEL - 1)
    monkeypatch.setitem(view._agents, 99, older)
    with pytest.raises(RefusedError, match="older release") as caught:
        api.client.open_job(JobRequest(kind="test", name="tests"))
    assert caught.value.reason == "level_not_on"
    monkeypatch.undo()
    api.client.open_job(JobRequest(kind="test", name="tests"))


@pytest.mark.slow
def test_much_that_waits_for_compaction_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_in_thread(tmp_path / "data", compaction_warn_bytes=1) as api:
        api.create("t")
        for count in range(15):
            api.produce("t", 0, count=1)
            api.drain()
            backlog = api.server._backlog
            assert backlog is not None
            api.on_loop(backlog.run_once())
            warned = [text for text in caplog.messages if "wait for compaction" in text]
            assert len(warned) == int(count >= 12)


@pytest.mark.slow
def test_calls_and_the_backlog_are_counted(api: ApiServer) -> None:
    api.client.info()
    api.create("t")
    for _ in range(14):
        api.produce("t", 0, count=1)
        api.drain()
    backlog = api.server._backlog
    assert backlog is not None
    api.on_loop(backlog.run_once())
    text = api.get("/metrics")
    assert 'penstock_pipeline_calls_total{call="info 200"} 1' in text
    assert "penstock_compaction_backlog_runs 14" in text
    assert json.loads(api.get("/v1/status"))["compaction_backlog"]["runs"] == 14
