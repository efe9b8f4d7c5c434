"""Real agents, PostgreSQL and S3: all are killed, and of the bucket another cluster is made."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from penstock.replica.archive_format import SNAPSHOTS_PREFIX, parse_snapshot_key
from support.agents import PATIENCE, SECRET, Agents, run_cli
from support.postgres import running_postgres
from support.s3 import S3Server, environment
from support.s3_proxy import Rule, S3ProxyProcess
from support.server import REPOSITORY, ServerProcess
from support.waiting import eventually

LOCAL = ("--engine", "local")
PARTITIONS = 3
PARENT_OF_TWO = "parent_of_two"
LAST_LOOK = Rule(
    operations=["list"],
    key="archive.*journal",
    skip=1,
    count=1,
    delay_ms_median=4_000,
    delay_ms_p99=4_000,
)
FIRST_RECORD_BYTES = 80
"""Behind the headers of segment and batch; the least of segments, of one record, has 243 bytes."""
Records = dict[tuple[int, int], bytes]
"""Value by partition and offset."""
IsNew = Callable[[tuple[int, int]], bool]
"""Whether a record was appended after the restore, by its partition and offset."""


def produce(bootstrap: str, start: int, end: int) -> None:
    """Numbered records, all acknowledged."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(start, end):
        producer.produce(
            "t",
            b"value %d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: error and failures.append(error),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures


def consume(bootstrap: str, count: int, *, is_new: IsNew | None = None) -> Records:
    """Everything there is, which must be `count` records, the new ones of a restore's epoch."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("t", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: Records = {}
    try:
        deadline = time.monotonic() + 120
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                place = message.partition(), message.offset()
                found[place] = message.value()
                assert (message.leader_epoch() > 0) is (is_new is not None and is_new(place)), place
        for number in range(PARTITIONS):
            _, high = consumer.get_watermark_offsets(TopicPartition("t", number), timeout=60)
            assert high == sum(partition == number for partition, _ in found)
    finally:
        consumer.close()
    return found


def go_on_from(bootstrap: str, offset: int) -> str:
    """What comes to a consumer of partition 0 whose last record was of epoch 0: a value, or what it
    is told."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "behind", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition("t", 0, offset, leader_epoch=0)])
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                error = message.error()
                return error.str() if error is not None else message.value().decode()
    finally:
        consumer.close()
    raise AssertionError("nothing came")


def status(agents: Agents) -> list[dict[str, Any]]:
    found = []
    for agent in agents.agents:
        request = urllib.request.Request(
            f"http://{agent.http}/v1/status",
            headers={"authorization": f"Bearer {SECRET}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found.append(json.load(answer))
    return found


def damage(s3: S3Server, url: str) -> None:
    """Flip a bit of each segment's first record; the second time they are as before."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/segments/")["Contents"]
    for found in listed:
        data = bytearray(client.get_object(Bucket=bucket, Key=found["Key"])["Body"].read())
        data[FIRST_RECORD_BYTES] ^= 1
        client.put_object(Bucket=bucket, Key=found["Key"], Body=bytes(data))
    client.close()


def numbers(agents: Agents, name: str) -> list[int]:
    """The number of that name in each agent's status."""
    return [find(value, name) for value in status(agents)]


def find(value: Any, name: str) -> int:
    """The number of that name in a status."""
    if isinstance(value, dict):
        if isinstance(value.get(name), int):
            return int(value[name])
        for inner in value.values():
            number = find(inner, name)
            if number:
                return number
    return 0


def verify(*arguments: str, records: int) -> None:
    done = run_cli("verify", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["records"] == records


def restoring(source: str, objects: str, endpoint: str, *arguments: str) -> subprocess.Popen[str]:
    """A restore with copies that has begun."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    command = [
        "restore",
        "--from",
        source,
        "--objects",
        objects,
        "--copy",
        "--json",
        "--engine",
        "local",
        *arguments,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        env={**kept, "PYTHONPATH": str(REPOSITORY / "src"), **environment(endpoint)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def parent(
    s3_server: S3Server, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, int]:
    """The URL of a cluster that has ended, with records in several objects; a moment of it."""
    url = f"s3://{s3_server.make_bucket()}/parent"
    with Agents(
        tmp_path_factory.mktemp("parent"),
        postgres_url,
        url,
        environment=environment(s3_server.endpoint),
        settings={
            **PATIENCE,
            "ARCHIVE_INTERVAL_MS": "200",
            "DEFAULT_PARTITIONS": str(PARTITIONS),
            "CLUSTER_NAME": PARENT_OF_TWO,
        },
    ) as agents:
        agents.add()
        agents.wait_live()
        produce(agents.bootstrap, 0, 30)
        (moment,) = numbers(agents, "journal_position")
        for start in range(30, 90, 15):
            produce(agents.bootstrap, start, start + 15)
        (end,) = numbers(agents, "journal_position")
        eventually(lambda: max(numbers(agents, "archived_position")) >= end, timeout_seconds=120)
        assert agents.stop() == [0]
    return url, moment


@pytest.mark.parametrize(
    ("journals", "begins"),
    [("one journal", "at once"), ("two journals", "while the first copies")],
)
def test_of_two_restores_with_copies_at_once_what_is_made_is_whole(
    parent: tuple[str, int],
    s3: S3Server,
    postgres_url: str,
    journal_name: str,
    tmp_path: Path,
    journals: str,
    begins: str,
) -> None:
    """The second is of an earlier moment, so that it has no use for all that the first copies; and
    where it begins later, the first hesitates between its last look at the place and its snapshot,
    so that the second is the cluster and has deleted what it has no use for by then."""
    url, moment = parent
    bucket = s3.make_bucket()
    objects = f"s3://{bucket}/child"
    names = [journal_name, journal_name if journals == "one journal" else f"{journal_name}_second"]
    wanted = [
        ("--journal", postgres_url, "--cluster-name", names[0]),
        ("--journal", postgres_url, "--cluster-name", names[1], "--position", str(moment)),
    ]
    records = [90, 30]
    with ExitStack() as stack:
        slow = S3ProxyProcess(upstream=s3.endpoint, log=tmp_path / "proxy.log")
        stack.enter_context(slow)
        begin = partial(restoring, url, objects)
        if begins == "at once":
            processes = [begin(slow.endpoint, *arguments) for arguments in wanted]
        else:
            slow.set_rules(LAST_LOOK)
            processes = [begin(slow.endpoint, *wanted[0])]
            first = processes[0]
            eventually(
                lambda: (
                    bool(keys_in(s3, bucket, "child/restore-in-progress.json"))
                    or first.poll() is not None
                ),
                timeout_seconds=120,
            )
            processes.append(begin(s3.endpoint, *wanted[1]))
        told = [process.communicate(timeout=300) for process in processes]
    made = [number for number, process in enumerate(processes) if process.returncode == 0]
    for number, process in enumerate(processes):
        if number not in made:
            assert process.returncode == 1, told[number]
            assert "restore" in told[number][1].splitlines()[-1], told[number]
    assert len(made) <= 1, told
    if not made:
        # Each has found the other in its place.
        again = run_cli(
            "restore", "--from", url, "--objects", objects, "--copy", *LOCAL, *wanted[0]
        )
        assert again.returncode == 0, (again.stderr, told)
        made = [0]
    for number in made:
        verify(
            *("--objects", objects, "--journal", postgres_url, "--cluster-name", names[number]),
            records=records[number],
        )
    # And the parent is as it was.
    verify(
        *("--objects", url, "--journal", postgres_url, "--cluster-name", PARENT_OF_TWO), records=90
    )


def keys_in(s3: S3Server, bucket: str, prefix: str) -> list[str]:
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )
    found = client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    client.close()
    return [row["Key"] for row in found]


@pytest.fixture
def killed_cluster(s3: S3Server, tmp_path: Path) -> Iterator[tuple[str, int, Records, Records]]:
    """The URL of the objects of a cluster of which nothing else is left; a moment; what it held
    then and at the end."""
    bucket = s3.make_bucket()
    url = f"s3://{bucket}/parent"
    with (
        running_postgres() as postgres,
        Agents(
            tmp_path,
            postgres.url,
            url,
            environment=environment(s3.endpoint),
            settings={
                **PATIENCE,
                "ARCHIVE_INTERVAL_MS": "200",
                "DEFAULT_PARTITIONS": str(PARTITIONS),
            },
        ) as agents,
    ):
        for _ in range(2):
            agents.add()
        agents.wait_live()
        produce(agents.bootstrap, 0, 300)
        first = consume(agents.bootstrap, 300)
        # Until both have applied all that was acknowledged.
        reached = max(numbers(agents, "journal_position"))
        eventually(lambda: min(numbers(agents, "journal_position")) >= reached, timeout_seconds=120)
        moment = max(numbers(agents, "journal_position"))
        produce(agents.bootstrap, 300, 450)
        last = consume(agents.bootstrap, 450)
        end = max(numbers(agents, "journal_position"))
        eventually(lambda: max(numbers(agents, "archived_position")) >= end, timeout_seconds=120)
        verify("--objects", url, "--journal", postgres.url, records=450)
        # The same through an agent, the first of which is away; objects come from the store.
        apis = ["127.0.0.1:1", *(agent.http for agent in agents.agents)]
        verify(*LOCAL, *(part for api in apis for part in ("--url", api)), records=450)
        damage(s3, url)
        done = run_cli("verify", "--url", apis[1], *LOCAL, "--json")
        assert done.returncode == 1
        assert {found["kind"] for found in json.loads(done.stdout)["findings"]} == {"damaged"}
        damage(s3, url)
        for agent in agents.agents:
            agent.server.kill()
    for number in range(2):
        shutil.rmtree(tmp_path / f"agent-{number}")
    yield url, moment, first, last


def test_a_cluster_and_a_directory_are_made_of_the_bucket_alone(
    killed_cluster: tuple[str, int, Records, Records],
    s3: S3Server,
    tmp_path: Path,
) -> None:
    url, moment, first, last = killed_cluster
    new_url = url.replace("/parent", "/child")
    with running_postgres() as postgres:
        made = run_cli(
            "restore", "--from", url, "--objects", new_url, "--journal", postgres.url, "--json"
        )
        assert made.returncode == 0, made.stderr
        told = json.loads(made.stdout)
        assert told["lost"] == []
        again = run_cli(
            "restore", "--from", url, "--objects", new_url, "--journal", postgres.url, "--json"
        )
        assert again.returncode != 0
        assert "there already" in again.stderr
        with Agents(
            tmp_path / "child",
            postgres.url,
            new_url,
            environment=environment(s3.endpoint),
            settings=PATIENCE,
        ) as agents:
            agents.folder.mkdir()
            for _ in range(2):
                agents.add()
            agents.wait_live()
            assert consume(agents.bootstrap, 450) == last
            assert {value["cluster_id"] for value in status(agents)} == {told["cluster_id"]}
            produce(agents.bootstrap, 450, 600)
            longer = consume(agents.bootstrap, 600, is_new=lambda place: place not in last)
            assert {key: longer[key] for key in last} == last
            # Of who had come further in the parent than the restore, and who had not.
            assert "broker end offset is 150" in go_on_from(agents.bootstrap, 180)
            assert go_on_from(agents.bootstrap, 149) == "value 447"
            config = tmp_path / "cluster.toml"
            config.write_text(
                f'objects = "{new_url}"\njournal = "{postgres.url}"\ncluster_secret = "{SECRET}"\n'
            )
            verify("--config", str(config), records=600)
            assert agents.stop() == [0, 0]
            damage(s3, url)
            done = run_cli("verify", "--config", str(config), "--json")
            assert done.returncode == 1, done.stdout + done.stderr
            assert {found["kind"] for found in json.loads(done.stdout)["findings"]} == {"damaged"}
            damage(s3, url)

    # An embedded server, as of the moment: neither PostgreSQL nor another agent.
    data = tmp_path / "data"
    made = run_cli("restore", "--from", url, "--data", str(data), "--position", str(moment))
    assert made.returncode == 0, made.stderr
    verify("--data", str(data), records=300)
    server = ServerProcess(data, tmp_path / "data.log", environment=environment(s3.endpoint))
    server.start()
    try:
        assert consume(server.bootstrap, 300) == first
        produce(server.bootstrap, 300, 330)
        consume(server.bootstrap, 330, is_new=lambda place: place not in first)
        assert "broker end offset is 100" in go_on_from(server.bootstrap, 105)
        assert go_on_from(server.bootstrap, 99) == "value 297"
    finally:
        server.stop()
    verify("--data", str(data), records=330)
    # What it began with is in no entry of its own: a snapshot of it lies beside the database.
    (data / "metadata.sqlite").unlink()
    server.start()
    try:
        consume(server.bootstrap, 330, is_new=lambda place: place not in first)
    finally:
        server.kill()
    verify("--data", str(data), records=330)

    # A backup of it holds copies of what was inherited: what is made of it needs no parent.
    copied, again = tmp_path / "backup", tmp_path / "data-of-backup"
    assert run_cli("backup", "--data", str(data), "--to", str(copied)).returncode == 0
    assert run_cli("restore", "--from", str(copied), "--data", str(again)).returncode == 0

    # With copies a restore needs no parent either, and reads all of it first.
    own = tmp_path / "own"
    damage(s3, url)
    cut = run_cli(
        "restore", "--from", url, "--data", str(own), "--copy", *LOCAL, "--position", str(moment)
    )
    assert cut.returncode == 1
    assert "aren't whole" in cut.stderr
    damage(s3, url)
    # What it has copied by then is neither in the way of the next one, nor left over by it.
    assert (own / "objects" / "restore-in-progress.json").is_file()
    made = run_cli("restore", "--from", url, "--data", str(own), "--copy", *LOCAL, "--json")
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    assert (told["read"], told["copied"], told["lost"]) == (True, True, [])
    assert not (own / "objects" / "restore-in-progress.json").exists()

    damage(s3, url)
    assert run_cli("verify", "--data", str(data)).returncode == 1
    verify("--data", str(again), records=330)
    verify("--data", str(own), records=450)
    refused = run_cli("restore", "--from", url, "--data", str(tmp_path / "x"), "--engine", "local")
    assert refused.returncode == 1
    assert "aren't whole" in refused.stderr
    server = ServerProcess(own, tmp_path / "own.log")
    server.start()
    try:
        assert consume(server.bootstrap, 450) == last
    finally:
        server.stop()


def test_verify_through_an_agent_replays_the_archive_where_it_may_open_the_bucket(
    s3: S3Server, postgres_url: str, journal_name: str, tmp_path: Path
) -> None:
    bucket = s3.make_bucket()
    with Agents(
        tmp_path,
        postgres_url,
        f"s3://{bucket}/log",
        environment=environment(s3.endpoint),
        settings={
            **PATIENCE,
            "ARCHIVE_INTERVAL_MS": "200",
            "SNAPSHOT_ENTRIES": "5",
            "DEFAULT_PARTITIONS": str(PARTITIONS),
            "CLUSTER_NAME": journal_name,
        },
    ) as agents:
        agents.add()
        agents.wait_live()
        produce(agents.bootstrap, 0, 60)

        def has_snapshot() -> bool:
            keys = keys_in(s3, bucket, f"log/{SNAPSHOTS_PREFIX}")
            names = [parse_snapshot_key(key.removeprefix("log/")) for key in keys]
            return any(name is not None and name.position > 0 for name in names)

        eventually(has_snapshot, timeout_seconds=120)
        through = ("verify", "--url", agents.agents[0].http, *LOCAL, "--json")
        report = json.loads(run_cli(*through, "--access", "ambient").stdout)
        assert (report["ok"], report["records"]) == (True, 60)
        assert report["replayed_entries"] > 0
        assert "not_replayed" not in report
        report = json.loads(run_cli(*through).stdout)
        assert (report["ok"], report["records"]) == (True, 60)
        assert "--access ambient" in report["not_replayed"]
        assert "replayed_entries" not in report
