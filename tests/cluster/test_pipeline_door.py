"""The pipeline API of real agents over PostgreSQL and S3, and of a host's workers: bytes go
past the agents, an agent's death is no commit's, and what is away is never answered as empty."""

from __future__ import annotations

import logging
import pickle
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.world import World
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.pipeline.api_messages import JobRequest, Range
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from support.agents import SECRET, Agent
from support.api_server import new_key, offsets_in, replacement, write_request
from support.ports import free_port
from support.probe import create_topic
from support.raw_fetch import raw_producer
from support.s3_proxy import Rule
from support.server import ServerProcess
from support.waiting import eventually
from support.workers import workers_host


@pytest.fixture(autouse=True)
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)


@contextmanager
def opened(
    *urls: str, objects: str = "auto", deadline_s: float = 120.0
) -> Iterator[tuple[PipelineClient, ObjectAccess]]:
    options = ClientOptions(urls=urls, objects=objects, deadline_s=deadline_s)
    with PipelineClient(options) as client, ObjectAccess(client) as access:
        yield client, access


BYTES_CALLS = (
    'penstock_pipeline_calls_total{call="get ',
    'penstock_pipeline_calls_total{call="put ',
)


def make_topic(world: World, durability: str = "object") -> str:
    topic = f"api-{durability}-{time.monotonic_ns()}"
    # Without retention: the tests' records are years old, and agents look for such every 5 minutes.
    create_topic(
        world.agents.agents[0].address,
        topic,
        2,
        penstock_durability=durability,
        retention_ms="-1",
    )
    return topic


def produce(agent: Agent, topic: str, count: int) -> None:
    """Records of partition 0, in a batch each, by exactly this agent."""
    with raw_producer(agent.address) as producer:
        for _ in range(count):
            eventually(lambda: producer.send(topic, 0, b"x"), lambda error: error == "NONE")


def topic_id_of(client: PipelineClient, topic: str) -> str:
    (found,) = client.topics([topic]).topics
    return found.topic_id


def read(
    client: PipelineClient, objects: ObjectAccess, topic_id: str, end: int, partition: int = 0
) -> bytes:
    wanted = Range(topic_id, partition, 0, end)
    return b"".join(part.body for part in read_range(client, objects, wanted))


def bytes_through(agents: list[Agent]) -> list[str]:
    """Calls by which objects' bytes passed an agent."""
    found = []
    for agent in agents:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
            text = response.read().decode()
        found += [line for line in text.splitlines() if line.startswith(BYTES_CALLS)]
    return found


def test_bytes_go_between_executors_and_the_bucket(world: World) -> None:
    topic = make_topic(world)
    agents = world.agents.agents
    before = bytes_through(agents)
    for agent in agents:
        produce(agent, topic, 4)
    with opened(*(agent.http for agent in agents)) as (client, objects):
        assert client.info().objects == "presigned"
        assert client.info().objects_url == f"s3://{world.bucket}/log"
        topic_id = topic_id_of(client, topic)
        world.proxy.clear_counts()
        stored = read(client, objects, topic_id, 12)
        assert offsets_in(stored) == list(range(12))
        assert world.proxy.counts()["operations"]["get"] > 0
        with JobLease(client, kind="test", name="tests") as job:
            request = replacement(client, objects, job, topic_id)
            assert client.replace(request).codes == [""]
            assert read(client, objects, topic_id, 12) == stored
            # Conditional, though the signature doesn't cover the condition.
            with pytest.raises(PenstockError, match="already"):
                objects.put(request.objects[0].key, [b"another"])
            assert read(client, objects, topic_id, 12) == stored
            written = client.write(write_request(objects, job, topic_id, {0: 3, 1: 2}))
            assert written.ranges == [Range(topic_id, 0, 12, 15), Range(topic_id, 1, 0, 2)]
            assert offsets_in(read(client, objects, topic_id, 15)) == list(range(15))
            with pytest.raises(NotFoundError):
                objects.get_range(new_key(job.job), 0, 5)
            with pytest.raises(CorruptDataError):
                key, size_bytes = request.objects[0].key, request.objects[0].size_bytes
                objects.get_range(key, 0, size_bytes + 1)
        assert bytes_through(agents) == before
    with opened(agents[0].http, objects="agent") as (client, objects):
        assert read(client, objects, topic_id, 12) == stored
        assert bytes_through(agents) != before


def test_ambient_credentials_need_no_agent_for_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.agents.environment.items():
        monkeypatch.setenv(name, value)
    topic = make_topic(world)
    agents = world.agents.agents
    produce(agents[0], topic, 1)
    before = bytes_through(agents)
    with opened(agents[1].http, objects="ambient") as (client, objects):
        topic_id = topic_id_of(client, topic)
        assert offsets_in(read(client, objects, topic_id, 1)) == [0]
        with JobLease(client, kind="test", name="tests") as job:
            written = client.write(write_request(objects, job, topic_id, {0: 2}))
            assert written.ranges == [Range(topic_id, 0, 1, 3)]
            with pytest.raises(NotFoundError):
                objects.get_range(new_key(job.job), 0, 5)
    assert bytes_through(agents) == before


def test_a_store_that_fails_now_and_then_changes_nothing(world: World) -> None:
    """Until each kind of fault has been met; all together are fewer than the tries that one call
    has."""
    topic = make_topic(world)
    agents = world.agents.agents
    produce(agents[0], topic, 4)
    rules = [
        Rule(fault="slow_down", percent=20, count=4),
        Rule(fault="error", percent=20, count=4),
        Rule(fault="reset", percent=20, count=4),
        Rule(fault="unsettled", operations=["put"], percent=30, count=4),
        Rule(fault="lost_reply", operations=["put"], percent=30, count=4),
        Rule(fault="cut_body", operations=["get"], percent=20, count=4),
    ]
    written = 0
    with opened(agents[0].http) as (client, objects):
        topic_id = topic_id_of(client, topic)
        stored = read(client, objects, topic_id, 4)
        world.proxy.clear_counts()
        world.proxy.set_rules(*rules)
        try:
            with JobLease(client, kind="test", name="tests") as job:
                while len(world.proxy.counts()["faults"]) < len(rules):
                    with ObjectAccess(client) as fresh:
                        assert read(client, fresh, topic_id, 4) == stored
                    request = write_request(objects, job, topic_id, {1: 3}, batch_id=written)
                    ranges = client.write(request).ranges
                    assert ranges == [Range(topic_id, 1, 3 * written, 3 * written + 3)]
                    written += 1
                replaced = replacement(client, objects, job, topic_id)
                assert client.replace(replaced).codes == [""]
            assert read(client, objects, topic_id, 4) == stored
            found = read(client, objects, topic_id, 3 * written, partition=1)
        finally:
            world.proxy.set_rules()
        assert offsets_in(found) == list(range(3 * written))


def test_a_job_outlives_its_server(tmp_path: Path) -> None:
    """What was put and registered is as durable as records are."""
    server = ServerProcess(tmp_path / "data", tmp_path / "log", {"SEGMENT_AGE_MS": "600000"})
    server.start()
    try:
        create_topic(server.bootstrap, "t", 1)
        with opened(server.http, deadline_s=60) as (client, objects):
            topic_id = topic_id_of(client, "t")
            with JobLease(client, kind="test", name="tests", lease_ms=60_000) as job:
                first = write_request(objects, job, topic_id, {0: 4})
                written = client.write(first)
                second = write_request(objects, job, topic_id, {0: 2}, batch_id=1)
                server.kill()
                server.start()
                assert client.write(first).ranges == written.ranges
                assert client.write(second).ranges == [Range(topic_id, 0, 4, 6)]
                job.check()
                assert offsets_in(read(client, objects, topic_id, 6)) == list(range(6))
    finally:
        if server.running():
            server.kill()


def test_an_agent_that_is_down_is_passed_over(world: World) -> None:
    agents = world.agents.agents
    nobody = f"http://127.0.0.1:{free_port()}"
    for _ in range(4):
        with opened(nobody, agents[0].http) as (client, _):
            assert client.info().cluster_id
    with opened(nobody, deadline_s=0.5) as (client, _), pytest.raises(RetryableError):
        client.info()


def test_a_wal_whose_agent_is_down_is_an_error_and_never_empty(world: World) -> None:
    topic = make_topic(world, "wal")
    other, another, victim = world.agents.agents
    produce(victim, topic, 5)
    with opened(another.http) as (client, objects):
        topic_id = topic_id_of(client, topic)
        stored = read(client, objects, topic_id, 5)
        assert offsets_in(stored) == list(range(5))
    # The other one has nothing of it in memory.
    victim.server.kill()
    with opened(other.http) as (client, _):
        (page,) = client.runs([Range(topic_id, 0, 0, 5)])
        assert page.rows, "the runs are named still"
    with opened(other.http, deadline_s=3.0) as (client, objects), pytest.raises(RetryableError):
        read(client, objects, topic_id, 5)
    world.heal()
    with opened(other.http) as (client, objects):
        assert read(client, objects, topic_id, 5) == stored


def test_what_one_agent_acknowledged_every_other_one_tells(world: World) -> None:
    topic = make_topic(world)
    first, second, third = world.agents.agents
    produce(first, topic, 1)
    with opened(second.http) as (client, objects), opened(third.http) as (other, _):
        topic_id = topic_id_of(client, topic)
        with raw_producer(first.address) as producer:
            for count in range(2, 22):
                assert producer.send(topic, 0, b"x") == "NONE"
                (state, _) = client.topics([topic]).topics[0].partitions
                assert state.high_watermark == count
                (page,) = other.runs([Range(topic_id, 0, count - 1, count)])
                assert page.rows[2] == count
        assert offsets_in(read(client, objects, topic_id, 21)) == list(range(21))


def test_while_the_journal_is_away_nothing_is_told_that_may_be_wrong(world: World) -> None:
    topic = make_topic(world)
    agent = world.agents.agents[0]
    produce(agent, topic, 3)
    with opened(agent.http) as (client, _):
        topic_id = topic_id_of(client, topic)
        job = client.open_job(JobRequest(kind="test", name="tests"))
    # All questions together take less time than it takes to fence an agent: where the journal comes
    # back to one agent first, that one goes on without those that it was away from for so long.
    with opened(agent.http, deadline_s=0.2) as (client, objects):
        wanted = Range(topic_id, 0, 0, 3)
        world.postgres.stop()
        try:
            for ask in (
                lambda: client.topics([topic]),
                lambda: client.topics(["no-such-topic"]),
                lambda: list(client.runs([wanted])),
                lambda: client.records(topic_id, 0, 0, 3),
                lambda: client.offsets([(topic_id, 0, 0)]),
                lambda: client.writer("nobody"),
                lambda: client.renew_job(job.job),
                lambda: read(client, objects, topic_id, 3),
            ):
                with pytest.raises(RetryableError):
                    ask()
        finally:
            world.start_postgres()
    with opened(agent.http) as (client, objects):
        assert offsets_in(read(client, objects, topic_id, 3)) == [0, 1, 2]
        client.renew_job(job.job)
        client.close_job(job.job)


def test_a_commit_is_answered_once_also_across_an_agents_death(world: World) -> None:
    topic = make_topic(world)
    first, second = world.agents.agents[1], world.agents.agents[0]
    produce(second, topic, 3)
    with (
        opened(first.http, second.http) as (client, objects),
        JobLease(client, kind="test", name="tests") as job,
    ):
        topic_id = topic_id_of(client, topic)
        with opened(first.http) as (dying, _):
            replaced = replacement(dying, objects, job, topic_id)
            assert dying.replace(replaced).codes == [""]
            write = write_request(objects, job, topic_id, {0: 4}, writer_id="dies")
            written = dying.write(write)
        first.server.kill()
        assert client.replace(replaced).codes == [""]
        again = client.write(write)
        assert again.repeated
        assert again.ranges == written.ranges
        # A replay whose objects are others, under a job of its own, as after a driver's restart.
        with JobLease(client, kind="test", name="tests") as following:
            replay = write_request(objects, following, topic_id, {0: 4}, writer_id="dies")
            assert client.write(replay).ranges == written.ranges
        assert offsets_in(read(client, objects, topic_id, 7)) == list(range(7))
        assert client.topics([topic]).topics[0].partitions[0].high_watermark == 7
        client.close_job(job.job)
        with pytest.raises(FencedError):
            client.renew_job(job.job)


def test_no_secret_and_no_signature_is_told(
    world: World, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by what is pickled, shown, logged or raised, whatever goes wrong."""
    topic = make_topic(world)
    agents = world.agents.agents
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    produce(agents[0], topic, 1)

    def failing(access: ObjectAccess, key: str, start: int, end: int) -> None:
        try:
            access.get_range(key, start, end)
        except PenstockError as error:
            told.extend(_whole(error))
        else:
            raise AssertionError("it did not fail")

    urls = [agent.http for agent in agents]
    with opened(*urls) as (client, objects), opened(*urls, deadline_s=2.0) as (_, impatient):
        topic_id = topic_id_of(client, topic)
        (page,) = client.runs([Range(topic_id, 0, 0, 1)])
        key = page.object_keys[0]
        assert objects.get_range(key, 0, 5)
        failing(objects, key, 0, 1 << 30)
        failing(objects, new_key(77), 0, 5)
        world.proxy.refuse(refusing=True)
        try:
            failing(impatient, key, 0, 6)
        finally:
            world.proxy.refuse(refusing=False)
        assert any("X-Amz-Signature" in url for url, _ in objects._urls.values())
        for value in (
            client,
            objects,
            client.options,
            client._transport,
            objects._calls,
            impatient,
        ):
            told += [repr(value), str(value)]
        pickles = b"".join(pickle.dumps(value) for value in (client, objects, client.options))
        monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", "wrong-" + SECRET[6:])
        with (
            opened(agents[0].http) as (stranger, _),
            pytest.raises(InvalidRequestError, match="secret") as caught,
        ):
            stranger.info()
        told += _whole(caught.value)
    told.append(pickles.decode("latin-1"))
    told += [record.getMessage() for record in caplog.records]
    assert any("urllib3" in record.name for record in caplog.records), "nothing was logged"
    for text in told:
        assert SECRET not in text
        assert "wrong-" + SECRET[6:] not in text
        assert "X-Amz-Signature" not in text, text
        assert "X-Amz-Credential" not in text, text


def _whole(error: BaseException | None) -> list[str]:
    """An error and all that led to it, as a traceback would show them."""
    told = []
    while error is not None:
        told += [repr(error), str(error)]
        error = error.__cause__ or error.__context__
    return told


def test_a_secret_is_read_from_a_file_and_again_when_it_changes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_CLUSTER_SECRET")
    path = tmp_path / "secret"
    path.write_text("not-this-one-0123456789\n")
    options = ClientOptions(urls=(world.agents.agents[0].http,), secret_file=str(path))
    with PipelineClient(options) as client:
        with pytest.raises(InvalidRequestError, match="secret"):
            client.info()
        path.write_text(f"{SECRET}\n")
        assert client.info().cluster_id


def test_workers_of_one_host_read_one_anothers_wals(tmp_path: Path) -> None:
    settings = {"SEGMENT_AGE_MS": "600000", "DRAIN_TIMEOUT_MS": "0"}
    with workers_host(tmp_path, 2, settings) as host:
        create_topic(host.address(0), "t", 1)
        for index in (0, 1, 0):
            with raw_producer(host.address(index)) as producer:
                assert producer.send("t", 0, b"x") == "NONE"
        for index in (0, 1):
            with opened(host.http(index)) as (client, objects):
                assert client.info().objects == "agent"
                topic_id = topic_id_of(client, "t")
                assert offsets_in(read(client, objects, topic_id, 3)) == [0, 1, 2]
        with opened(host.http(1)) as (client, objects), opened(host.http(0)) as (other, _):
            with JobLease(client, kind="test", name="tests") as job:
                request = write_request(objects, job, topic_id, {0: 4})
                written = other.write(request)
                assert written.ranges == [Range(topic_id, 0, 3, 7)]
                assert client.write(request).repeated
                assert offsets_in(read(client, objects, topic_id, 7)) == list(range(7))
            with pytest.raises(FencedError):
                other.renew_job(job.job)
