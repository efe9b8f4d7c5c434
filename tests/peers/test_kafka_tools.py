"""Kafka's own administrator's tools of 4.3.1 find what they look for, and end without an error."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers.line_clients import kafka_java
from support.raw_fetch import fetch_from
from support.server import ServerProcess

SECONDS_MAX = 300
PACKAGE = "org.apache.kafka.tools"
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tools")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    yield server
    status = server.stop()
    assert status == 0, server.tail()


@pytest.fixture(scope="module")
def tool(server: ServerProcess) -> Tool:
    """Runs a tool against the server, with arguments before and after its address; what it says."""
    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)

    def run(name: str, *arguments: str, after: tuple[str, ...] = ()) -> str:
        where = ("--bootstrap-server", server.bootstrap)
        program_class = name if name.startswith("kafka.") else f"{PACKAGE}.{name}"
        command = [*program.command[:-1], program_class, *arguments, *where, *after]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("TopicCommand", "--create", "--topic", "t", "--partitions", "3")
    return run


@pytest.fixture(scope="module")
def broker(tool: Tool) -> int:
    """The id of the only broker."""
    said = tool("MetadataQuorumCommand", after=("describe", "--status"))
    (line,) = (line for line in said.splitlines() if line.startswith("LeaderId"))
    return int(line.split()[1])


def test_no_leader_is_elected(tool: Tool) -> None:
    election = ("--election-type", "preferred")
    assert "error" not in tool("LeaderElectionCommand", *election, "--all-topic-partitions").lower()
    said = tool("LeaderElectionCommand", *election, "--topic", "t", "--partition", "0")
    assert "Valid replica already elected" in said


def test_a_reassignment_ends_at_once(tool: Tool, broker: int, tmp_path: Path) -> None:
    partition = {"topic": "t", "partition": 0, "replicas": [broker], "log_dirs": ["any"]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    plan = ("--reassignment-json-file", str(file))
    command = "reassign.ReassignPartitionsCommand"
    assert "Successfully started" in tool(command, *plan, "--execute")
    assert "is completed" in tool(command, *plan, "--verify")
    assert "No partition reassignments found" in tool(command, "--list")


def test_features_are_finalized(tool: Tool) -> None:
    said = tool("FeatureCommand", after=("describe",))
    levels = {
        line.split()[1]: line.split()[-3] for line in said.splitlines() if "Finalized" in line
    }
    assert levels == {
        "group.version": "1",
        "metadata.version": "4.3-IV0",
        "share.version": "1",
        "streams.version": "1",
        "transaction.version": "2",
    }


def test_log_dirs_and_the_cluster_are_described(
    tool: Tool, broker: int, server: ServerProcess
) -> None:
    said = tool("LogDirsCommand", "--describe", "--topic-list", "t").splitlines()[-1]
    (found,) = json.loads(said)["brokers"]
    assert found["broker"] == broker
    assert len(found["logDirs"][0]["partitions"]) == 3
    assert "Cluster ID: " in tool("ClusterTool", "cluster-id")
    assert fetch_from(server.bootstrap, "t", 0, 0).error == "NONE"


def test_quotas_are_set_and_described(tool: Tool) -> None:
    configs = "kafka.admin.ConfigCommand"
    bob = ("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients")
    rates = ("--alter", "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    tool(configs, *rates, *bob, "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
    tool(configs, "--alter", "--add-config", "connection_creation_rate=5", *address)
    said = tool(configs, "--describe", *bob)
    assert "producer_byte_rate=1024.0" in said
    assert "request_percentage=12.5" in said
    assert "connection_creation_rate=5.0" in tool(configs, "--describe", *address)
    gone = ("--alter", "--delete-config", "producer_byte_rate,request_percentage")
    tool(configs, *gone, *bob, "--entity-default")
    tool(configs, "--alter", "--delete-config", "connection_creation_rate", *address)
    assert "producer_byte_rate" not in tool(configs, "--describe", *bob)
    assert "connection_creation_rate" not in tool(configs, "--describe", *address)
