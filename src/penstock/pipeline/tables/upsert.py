"""Tables with one row per key: changes are staged by bucket, then touched files rewritten."""

from collections import defaultdict
from collections.abc import Sequence

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.changes import (
    ChangesItem,
    MergeItem,
    merge_bucket,
    stage_changes,
)
from penstock.pipeline.tables.columns import TYPED_PREFIX, raw_schema
from penstock.pipeline.tables.evolution import check_record_columns
from penstock.pipeline.tables.files import files_options
from penstock.pipeline.tables.followed import RowSchemas
from penstock.pipeline.tables.key_identity import check_key
from penstock.pipeline.tables.kinds import Design, Written, live_files, target_of
from penstock.pipeline.tables.parquet import FileTarget
from penstock.pipeline.tables.partitioning import Transform, partition_spec
from penstock.pipeline.tables.settings import RAW, TableSettings
from penstock.pipeline.tables.typed import first_schemas, run_following
from penstock.pipeline.tables.values import RowPlan


class UpsertKind:
    """One row per key: the newest record; a tombstone deletes."""

    def __init__(self, settings: TableSettings, client: PipelineClient, engine: Engine) -> None:
        self._settings = settings
        self._client = client
        self._engine = engine
        self._schemas = None if settings.schema == RAW else RowSchemas(settings)
        self._prefix = "" if self._schemas is None else TYPED_PREFIX

    def design(self, items: Sequence[Sequence[Range]]) -> Design | None:
        """Buckets of the key, and the columns of an appended table."""
        properties: dict[str, str] = {}
        schema = raw_schema()
        bucketed = f"{self._prefix}key"
        if self._schemas is not None:
            first = first_schemas(self._schemas, self._client, self._engine, items)
            if first is None:
                return None
            schema, properties = self._schemas.begin(first)
            bucketed, identifier_ids = check_key(schema, table=self._settings.full_name)
            if self._schemas.key is not None:
                schema = Schema(*schema.fields, identifier_field_ids=identifier_ids)
        bucket = Transform(kind="bucket", column=bucketed, size=self._settings.buckets)
        return Design(schema=schema, spec=partition_spec(schema, (bucket,)), properties=properties)

    def check(self, table: Table) -> None:
        """Raises: InvalidRequestError: columns or buckets are others now."""
        if self._schemas is None:
            check_record_columns(
                table.schema(), prefix="", with_value=True, table=".".join(table.name())
            )
        else:
            self._schemas.check(table)
        check_buckets(table, prefix=self._prefix)

    def write(
        self,
        table: Table,
        target: FileTarget,  # noqa: ARG002 - made again after the columns changed
        items: Sequence[Sequence[Range]],
    ) -> tuple[Table, Written]:
        """See `TableKind.write`.

        Raises:
            ConflictError: stored files went while they were read; plan again.
        """
        files = files_options(table.io.properties)
        size = self._settings.target_file_bytes

        def new_item(now: Table, ranges: Sequence[Range], plan: RowPlan) -> ChangesItem:
            return ChangesItem(
                api=self._client.options,
                files=files,
                target=target_of(now, size),
                ranges=list(ranges),
                plan=plan,
                prefix=self._prefix,
            )

        table, staged = run_following(
            self._engine, self._schemas, table, items, stage_changes, new_item
        )
        changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for result in staged:
            for file in result.changes:
                for group, bucket in enumerate(file.buckets):
                    changes[bucket].append((file.url, group))
        stored = self._stored(table)
        tasks = [
            MergeItem(
                files=files,
                target=target_of(table, size),
                bucket=bucket,
                stored=[file.file_path for file in stored.get(bucket, {}).values()],
                changes=places,
                prefix=self._prefix,
            )
            for bucket, places in sorted(changes.items())
        ]
        try:
            merged = [
                (tasks[index].bucket, result)
                for index, result in self._engine.run(merge_bucket, tasks)
            ]
        except NotFoundError as error:
            raise ConflictError(
                "rewrite table", ".".join(table.name()), f"another commit was first: {error}"
            ) from error
        return table, Written(
            added=[file for _, result in merged for file in result.files],
            removed=[stored[bucket][url] for bucket, result in merged for url in result.replaced],
            bad=[file for result in staged for file in result.bad],
            scratch=[file.url for result in staged for file in result.changes],
            bytes_read=sum(result.bytes_read for result in staged),
            rows=sum(result.rows for _, result in merged),
            columns_added=[] if self._schemas is None else self._schemas.columns_added,
            is_by_snapshot=True,
        )

    def _stored(self, table: Table) -> dict[int, dict[str, DataFile]]:
        """The current snapshot's files by bucket and path."""
        name = ".".join(table.name())
        spec_id = table.spec().spec_id
        stored: dict[int, dict[str, DataFile]] = defaultdict(dict)
        for file in live_files(table):
            if file.content != DataFileContent.DATA:
                raise InvalidRequestError(
                    "upsert into table",
                    name,
                    "another program's row-level deletes are in it, which are not read here",
                    "let them be rewritten, for example by Spark's rewrite_data_files",
                )
            if file.spec_id != spec_id:
                raise InvalidRequestError(
                    "upsert into table", name, f"{file.file_path} is of other buckets"
                )
            stored[file.partition[0]][file.file_path] = file
        return stored


def check_buckets(table: Table, *, prefix: str) -> None:
    """Check that rows of a key are in one bucket: they are if any part of the key says which.

    Raises:
        InvalidRequestError: the table is partitioned in another way.
    """
    schema, fields = table.schema(), table.spec().fields
    if len(fields) == 1 and isinstance(fields[0].transform, BucketTransform):
        path = schema.find_column_name(fields[0].source_id) or ""
        if path.split(".")[0] == f"{prefix}key":
            return
    raise InvalidRequestError(
        "upsert into table",
        ".".join(table.name()),
        f"it is partitioned by {table.spec()}, not by buckets of its key",
        "begin a new table: another --table, or --restart once this one is dropped",
    )
