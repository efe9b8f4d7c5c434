"""A whole server in this process: it starts, answers, refuses what it must, and drains."""

import asyncio
import http.client
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from penstock.app import server as server_module
from penstock.app.server import Server
from penstock.cli.client.cluster import Client
from penstock.cli.client.producing import NewRecord, Producer
from penstock.config.about import MIB
from penstock.config.settings import ServerSettings
from penstock.log.layout import DataLayout
from penstock.model.errors import ConflictError
from penstock.recovery.directory import find_data, restore, verify_directory
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.raw_fetch import fetch_from

T = TypeVar("T")


def settings_for(data: Path, **changes: Any) -> ServerSettings:
    return ServerSettings(
        data=str(data),
        kafka="127.0.0.1:0",
        http="127.0.0.1:0",
        wal_bytes_max=8 * MIB,
        wal_file_bytes=2 * MIB,
        segment_bytes=MIB,
        block_cache_bytes=MIB,
        drain_timeout_ms=5000,
        **changes,
    )


def make_server(settings: ServerSettings) -> Server:
    def fail(error: BaseException) -> None:
        raise AssertionError("a fatal error") from error

    return Server(settings, clock=SystemClock(), random=SystemRandom(), on_fatal=fail)


def serve(settings: ServerSettings, use: Callable[[Server], T]) -> T:
    """Run `use` in a thread while a server runs."""

    async def main() -> T:
        server = make_server(settings)
        await server.start()
        try:
            return await asyncio.to_thread(use, server)
        finally:
            await server.stop()

    return asyncio.run(main())


def get(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    assert server.http_address is not None
    connection = http.client.HTTPConnection(*server.http_address, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def connect(server: Server) -> Client:
    return Client(server.kafka_address, timeout_s=60)


def produce(server: Server, topic: str, values: list[bytes]) -> None:
    with connect(server) as client:
        producer = Producer(client, topic, codec="none", batch_bytes=1000, deadline_s=60)
        for value in values:
            producer.add(NewRecord(key=None, value=value, partition=0))
        producer.flush()


def read(server: Server, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        answer = fetch_from(str(server.kafka_address), topic, 0, len(found), wait_ms=5000)
        assert answer.error == "NONE"
        assert answer.offsets[0] == len(found)
        found += answer.values
    return found


VALUES = [str(number).encode() * 10 for number in range(200)]


@pytest.mark.slow
def test_what_is_produced_is_there_after_a_restart_under_the_same_identity(tmp_path: Path) -> None:
    def first(server: Server) -> tuple[str, int]:
        with connect(server) as client:
            client.admin.create_topic("t", partitions=2, configs={})
        produce(server, "t", VALUES)
        assert read(server, "t", len(VALUES)) == VALUES
        return server.parts.journal.cluster_id, server.parts.journal.agent_id

    def second(server: Server) -> tuple[str, int]:
        assert read(server, "t", len(VALUES)) == VALUES
        return server.parts.journal.cluster_id, server.parts.journal.agent_id

    settings = settings_for(tmp_path)
    assert serve(settings, first) == serve(settings, second)


def test_http_tells_health_readiness_status_and_metrics(tmp_path: Path) -> None:
    def use(server: Server) -> None:
        with connect(server) as client:
            client.admin.create_topic("t", partitions=3, configs={})
        produce(server, "t", VALUES)
        read(server, "t", 1)
        assert get(server, "/healthz") == (200, "ok\n")
        assert get(server, "/readyz") == (200, "ready\n")
        assert get(server, "/")[1].startswith("Penstock ")
        code, body = get(server, "/nothing")
        problem = json.loads(body)
        assert (code, problem["kind"]) == (404, "invalid")
        assert problem["error"].startswith("GET /nothing: Not Found")
        status = json.loads(get(server, "/v1/status")[1])
        assert status["clock"] == {
            "in_doubt": "",
            "off_ms": 0,
            "believed_in_s": 0.0,
            "journal_ahead_ms": 0,
        }
        assert (status["topics"], status["partitions"]) == (1, 3)
        assert status["kafka"] == status["advertised"] == str(server.kafka_address)
        assert status["cluster_id"] == server.parts.journal.cluster_id
        assert status["wal"]["bytes_max"] == 8 * MIB
        page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
        assert [name for name in (*status, *status["wal"]) if f"`{name}`" not in page] == []
        metrics = get(server, "/metrics")[1]
        assert "penstock_partitions 3.0\n" in metrics
        for name in ("wal", "journal", "ack", "fetch"):
            assert f"penstock_{name}_duration_seconds_bucket" in metrics
        assert 'penstock_request_duration_seconds_count{api="Produce"}' in metrics
        server._draining = True
        assert get(server, "/readyz") == (503, "not ready: draining\n")

    serve(settings_for(tmp_path), use)


async def test_a_second_server_on_one_directory_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    first, second = make_server(settings_for(tmp_path)), make_server(settings_for(tmp_path))
    await first.start()
    try:
        with pytest.raises(ConflictError, match=r"process \d+ is using this data directory"):
            await second.start()
        await second.stop()
        assert (await asyncio.to_thread(get, first, "/healthz"))[0] == 200
    finally:
        await first.stop()


@pytest.mark.parametrize("setting", ["kafka", "http"])
async def test_an_address_in_use_is_named_and_the_lock_given_back(
    setting: str, tmp_path: Path
) -> None:
    first = make_server(settings_for(tmp_path / "first"))
    await first.start()
    try:
        taken = first.kafka_address if setting == "kafka" else first.http_address
        settings = settings_for(tmp_path / "second")
        second = make_server(msgspec.structs.replace(settings, **{setting: str(taken)}))
        with pytest.raises(ConflictError, match=f"{setting} {taken}"):
            await second.start()
        third = make_server(settings)
        await third.start()
        await third.stop()
    finally:
        await first.stop()


def test_a_server_without_http_has_none(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(settings_for(tmp_path), http="")
    assert serve(settings, lambda server: server.status()["http"]) is None


async def test_stopping_ends_all_that_was_started(tmp_path: Path) -> None:
    server = make_server(settings_for(tmp_path))
    await server.start()
    await server.stop()
    await server.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def run_async(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


@pytest.mark.slow
def test_a_backup_of_a_live_server_is_whole_and_restores_to_the_same(tmp_path: Path) -> None:
    target = tmp_path / "backup"

    def use(server: Server) -> None:
        with connect(server) as client:
            client.admin.create_topic("t", partitions=1, configs={})
        produce(server, "t", VALUES)
        body = json.dumps({"to": str(target)})
        as_json = {"content-type": "application/json"}
        code, text = get(server, "/v1/backup", method="POST", body=body, headers=as_json)
        assert code == 200, text
        assert json.loads(text)["topics"] == 1
        code, text = get(server, "/v1/backup", method="POST", body=body, headers=as_json)
        assert code == 409
        assert "there is a backup already" in json.loads(text)["error"]

    serve(settings_for(tmp_path / "data"), use)
    restored = DataLayout(tmp_path / "restored")
    restored.root.mkdir()
    run_async(restore(str(target), restored, clock=SystemClock(), random=SystemRandom()))
    report = run_async(verify_directory(find_data(restored.root)))
    assert report.ok
    assert report.records == len(VALUES)
    settings = settings_for(restored.root)
    assert serve(settings, lambda server: read(server, "t", len(VALUES))) == VALUES


def test_a_backup_cannot_be_asked_for_by_a_web_page(tmp_path: Path) -> None:
    body = json.dumps({"to": str(tmp_path / "backup")})

    def use(server: Server) -> None:
        for headers in (
            {"content-type": "text/plain"},
            {"content-type": "application/json", "origin": "http://example.org"},
        ):
            assert get(server, "/v1/backup", method="POST", body=body, headers=headers)[0] == 403
        as_json = {"content-type": "application/json"}
        assert get(server, "/v1/backup", method="POST", body="{}", headers=as_json)[0] == 400

    serve(settings_for(tmp_path / "data"), use)
    assert not (tmp_path / "backup").exists()


def test_schemas_are_loaded_by_the_thread_that_handlers_load_them_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kio's modules import one another in circles: two threads at it at once is a deadlock."""
    loaded = threading.Event()
    by: list[int] = []

    def load() -> None:
        by.append(threading.get_ident())
        loaded.set()

    monkeypatch.setattr(server_module, "_SCHEMAS_AFTER_S", 0)
    monkeypatch.setattr(server_module, "_import_schemas", load)
    assert serve(settings_for(tmp_path), lambda _: loaded.wait(60))
    assert by == [threading.get_ident()]
