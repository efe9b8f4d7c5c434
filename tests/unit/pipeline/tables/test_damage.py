"""Damaged files are named, and made again from the log where it has their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.damage import TableCheck, check_table
from penstock.pipeline.tables.kinds import live_files
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, new_record, produce, produce_values
from support.typed import avro, record, typed

pytestmark = pytest.mark.slow


def checked(
    api: ApiServer, lake: Lake, topic: str, *, rebuilds: bool = True, **changes: Any
) -> TableCheck:
    settings = lake.settings(topic, **changes)
    return check_table(api.client, LocalEngine(1), settings, rebuilds=rebuilds)


def paths(lake: Lake, topic: str) -> list[Path]:
    """The live files, by their offsets."""
    table = lake.table(topic)
    names = {field.name: field.field_id for field in table.schema().fields}
    field_id = names.get("offset", names.get("kafka_offset", 0))
    found = sorted(live_files(table), key=lambda file: (file.lower_bounds or {})[field_id])
    return [Path(file.file_path.removeprefix("file://")) for file in found]


def flip(path: Path) -> None:
    """Some bits of all pages, small as they are; the footer is whole."""
    body = bytearray(path.read_bytes())
    pages = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    for place in range(4, pages, 5):
        body[place] ^= 4
    path.write_bytes(body)


def in_files(api: ApiServer, lake: Lake, topic: str, count: int = 3) -> None:
    """Files of five records of each of two partitions; values are large enough to have pages."""
    for n in range(count):
        for partition in (0, 1):
            produce_values(api, topic, [b"%d" % n * 200] * 5, partition)
        follow(api, lake, topic)


def all_rows(lake: Lake, topic: str) -> list[tuple[Any, ...]]:
    return lake.rows(topic, "partition", "offset", "timestamp", "value", "key", "headers")


def test_a_sound_table_has_nothing_to_tell(api: ApiServer, lake: Lake, topic: str) -> None:
    in_files(api, lake, topic)
    check = checked(api, lake, topic)
    assert (check.files, check.rows) == (3, 30)
    assert (check.damaged, check.rebuilt, check.not_rebuilt) == ([], [], "")


@pytest.mark.parametrize("what", ["a bit", "all of it", "cut"])
def test_a_damaged_file_is_named_and_rebuilt_from_the_log(
    api: ApiServer, lake: Lake, topic: str, what: str
) -> None:
    in_files(api, lake, topic)
    before = all_rows(lake, topic)
    path = paths(lake, topic)[1]
    if what == "a bit":
        flip(path)
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    found = checked(api, lake, topic, rebuilds=False)
    (damage,) = found.damaged
    assert damage.url.endswith(path.name)
    assert found.rebuilt == []
    check = checked(api, lake, topic)
    assert [one.url for one in check.rebuilt] == [damage.url]
    assert check.damaged == []
    assert all_rows(lake, topic) == before
    assert checked(api, lake, topic).rebuilt == []
    in_files(api, lake, topic, 1)
    assert len(all_rows(lake, topic)) == 40, "the table goes on where it was"


def test_several_files_of_which_one_holds_what_lay_in_many(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """A joined file's bounds cover offsets that other files have."""
    in_files(api, lake, topic, 3)
    upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
    maintain_table(api.client, LocalEngine(1), lake.settings(topic), upkeep)
    in_files(api, lake, topic, 2)
    before = all_rows(lake, topic)
    for path in (paths(lake, topic)[0], paths(lake, topic)[2]):
        flip(path)
    # What the table has not come to yet stays its own.
    produce_values(api, topic, [b"x"])
    check = checked(api, lake, topic)
    assert len(check.rebuilt) == 2
    assert all_rows(lake, topic) == before


def test_rows_that_the_log_has_no_more_are_left_with_their_file(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    in_files(api, lake, topic)
    flip(paths(lake, topic)[0])
    api.trim(topic, 1, 2)
    check = checked(api, lake, topic)
    assert len(check.damaged) == 1
    assert "had 10 rows, and the log has 8 there" in check.not_rebuilt
    assert len([path for path in lake.files(topic) if "rebuilt-" in path]) == 0


def test_typed_rows_are_made_by_their_schemas_without_letters(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    one, two = record(("a", "string")), record(("a", "string"), ("b", ["null", "long"]))
    ids = [registry.register(f"{topic}-value", schema) for schema in (one, two)]
    values = [*avro(ids[0], one, {"a": "x" * 300}), b"bad", b"\0\0\0\7\7x"]
    produce_values(api, topic, values)
    typed(api, lake, topic, registry)
    produce_values(api, topic, avro(ids[1], two, {"a": "y" * 300, "b": 4}))
    typed(api, lake, topic, registry)
    columns = ("kafka_offset", "a", "b")
    before = lake.rows(topic, *columns)
    for path in paths(lake, topic):
        flip(path)
    check = checked(api, lake, topic, schema="registry", registry=registry.url)
    assert (len(check.rebuilt), check.not_rebuilt) == (2, "")
    assert lake.rows(topic, *columns) == before


def test_what_a_table_by_key_held_is_not_guessed(api: ApiServer, lake: Lake, topic: str) -> None:
    records = [new_record(b"%d" % n, b"v" * 300) for n in range(20)]
    produce(api, topic, 0, records)
    follow(api, lake, topic, mode="upsert", buckets=1)
    flip(Path(lake.files(topic)[0]))
    api.alter(topic, {"penstock.table.mode": "upsert"})
    check = checked(api, lake, topic)
    assert len(check.damaged) == 1
    assert "one row per key" in check.not_rebuilt


def test_rows_beyond_the_tables_offsets_are_damage(api: ApiServer, lake: Lake, topic: str) -> None:
    in_files(api, lake, topic, 1)
    table = lake.table(topic)
    more = table.scan().to_arrow().slice(0, 1)
    column = more.schema.get_field_index("offset")
    beyond = pa.chunked_array([[99]], pa.int64())
    table.append(more.set_column(column, more.schema.field(column), beyond))
    check = checked(api, lake, topic, rebuilds=False)
    assert [one.detail for one in check.damaged] == [
        "it has offset 99 of partition 0, and the table's offsets say that it holds those below 5"
    ]


def test_a_lost_manifest_is_named(api: ApiServer, lake: Lake, topic: str) -> None:
    in_files(api, lake, topic, 1)
    table = lake.table(topic)
    (manifest,) = table.current_snapshot().manifests(table.io)
    Path(manifest.manifest_path.removeprefix("file://")).unlink()
    with pytest.raises(CorruptDataError, match="a manifest of its snapshot can't be read"):
        checked(api, lake, topic)
    with pytest.raises(NotFoundError, match="no such topic"):
        checked(api, lake, "nowhere")
