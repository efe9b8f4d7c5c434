"""A log that holds less than its table does: a restore to an earlier point, or so it seems."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.model.epochs import EPOCH_ORIGIN_MS
from penstock.model.errors import ConflictError
from penstock.objects import open_store
from penstock.pipeline.tables import job
from support.api_server import ApiServer, serve_in_thread
from support.backups import copy_to, restore_to
from support.tables import Lake, follow, produce_values

TOPIC = "flights"


@pytest.mark.slow
def test_a_log_that_has_gone_back_stops_the_table(lake: Lake, tmp_path: Path) -> None:
    now, earlier = tmp_path / "now", tmp_path / "earlier"
    with serve_in_thread(now) as api:
        api.create(TOPIC, 2)
        produce_values(api, TOPIC, [b"a", b"b"])
        first = follow(api, lake, TOPIC).snapshot_id
        topics = api.topics
    shutil.copytree(now, earlier)
    with serve_in_thread(now) as api:
        api.topics |= topics
        produce_values(api, TOPIC, [b"c", b"d", b"e"])
        assert follow(api, lake, TOPIC).rows == 3
    with serve_in_thread(earlier) as api:
        api.topics |= topics
        produce_values(api, TOPIC, [b"C"])
        with pytest.raises(ConflictError, match=r"up to offset 5, and its high watermark is 3"):
            follow(api, lake, TOPIC)
        (progress,) = api.client.tables(topics[TOPIC][0])
        assert '"status":"stopped"' in progress.state
        lake.table(TOPIC).manage_snapshots().rollback_to_snapshot(first).commit()
        assert follow(api, lake, TOPIC).rows == 1
    assert lake.rows(TOPIC, "value") == [(b"a",), (b"b",), (b"C",)]


@pytest.mark.slow
def test_a_restored_log_that_has_grown_past_the_table_stops_it(lake: Lake, tmp_path: Path) -> None:
    """Its own log, by then grown past, and another restore of the same backup, which has as many
    records at the same offsets."""
    now, backup = tmp_path / "now", open_store(tmp_path / "backup")
    with serve_in_thread(now) as api:
        api.create(TOPIC)
        produce_values(api, TOPIC, [b"a", b"b"])
        first = follow(api, lake, TOPIC).snapshot_id
        topics = api.topics
    copy_to(now, backup)
    with serve_in_thread(now) as api:
        api.topics |= topics
        produce_values(api, TOPIC, [b"c"])
        follow(api, lake, TOPIC)
    restores = {}
    for name, second in (("one", 1), ("other", 2)):
        restores[name] = tmp_path / name
        restore_to(restores[name], backup, now_ms=EPOCH_ORIGIN_MS + 1000 * second)
        with serve_in_thread(restores[name]) as api:
            api.topics |= topics
            produce_values(api, TOPIC, [f"{name} {n}".encode() for n in range(3)])
            with pytest.raises(
                ConflictError,
                match=r"up to offset 3, and leader epoch 0, .*, ends at 2 .*\(.*--restart\)",
            ):
                follow(api, lake, TOPIC)
            (progress,) = api.client.tables(topics[TOPIC][0])
            assert progress.offsets == [(0, 2)], "what this log never had is not noted in it"
            assert '"status":"stopped"' in progress.state
    lake.table(TOPIC).manage_snapshots().rollback_to_snapshot(first).commit()
    with serve_in_thread(restores["one"]) as api:
        api.topics |= topics
        assert follow(api, lake, TOPIC).rows == 3
    with serve_in_thread(restores["other"]) as api:
        api.topics |= topics
        with pytest.raises(ConflictError, match="no records of leader epoch 1"):
            follow(api, lake, TOPIC)
    assert lake.rows(TOPIC, "value") == [(b"a",), (b"b",), (b"one 0",), (b"one 1",), (b"one 2",)]


def test_a_driver_that_is_slow_does_not_take_another_one_s_rows_for_that(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    real = job.open_catalog
    faster: list[int] = []

    @contextmanager
    def open_catalog(settings: Any) -> Iterator[Any]:
        # The slow one has asked what the topic holds, and not yet what the table does.
        if not faster:
            faster.append(1)
            produce_values(api, topic, [b"b"])
            follow(api, lake, topic)
        with real(settings) as catalog:
            yield catalog

    monkeypatch.setattr(job, "open_catalog", open_catalog)
    assert follow(api, lake, topic).offsets == {0: 2}
    assert lake.rows(topic, "value") == [(b"a",), (b"b",)]
