"""A topic of a cluster is cleaned by key: raw objects in a real S3 server, read and put by
presigned URLs, and consumers at several agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.client import ClientOptions, PipelineClient
from support.agents import PATIENCE, SECRET, Agents, run_cli
from support.cleaned_topic import CleanedTopic, check_a_topic
from support.s3 import S3Server, environment

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


@pytest.mark.parametrize(
    ("durability", "delete_retention_ms"), [("object", 0), ("wal", 86_400_000)]
)
def test_a_cleaned_topic_is_as_in_the_model(
    cluster: Agents, durability: str, delete_retention_ms: int
) -> None:
    urls = tuple(f"http://{agent.http}" for agent in cluster.agents)
    with PipelineClient(ClientOptions(urls=urls)) as client:
        assert client.info().objects == "presigned"
        topic = CleanedTopic(cluster.bootstrap, client, "cleaned", delete_retention_ms)
        topic.create(**{"penstock.durability": durability})
        check_a_topic(topic)
    verified = run_cli("verify", "--url", urls[0], "--engine", "local", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
