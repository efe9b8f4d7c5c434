"""Tables in tests: records into a topic, a table's rows out of its files, and killed drivers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.job import TableSummary, run_table_once
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from penstock.records.batch import check_batch
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch
from support.api_server import NOW_MS, ApiServer, offsets_in
from support.batches import ANY
from support.server import REPOSITORY

Row = tuple[bytes | None, bytes | None]
STEPS = (
    "before_files",
    "after_files",
    "before_commit",
    "after_commit",
    "before_letters",
    "after_letters",
    "before_save",
    "after_save",
)


def new_record(
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp_ms: int = NOW_MS,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Record:
    """A record whose place in its batch is not known yet."""
    return Record(
        offset_delta=0, timestamp=timestamp_ms, key=key, value=value, headers=tuple(headers)
    )


def produce(api: ApiServer, topic: str, partition: int, records: Iterable[Record]) -> None:
    """Append records as one batch."""
    numbered = [
        Record(
            offset_delta=number,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for number, record in enumerate(records)
    ]
    produce_batch(api, topic, partition, encode_batch(numbered))


def produce_batch(api: ApiServer, topic: str, partition: int, batch: bytearray) -> None:
    """Append a batch as it is."""
    checked = check_batch(memoryview(batch), ANY, NOW_MS)
    append = PartitionAppend(api._key(topic, partition), checked)

    async def run() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        api.server.parts.log.append([append], timeout_ms=5_000, done=done)
        await answer

    api.on_loop(run())


def produce_values(
    api: ApiServer, topic: str, values: Iterable[bytes | None], partition: int = 0
) -> None:
    """Append values, without keys, as one batch."""
    produce(api, topic, partition, [new_record(None, value) for value in values])


def records_of(api: ApiServer, topic: str, partition: int = 0) -> list[Record]:
    """All records of a partition."""
    topic_id = api.topics[topic][0]
    (state,) = api.client.topics(names=[topic]).topics
    end = state.partitions[partition].high_watermark
    start = state.partitions[partition].log_start
    body = api.read(topic_id, partition, start, end) if end > start else b""
    found: list[Record] = []
    position = 0
    while position < len(body):
        length = 12 + int.from_bytes(body[position + 8 : position + 12], "big")
        found += decode_batch(memoryview(body)[position : position + length])
        position += length
    assert len(found) == len(offsets_in(body))
    return found


@dataclass(frozen=True)
class Lake:
    """A warehouse in a directory, with its SQLite catalog."""

    folder: Path
    catalog_name: str = "penstock"

    @property
    def catalog_settings(self) -> CatalogSettings:
        return CatalogSettings(warehouse=str(self.folder), name=self.catalog_name)

    def settings(self, topic: str, **changes: Any) -> TableSettings:
        return TableSettings(topic=topic, catalog=self.catalog_settings, **changes)

    def catalog(self) -> Any:
        catalog: Any = load_catalog(
            self.catalog_name,
            type="sql",
            uri=f"sqlite:///{self.folder / 'catalog.db'}",
            warehouse=self.folder.as_uri(),
        )
        weakref.finalize(catalog, catalog.engine.dispose)
        return catalog

    def table(self, topic: str) -> Table:
        table: Table = self.catalog().load_table(("penstock", topic))
        return table

    def rows(self, topic: str, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, sorted by partition and offset."""
        rows = self.table(topic).scan().to_arrow()
        prefix = "" if "offset" in rows.column_names else "kafka_"
        rows = rows.sort_by([(f"{prefix}partition", "ascending"), (f"{prefix}offset", "ascending")])
        return list(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))

    def files(self, topic: str) -> list[str]:
        """The Parquet files that lie there, named or not."""
        return sorted(str(path) for path in (self.folder / "penstock" / topic).rglob("*.parquet"))


def follow(api: ApiServer, lake: Lake, topic: str, **changes: Any) -> TableSummary:
    """One run in this process."""
    return run_table_once(api.client, LocalEngine(2), lake.settings(topic, **changes))


class KilledError(BaseException):
    """Stands for SIGKILL where a whole process would only make a test slower."""


def spoil(patch: Callable[[Any, str, Any], None], step: str, end: Callable[[], None]) -> None:
    """Let a run end at a step.

    Args:
        patch: as `monkeypatch.setattr`.
        step: of STEPS.
        end: what ends it.
    """
    from penstock.pipeline.client import PipelineClient
    from penstock.pipeline.tables import job, raw

    when, what = step.split("_", 1)
    places: dict[str, tuple[Any, str]] = {
        "files": (raw, "append_rows"),
        "commit": (job, "commit_change"),
        "letters": (PipelineClient, "write"),
        "save": (PipelineClient, "save_table"),
    }
    owner, name = places[what]
    real = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            end()
        answer = real(*arguments, **named)
        end()
        return answer

    patch(owner, name, wrapped)


def start_driver(
    options: ClientOptions, lake: Lake, topic: str, step: str = ""
) -> subprocess.Popen[bytes]:
    """A driver in a process of its own, which kills itself at a step, if one is given."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from support.tables import Lake, spoil\n"
        "from penstock.pipeline.client import PipelineClient, ClientOptions\n"
        "from penstock.pipeline.engine import LocalEngine\n"
        "from penstock.pipeline.tables.job import run_table_once\n"
        "url, folder, topic, step = sys.argv[1:]\n"
        "if step:\n"
        "    spoil(setattr, step, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "with PipelineClient(ClientOptions(urls=(url,))) as client:\n"
        "    run_table_once(client, LocalEngine(1), Lake(Path(folder)).settings(topic))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY / 'tests'}",
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, options.urls[0], str(lake.folder), topic, step],
        env=environment,
        stdin=subprocess.DEVNULL,
    )
