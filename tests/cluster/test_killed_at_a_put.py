"""An agent is killed between the put of a segment and the journal entry that names it.

Of durability `object` the put comes before the records are acknowledged, of `wal` long after.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.agents import PATIENCE, Agents, run_cli
from support.dying_server import LAUNCHER, dying
from support.enduring_load import PARTITIONS, TOPIC, EnduringLoad, read_all
from support.s3 import S3Server, environment
from support.waiting import eventually

DEATHS = [("after", 1), ("before", 1), ("after", 2)]
"""Of one agent, again and again: at which of its puts."""


@pytest.mark.parametrize("durability", ["object", "wal"])
def test_what_was_acknowledged_stays(
    s3: S3Server, postgres_url: str, journal_name: str, tmp_path: Path, durability: str
) -> None:
    objects = f"s3://{s3.make_bucket()}/cluster"
    settings = {**PATIENCE, "CLUSTER_NAME": journal_name, "SEGMENT_AGE_MS": "200"}
    with Agents(
        tmp_path, postgres_url, objects, environment=environment(s3.endpoint), settings=settings
    ) as agents:
        agents.add()
        mortal = agents.add().server
        agents.wait_live()
        admin = AdminClient({"bootstrap.servers": agents.bootstrap})
        topic = NewTopic(TOPIC, PARTITIONS, config={"penstock.durability": durability})
        for future in admin.create_topics([topic]).values():
            future.result(60)
        load = EnduringLoad(agents.bootstrap)
        load.send(2 * PARTITIONS)
        load.flush()
        assert mortal.stop() == 0
        launcher, variables = mortal.launcher, mortal.environment
        for when, number in DEATHS:
            mortal.launcher, mortal.environment = LAUNCHER, {**variables, **dying(when, number)}
            process = mortal.launch()

            def has_died() -> bool:
                load.send(PARTITIONS)
                return process.poll() is not None  # noqa: B023 - called in this turn alone

            eventually(has_died, bool, timeout_seconds=120)
            assert process.returncode == -signal.SIGKILL, mortal.tail()
            mortal.process = None
        mortal.launcher, mortal.environment = launcher, variables
        mortal.start()
        agents.wait_live()
        load.send(2 * PARTITIONS)
        load.flush()
        assert not load.failures
        assert read_all(agents.bootstrap, len(load.acked)) == load.acked
        assert agents.stop() == [0, 0]
        done = run_cli(
            *("verify", "--objects", objects, "--journal", postgres_url),
            *("--cluster-name", journal_name, "--json"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
