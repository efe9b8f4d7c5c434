"""Compaction of a cluster: raw objects in a real S3 server, read and put by presigned URLs, with
several agents at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import compact
from penstock.pipeline.engine import LocalEngine
from support.agents import PATIENCE, SECRET, Agents, run_cli
from support.compacted_log import CompactedLog
from support.s3 import S3Server, environment
from support.s3_proxy import Rule, S3ProxyProcess

SETTINGS = {"SEGMENT_AGE_MS": "100", "FLUSH_INTERVAL_MS": "20"}


@pytest.fixture
def cluster(
    tmp_path: Path,
    postgres_url: str,
    journal_name: str,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Agents]:
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    with Agents(
        tmp_path,
        postgres_url,
        f"s3://{s3.make_bucket()}/some/prefix",
        environment=environment(s3.endpoint),
        settings={"CLUSTER_NAME": journal_name, **PATIENCE, **SETTINGS},
    ) as agents:
        agents.add()
        agents.add()
        agents.wait_live()
        yield agents


@pytest.mark.parametrize("durability", ["object", "wal"])
def test_consumers_notice_nothing(cluster: Agents, durability: str) -> None:
    urls = tuple(f"http://{agent.http}" for agent in cluster.agents)
    with PipelineClient(ClientOptions(urls=urls)) as client:
        assert client.info().objects == "presigned"
        log = CompactedLog(cluster.bootstrap, client, topic=f"t-{durability}")
        log.create(**{"penstock.durability": durability})
        log.write(5)
        with log.readers() as faults:
            summary = compact(client, LocalEngine(2), CompactionSettings())
            assert not summary.refused
            log.write(4)
            compact(client, LocalEngine(2), CompactionSettings())
        assert not faults
        assert max(log.run_counts().values()) <= 2
        log.check_read()
        log.check_read_from_everywhere()


def test_a_killed_agent_stops_no_job(cluster: Agents) -> None:
    """The driver and the items go on with the other agent."""
    urls = tuple(f"http://{agent.http}" for agent in cluster.agents)
    with PipelineClient(ClientOptions(urls=urls, objects="agent")) as client:
        log = CompactedLog(cluster.bootstrap, client)
        log.create(**{"penstock.durability": "object"})
        log.write(5)

        class Killing:
            name = "local"
            parallelism = 1

            def run(self, task, items, *, attempts=3):
                for index, outcome in LocalEngine(1).run(task, items, attempts=attempts):
                    if cluster.agents[0].server.running():
                        cluster.agents[0].server.kill()
                    yield index, outcome

        summary = compact(client, Killing(), CompactionSettings(item_partitions_max=1))
        assert (summary.partitions, summary.refused, summary.failures) == (3, [], [])
        assert set(log.run_counts().values()) == {1}
        log.bootstrap = cluster.agents[1].address
        log.check_read()


def test_a_faulty_store_costs_time_alone(
    tmp_path: Path,
    postgres_url: str,
    journal_name: str,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third of all requests of agents and of items goes wrong, also after it was carried out."""
    monkeypatch.setenv("PENSTOCK_CLUSTER_SECRET", SECRET)
    objects = f"s3://{s3.make_bucket()}/prefix"
    with (
        S3ProxyProcess(upstream=s3.endpoint, log=tmp_path / "proxy.log", seed=3) as proxy,
        Agents(
            tmp_path,
            postgres_url,
            objects,
            environment=environment(proxy.endpoint),
            settings={"CLUSTER_NAME": journal_name, **PATIENCE, **SETTINGS},
        ) as agents,
    ):
        agents.add()
        agents.wait_live()
        urls = (f"http://{agents.agents[0].http}",)
        with PipelineClient(ClientOptions(urls=urls)) as client:
            log = CompactedLog(agents.bootstrap, client)
            log.create()
            log.write(6)
            proxy.clear_counts()
            proxy.set_rules(
                *(
                    Rule(fault=fault, percent=7)
                    for fault in ("slow_down", "error", "reset", "lost_reply")
                ),
                Rule(fault="cut_body", operations=["get"], percent=15),
            )
            summary = compact(client, LocalEngine(2), CompactionSettings(item_partitions_max=1))
            faults = proxy.counts()["faults"]
            proxy.set_rules()
            # Of about 30 requests: that all of them go well happens twice in 100,000 runs.
            assert faults
            assert (summary.partitions, summary.refused, summary.failures) == (3, [], [])
            assert set(log.run_counts().values()) == {1}
            log.check_read_from_everywhere()
        assert agents.stop() == [0]
        done = run_cli(
            "verify",
            f"--objects={objects}",
            f"--journal={postgres_url}",
            f"--cluster-name={journal_name}",
        )
        assert done.returncode == 0, done.stdout + done.stderr
