"""The view: what follows the changes equals what is loaded anew."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.ids import TopicKey, partition_key
from penstock.state.commands import (
    AlterClusterConfigs,
    AlterGroupConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    DeleteTopic,
)
from penstock.state.leader_epochs import FIRST_EPOCH, begin_leader_epoch
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from unit.state.orders import KEY, TOPIC_ID, batch, commit, open_order, store, topic


def shown(view: StateView) -> object:
    return (
        list(view.topics()),
        view.cluster_configs,
        view.group_configs,
        view.leader_epoch,
        [
            (key, head.log_start, head.next_offset, view.epoch_starts(key))
            for found in view.topics()
            for number in range(found.partitions)
            if (head := view.head(key := partition_key(found.topic_key, number)))
        ],
    )


@pytest.mark.parametrize("restores", [0, 2])
def test_following_equals_loading(tmp_path: Path, restores: int) -> None:
    open_order(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection, connection:
        for _ in range(restores):
            begin_leader_epoch(connection)
    order = open_order(tmp_path)
    queries = Queries(tmp_path / "metadata.sqlite")
    view = StateView.load(queries)
    other = b"other-topic-id-0"
    for commands in (
        [topic()],
        [commit(batch(3)), topic("other", other)],
        [CreatePartitions(topic_id=TOPIC_ID, partitions=5)],
        [AlterTopicConfigs(topic_id=other, set={"a": "1"})],
        [AlterClusterConfigs(set={"log.retention.ms": "5"})],
        [AlterGroupConfigs(group_id="g", set={"a": "1"})],
        [AlterGroupConfigs(group_id="h", set={"a": "1"})],
        [AlterGroupConfigs(group_id="g", unset=["a"])],
        [commit(batch(2), position=100), DeleteTopic(topic_id=TOPIC_ID)],
    ):
        view.apply(order.append(commands).outcome.changes)
        assert shown(view) == shown(StateView.load(queries))
    assert [found.name for found in view.topics()] == ["other"]
    assert view.head(KEY) is None
    assert view.epoch_starts(KEY) == FIRST_EPOCH
    queries.close()
    order.close()


def test_a_topic_is_found_by_name_id_and_key_until_it_is_deleted(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    view = StateView()
    view.apply(order.append([topic()]).outcome.changes)
    found = view.topic("t")
    assert found is not None
    assert found is view.topic_by_id(TOPIC_ID) is view.topic_by_key(TopicKey(1))
    view.apply(order.append([DeleteTopic(topic_id=TOPIC_ID)]).outcome.changes)
    assert view.topic("t") is view.topic_by_id(TOPIC_ID) is view.topic_by_key(TopicKey(1)) is None
    order.close()


def test_the_generation_grows_with_topics_and_configs_and_not_with_records(tmp_path: Path) -> None:
    order = open_order(tmp_path)
    queries = Queries(tmp_path / "metadata.sqlite")
    view = StateView()
    view.apply(order.append([topic()]).outcome.changes)
    generation = view.generation
    view.apply(order.append([commit(batch(3))]).outcome.changes)
    view.apply(order.append([store(queries.wal_runs())]).outcome.changes)
    assert view.generation == generation
    view.apply(order.append([AlterClusterConfigs(set={"a": "b"})]).outcome.changes)
    assert view.generation == generation + 1
    queries.close()
    order.close()
