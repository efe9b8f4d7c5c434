"""Joining on a busy table: commits come in between, files change or are damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from penstock.model.errors import CorruptDataError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.files import TableFiles, files_options
from penstock.pipeline.tables.join import join_files
from penstock.pipeline.tables.kinds import live_files, target_of
from penstock.pipeline.tables.maintenance import Maintenance, MaintenanceSummary, maintain_table
from penstock.pipeline.tables.parquet import read_data_file
from support.api_server import ApiServer
from support.tables import Lake, follow, produce_values


class BusyEngine(LocalEngine):
    """Something happens to the table each time its small files have been copied."""

    def __init__(self, meanwhile: list[Callable[[], object]]) -> None:
        super().__init__(2)
        self._meanwhile = meanwhile

    def run(
        self, task: Callable[[Any], Any], items: Iterable[Any], *, attempts: int = 3
    ) -> Generator[tuple[int, Any], None, None]:
        yield from super().run(task, items, attempts=attempts)
        if task is join_files and self._meanwhile:
            self._meanwhile.pop(0)()


def maintain(
    api: ApiServer, lake: Lake, topic: str, *meanwhile: Callable[[], object], **changes: Any
) -> MaintenanceSummary:
    return maintain_table(
        api.client,
        BusyEngine(list(meanwhile)),
        lake.settings(topic, **changes),
        Maintenance(),
    )


def fill(api: ApiServer, lake: Lake, topic: str, first: int, count: int, size: int = 1) -> None:
    for number in range(first, first + count):
        produce_values(api, topic, [b"%d" % number * size])
        follow(api, lake, topic)


def values(lake: Lake, topic: str) -> list[bytes]:
    return [value for (value,) in lake.rows(topic, "value")]


def live_count(lake: Lake, topic: str) -> int:
    return len(list(live_files(lake.table(topic))))


@pytest.mark.slow
def test_a_join_is_committed_on_top_of_what_came_meanwhile(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """Of five joins of a busy table none succeeded, and each left its copies."""
    fill(api, lake, topic, 0, 5)
    done = maintain(api, lake, topic, lambda: fill(api, lake, topic, 5, 1))
    assert (done.files_joined, done.files_written, done.joins_given_up) == (5, 1, 0)
    assert live_count(lake, topic) == 2
    assert values(lake, topic) == [b"%d" % number for number in range(6)]
    # The offsets of what came meanwhile, and not those from before.
    assert follow(api, lake, topic).rows == 0


@pytest.mark.slow
def test_rows_that_went_meanwhile_do_not_come_back(
    api: ApiServer, lake: Lake, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(api, lake, topic, 0, 6)
    before = set(lake.files(topic))
    gone = "partition == 0 and offset == 2"
    done = maintain(api, lake, topic, lambda: lake.table(topic).delete(gone))
    assert (done.files_joined, done.files_written, done.joins_given_up) == (5, 1, 1)
    assert values(lake, topic) == [b"%d" % number for number in (0, 1, 3, 4, 5)]
    assert "were changed while they were joined" in caplog.text
    # What was given up left no copies.
    assert len(set(lake.files(topic)) - before) == 1


@pytest.mark.slow
def test_what_changes_each_time_is_left_for_the_next_maintenance(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic, 0, 9)
    table = lake.table
    done = maintain(
        api,
        lake,
        topic,
        *(
            lambda number=number: table(topic).delete(f"partition == 0 and offset == {number}")
            for number in range(3)
        ),
    )
    assert (done.files_joined, done.joins_given_up) == (0, 3)
    assert maintain(api, lake, topic).files_joined == 6
    assert values(lake, topic) == [b"%d" % number for number in range(3, 9)]


@pytest.mark.slow
def test_many_small_files_are_the_work_of_several_tasks(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic, 0, 9)
    size = max(file.file_size_in_bytes for file in live_files(lake.table(topic)))
    done = maintain(api, lake, topic, target_file_bytes=2 * size + 1)
    assert done.files_joined == 9
    assert 2 <= done.files_written <= 4
    assert values(lake, topic) == [b"%d" % number for number in range(9)]


def local_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


@pytest.mark.slow
def test_a_flipped_bit_is_an_error_that_names_the_file(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    """Without checksums of pages 20 of 40 flipped bits gave wrong rows and no error."""
    produce_values(api, topic, [bytes([number % 251]) * 200 for number in range(500)])
    follow(api, lake, topic)
    table = lake.table(topic)
    (file,) = live_files(table)
    path = local_path(file.file_path)
    whole = path.read_bytes()
    files, target = TableFiles(files_options(table.io.properties)), target_of(table, 1 << 20)
    wanted = [rows.to_pylist() for rows in read_data_file(files, file.file_path, target)]
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    chance = random.Random(1)
    caught = 0
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[chance.randrange(4, footer)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = [
                rows.to_pylist()
                for rows in read_data_file(
                    files, file.file_path, target, row_count=file.record_count
                )
            ]
        except CorruptDataError as error:
            assert error.subject == file.file_path
            caught += 1
        else:
            # A bit that means nothing to a reader: of a page's statistics, say.
            assert found == wanted
    assert caught > 80
    path.write_bytes(whole)


def test_a_footer_that_says_other_rows_than_the_table_is_damage(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic, 0, 1)
    table = lake.table(topic)
    (file,) = live_files(table)
    files, target = TableFiles(files_options(table.io.properties)), target_of(table, 1 << 20)
    with pytest.raises(CorruptDataError, match="its footer says 1 rows, and the table 2"):
        list(read_data_file(files, file.file_path, target, row_count=2))


@pytest.mark.slow
def test_a_damaged_file_is_named_and_holds_up_no_other(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fill(api, lake, topic, 0, 6, size=300)
    bad = next(iter(live_files(lake.table(topic)))).file_path
    path = local_path(bad)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    done = maintain(api, lake, topic)
    assert (done.files_joined, done.files_written) == (5, 1)
    assert [entry.split(": ")[0] for entry in done.damaged] == [bad]
    assert {file.file_path for file in live_files(lake.table(topic))} >= {bad}
