"""A table in a local directory holds what its offsets say also after a power loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.catalog import open_catalog
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import ApiServer
from support.power_cut import PowerCut
from support.tables import (
    KilledError,
    Lake,
    follow,
    new_record,
    produce,
    records_of,
    spoil,
)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PowerCut]:
    """One that strikes while the catalog commits for the last time."""
    cut = PowerCut(monkeypatch, tmp_path)

    def strike(_: Any) -> None:
        cut.strikes_here()

    event.listen(Engine, "commit", strike)
    yield cut
    event.remove(Engine, "commit", strike)


def is_catalog(path: Path) -> bool:
    return path.name.startswith("catalog.db")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_a_commit_names_outlives_a_power_loss(
    api: ApiServer, lake: Lake, topic: str, cut: PowerCut, mode: str
) -> None:
    day_ms = 86_400_000
    for number in range(3):
        produce(
            api,
            topic,
            number % 2,
            # In new folders each time: a row a day, or keys in further buckets.
            [new_record(b"%d" % n, b"v", timestamp_ms=n * day_ms) for n in range(number + 1)],
        )
        follow(api, lake, topic, mode=mode)
    before = lake.rows(topic, "partition", "offset", "key", "value")
    cut.happen(is_catalog)
    assert lake.rows(topic, "partition", "offset", "key", "value") == before
    assert len(before) == (6 if mode == "append" else 3)


@pytest.mark.slow
def test_joined_files_outlive_a_power_loss(
    api: ApiServer, lake: Lake, topic: str, cut: PowerCut
) -> None:
    for number in range(4):
        produce(api, topic, 0, [new_record(None, b"%d" % number)])
        follow(api, lake, topic)
    summary = maintain_table(
        api.client, LocalEngine(1), lake.settings(topic), Maintenance(files_min=2)
    )
    assert (summary.files_joined, summary.files_written) == (4, 1)
    cut.happen(is_catalog)
    assert lake.rows(topic, "value") == [(b"%d" % number,) for number in range(4)]


@pytest.mark.slow
def test_staged_dead_letters_outlive_a_power_loss(
    api: ApiServer, lake: Lake, topic: str, cut: PowerCut
) -> None:
    produce(api, topic, 0, [new_record(None, b"v", timestamp_ms=2**62)])

    def end() -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        spoil(patch.setattr, "before_letters", end)
        with pytest.raises(KilledError):
            follow(api, lake, topic)
    cut.happen(is_catalog)
    assert follow(api, lake, topic).rows == 0
    assert [record.value for record in records_of(api, f"{topic}.dlq")] == [b"v"]


def test_somebody_elses_file_access_is_left_alone(lake: Lake) -> None:
    own = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    settings = lake.catalog_settings
    with open_catalog(settings) as catalog:
        assert "Durable" in catalog.properties["py-io-impl"]
    chosen = type(settings)(warehouse=settings.warehouse, name=settings.name, properties=own)
    with open_catalog(chosen) as catalog:
        assert catalog.properties["py-io-impl"] == own["py-io-impl"]
