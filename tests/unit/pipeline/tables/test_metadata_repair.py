"""A table whose metadata file is lost or damaged says so, and goes on from the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.tables.metadata_repair import repair_metadata
from support.api_server import ApiServer
from support.tables import Lake, follow, produce_values


def metadata_file(lake: Lake, topic: str) -> Path:
    return Path(lake.table(topic).metadata_location.removeprefix("file://"))


def values(lake: Lake, topic: str) -> list[bytes]:
    return [value for (value,) in lake.rows(topic, "value")]


def fill(api: ApiServer, lake: Lake, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        produce_values(api, topic, [value])
        follow(api, lake, topic)


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b'{"format-version": 2'])
def test_lost_or_damaged_metadata_is_named_and_repaired(
    api: ApiServer, lake: Lake, topic: str, content: bytes | None
) -> None:
    fill(api, lake, topic)
    lost = metadata_file(lake, topic)
    before = json.loads(lost.read_text())["metadata-log"][-1]["metadata-file"]
    if content is None:
        lost.unlink()
    else:
        lost.write_bytes(content)
    with pytest.raises(CorruptDataError, match="--repair") as caught:
        follow(api, lake, topic)
    assert lost.name in caught.value.detail
    assert before in caught.value.detail
    # It is stopped, and not only behind.
    (progress,) = api.client.tables(api.topics[topic][0])
    assert json.loads(progress.state)["status"] == "stopped"
    found = repair_metadata(lake.catalog(), ("penstock", topic))
    assert found == (f"file://{lost}", before)
    assert follow(api, lake, topic).rows == 1
    assert values(lake, topic) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_where_the_one_before_is_lost_too_the_newest_of_the_folder_is_taken(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic)
    files = sorted(metadata_file(lake, topic).parent.glob("*.metadata.json"))
    for lost in files[-2:]:
        lost.write_bytes(b"")
    assert repair_metadata(lake.catalog(), ("penstock", topic))[1].endswith(files[-3].name)
    follow(api, lake, topic)
    assert values(lake, topic) == [b"a", b"b", b"c"]


def test_nothing_is_done_where_nothing_is_wrong_or_nothing_is_left(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic)
    before, now = repair_metadata(lake.catalog(), ("penstock", topic))
    assert before == now
    with pytest.raises(NotFoundError, match="no such table"):
        repair_metadata(lake.catalog(), ("penstock", "other"))
    for file in metadata_file(lake, topic).parent.glob("*.metadata.json"):
        file.unlink()
    with pytest.raises(NotFoundError, match="can be read"):
        repair_metadata(lake.catalog(), ("penstock", topic))
