"""Groups of real client libraries while their coordinator is drained, killed and stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peers.line_clients import franz_go, kafka_java, line_programs
from support.agents import Agent, Agents, run_cli
from support.line_client import LineProgram

SCRIPT = str(Path(__file__).parents[1] / "support" / "committing_member.py")
TOPIC = "flights"
LIBRARIES = ("confluent", "aiokafka", "python")
PARTITIONS = 3
PROGRESS_SECONDS_MAX = 40.0
Positions = dict[int, int]


class Member:
    """A consumer of a group, in a process of its own, that commits all that it has read."""

    def __init__(self, library: str, group_id: str, bootstrap: str) -> None:
        self.library = library
        self.group_id = group_id
        self.committed: Positions = {}
        """By partition, as the client was told."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", SCRIPT, library, group_id, bootstrap, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name=library)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """It ended by itself."""
        return self.process.poll() is not None

    def end(self) -> int:
        """Let it leave its group; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for partition, position in json.loads(line).items():
                self.committed[int(partition)] = position


class Writer:
    """Writes a record every 50 ms, round the partitions, and knows where the ends are."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self.ends: Positions = {}
        self._ending = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(0.05):
            self._producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._note
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(60) == 0

    def _note(self, error: Any, message: Any) -> None:
        if error is None:
            self.ends[message.partition()] = message.offset() + 1

    def end(self) -> None:
        self._ending.set()
        self._thread.join(90)


def coordinator(agents: Agents, group_id: str) -> Agent:
    """As any running agent says."""
    from penstock.cli.client.connection import Connection
    from penstock.config.addresses import parse_address
    from penstock.kafka.schema import build

    def make(types: Any) -> Any:
        return build(types.FindCoordinatorRequest, key=group_id, key_type=0)

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for agent in agents.agents:
            if agent.paused or not agent.server.running():
                continue
            connection = Connection(parse_address(agent.address, setting="agent"), timeout_s=5)
            answer: Any = connection.request("find_coordinator", make)
            connection.close()
            place = getattr(answer, "coordinators", (answer,))[0]
            if not place.error_code.value:
                return next(one for one in agents.agents if one.address.endswith(f":{place.port}"))
        time.sleep(0.1)
    raise AssertionError(f"nobody coordinates {group_id}")


def wait_coordinator(agents: Agents, groups: list[str], is_right: Callable[[Agent], bool]) -> None:
    """Until the groups have moved to, or from, an agent."""
    deadline = time.monotonic() + 30
    while not all(is_right(coordinator(agents, group_id)) for group_id in groups):
        assert time.monotonic() < deadline, "groups have not moved"
        time.sleep(0.1)


def settled_groups(agents: Agents) -> dict[str, list[str]]:
    """Names of groups by their coordinator's address, once shards move no more."""
    deadline = time.monotonic() + 40
    before: dict[str, list[str]] = {}
    while True:
        found: dict[str, list[str]] = {}
        for number in range(30):
            address = coordinator(agents, f"g{number}").address
            found.setdefault(address, []).append(f"g{number}")
        if found == before and len(found) == len(agents.agents):
            return found
        assert time.monotonic() < deadline, found
        before = found
        time.sleep(2)


class Committer:
    """Commits for a group without members, always to one agent, whoever coordinates."""

    def __init__(self, agent: Agent, group_id: str) -> None:
        from penstock.cli.client.connection import Connection
        from penstock.config.addresses import parse_address

        self._group_id = group_id
        self._connection = Connection(parse_address(agent.address, setting="agent"), timeout_s=30)
        self._late: list[str] = []
        self._thread: threading.Thread | None = None

    def commit(self, offset: int) -> str:
        """The name of the error, "NONE", or that of what became of the connection."""
        from penstock.kafka.schema import build
        from penstock.model.errors import PenstockError

        def make(types: Any) -> Any:
            partition = build(
                types.OffsetCommitRequestPartition,
                partition_index=0,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            topic = build(types.OffsetCommitRequestTopic, name=TOPIC, partitions=(partition,))
            return build(
                types.OffsetCommitRequest,
                group_id=self._group_id,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                retention_time_ms=-1,
                topics=(topic,),
            )

        try:
            answer = self._connection.request("offset_commit", make)
        except PenstockError as error:
            return type(error).__name__
        return answer.topics[0].partitions[0].error_code.name.upper()

    def begin(self, offset: int) -> None:
        """Send a commit to an agent that is stopped: it finds it when it wakes."""
        self._thread = threading.Thread(target=lambda: self._late.append(self.commit(offset)))
        self._thread.start()

    def end(self) -> str:
        """What became of it."""
        assert self._thread is not None
        self._thread.join()
        self.close()
        return self._late[0]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, journal_name: str) -> Iterator[Agents]:
    with Agents(
        tmp_path,
        journal=postgres_url,
        objects=f"file://{tmp_path}/bucket",
        settings={"CLUSTER_NAME": journal_name},
    ) as agents:
        for _ in range(3):
            agents.add()
        agents.wait_live()
        yield agents


def wait_progress(writer: Writer, members: list[Member]) -> float:
    """Until everybody has committed what was written before; for how long that took."""
    wanted = dict(writer.ends)
    started = time.monotonic()
    while True:
        late = [
            member.library
            for member in members
            if any(member.committed.get(partition, 0) < end for partition, end in wanted.items())
        ]
        if not late:
            return time.monotonic() - started
        assert not [member.library for member in members if member.failed]
        assert time.monotonic() - started < PROGRESS_SECONDS_MAX, late
        time.sleep(0.05)


def committed_by_now(bootstrap: str, group_id: str) -> Positions:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    found = consumer.committed(
        [TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=30
    )
    consumer.close()
    return {one.partition: one.offset for one in found}


@pytest.mark.parametrize("program", [franz_go, kafka_java])
def test_a_further_client_library_takes_part(program: Callable[[], LineProgram | str]) -> None:
    """Below are fewer libraries without it, which is no failure but is to be said."""
    found = program()
    if isinstance(found, str):
        pytest.skip(f"groups were moved without one of the client libraries: {found}")


def test_groups_of_real_clients_go_on_wherever_they_are_coordinated(cluster: Agents) -> None:
    made = run_cli(
        "topic",
        "create",
        TOPIC,
        "--partitions",
        str(PARTITIONS),
        "--server",
        cluster.agents[0].address,
    )
    assert made.returncode == 0, made.stderr
    # One agent coordinates all of them, so that each disturbance is everybody's.
    by_agent = settled_groups(cluster)
    victim = cluster.agents[0]
    programs, _ = line_programs(java=True)
    libraries = (*LIBRARIES, *(program.library for program in programs))
    groups = by_agent[victim.address][: len(libraries)]
    unread = by_agent[victim.address][len(libraries) :][:2]
    assert unread, by_agent
    writer = Writer(cluster.bootstrap)
    members = [
        Member(library, group_id, cluster.bootstrap)
        for library, group_id in zip(libraries, groups, strict=True)
    ]
    took: dict[str, float] = {}
    try:
        time.sleep(5)
        took["begin"] = wait_progress(writer, members)

        def disturbed(what: str) -> None:
            wait_coordinator(cluster, groups, lambda agent: agent is not victim)
            time.sleep(2)
            took[what] = wait_progress(writer, members)

        http = ("--http", victim.http)
        node = node_of(run_cli("agent", "list", *http).stdout, victim.address)
        drained = run_cli("agent", "drain", node, *http)
        assert drained.returncode == 0, drained.stderr
        disturbed("drained")
        back = run_cli("agent", "drain", "--undo", node, *http)
        assert back.returncode == 0, back.stderr
        wait_coordinator(cluster, groups, lambda agent: agent is victim)

        victim.server.kill()
        disturbed("killed")
        victim.server.start()
        wait_coordinator(cluster, groups, lambda agent: agent is victim)

        committers = [Committer(victim, group_id) for group_id in unread]
        assert [one.commit(5) for one in committers] == ["NONE"] * len(unread)
        victim.pause()
        for one in committers:
            one.begin(1)
        disturbed("stopped")
        wait_coordinator(cluster, unread, lambda agent: agent is not victim)
        moved = [Committer(coordinator(cluster, group_id), group_id) for group_id in unread]
        assert [one.commit(9) for one in moved] == ["NONE"] * len(unread)
        for one in moved:
            one.close()
        victim.resume()
        refused = [one.end() for one in committers]
        took["woken"] = wait_progress(writer, members)
    finally:
        writer.end()
        statuses = [member.end() for member in members]
    print(took, refused)
    # It took itself for the coordinator when it found these.
    assert "NONE" not in refused
    for group_id in unread:
        assert committed_by_now(cluster.agents[1].address, group_id)[0] == 9
    assert statuses == [0] * len(libraries)
    for member in members:
        stored = committed_by_now(cluster.agents[1].address, member.group_id)
        assert all(stored[p] >= position for p, position in member.committed.items())


def node_of(listing: str, address: str) -> str:
    """The id of the agent at an address, of `penstock agent list`."""
    return next(line.split()[0] for line in listing.splitlines() if address in line)
