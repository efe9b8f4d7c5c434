"""Drivers that clean a topic by key and are killed at any step have cleaned each partition whole,
as Kafka's cleaner would, or not at all; consumers notice nothing."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack, closing

import pytest

from penstock.pipeline.client import ClientOptions, PipelineClient
from support.cleaned_topic import CleanedTopic, Follower
from support.compacted_log import drive, stored_segments
from support.compaction_driver import STEPS
from support.server import ServerProcess, run_penstock
from support.waiting import eventually


@pytest.mark.parametrize("delete_retention_ms", [0, 86_400_000])
def test_killed_drivers_clean_a_partition_whole_or_not(
    server: ServerProcess, delete_retention_ms: int
) -> None:
    url = f"http://{server.http}"
    with PipelineClient(ClientOptions(urls=(url,))) as client, ExitStack() as stack:
        topic = CleanedTopic(server.bootstrap, client, "cleaned", delete_retention_ms)
        topic.create()
        topic.write(3)
        followers = [
            stack.enter_context(closing(Follower(topic, number)))
            for number in range(topic.partitions)
        ]
        with topic.readers() as faults:
            for step in STEPS:
                before = {n: topic.batches(n) for n in range(topic.partitions)}
                cleaned = topic.cleaned_models()
                killed = drive(url, step=step)
                assert killed.returncode == -signal.SIGKILL, (step, killed.stderr)
                changed = [n for n, batches in before.items() if topic.batches(n) != batches]
                assert len(changed) == (1 if step == "committed" else 0), step
                for partition in changed:
                    topic.check_as(partition, cleaned[partition])
                for follower in followers:
                    follower.read_to(follower.position)
                # Also over what is clean already the next one is killed.
                topic.write(1)
            cleaned = topic.cleaned_models()
            finished = drive(url)
        assert not faults
        assert finished.returncode == 0, finished.stderr
        summary = json.loads(finished.stdout)
        assert (summary["partitions"], summary["refused"], summary["failures"]) == (2, [], [])
        for partition, model in cleaned.items():
            topic.check_as(partition, model)
        topic.check_from_everywhere()
        for number, follower in enumerate(followers):
            follower.read_to(topic.retained(number)[-1].offset)
            follower.check()
        # What the killed have put is condemned once their leases are over, and deleted.
        eventually(lambda: stored_segments(server), lambda found: found == topic.named_objects())
    assert server.stop() == 0
    verified = run_penstock("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "OK: no problems found" in verified.stdout
