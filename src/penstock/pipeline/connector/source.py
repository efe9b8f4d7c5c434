"""`spark.read`, `readStream`, `write` and `writeStream` `.format("penstock")`."""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.losses import logger
from penstock.pipeline.connector.options import ignored, parse
from penstock.pipeline.connector.schema import checked_columns, spark_ddl
from penstock.pipeline.connector.table_options import (
    TABLE,
    UNION,
    TableReadOptions,
    parse_table,
    view_of,
)
from penstock.pipeline.connector.union_options import parse_union

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.pipeline.tables.union import Union

FORMAT: Final = "penstock"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class PenstockDataSource(DataSource):
    """Topics as DataFrames. Options: docs/connector.md."""

    _table: "TableReadOptions | None" = None
    _union: "Union | None" = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> "StructType | str":
        """The columns of a read, where the user gives no schema of those that are wanted."""
        if view_of(self.options) == TABLE:
            from penstock.pipeline.connector.table_read import pinned

            # Spark keeps this object from here on, so that a DataFrame has one snapshot however
            # often Spark plans it again.
            self._table, schema = pinned(parse_table(self.options))
            return schema
        if view_of(self.options) == UNION:
            from penstock.pipeline.connector.union_read import pinned_union

            # For the same reason: a DataFrame ends where the log did when it was loaded.
            self._union, schema = pinned_union(parse_union(self.options, mode="any"))
            return schema
        return spark_ddl(parse(self.options, mode="any").columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return the reader of `spark.read`."""
        if view_of(self.options) == TABLE:
            from penstock.pipeline.connector.table_read import table_reader

            return table_reader(self._table or parse_table(self.options), schema)
        if view_of(self.options) == UNION:
            from penstock.pipeline.connector.union_read import union_reader

            return union_reader(parse_union(self.options, mode="batch"), self._union, schema)
        from penstock.pipeline.connector.read import batch_reader

        options = parse(self.options, mode="batch")
        self._tell_ignored()
        return batch_reader(options, _columns(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of `spark.readStream`."""
        if view_of(self.options) == TABLE:
            raise InvalidRequestError(
                "read", "option view", "a table has no stream", "leave view out: the log has one"
            )
        if view_of(self.options) == UNION:
            from penstock.pipeline.connector.union_stream import union_stream_reader

            return union_stream_reader(
                parse_union(self.options, mode="stream"), self._union, schema
            )
        from penstock.pipeline.connector.stream import stream_reader

        options = parse(self.options, mode="stream")
        self._tell_ignored()
        return stream_reader(options, _columns(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return the writer of `DataFrame.write`."""
        from penstock.pipeline.connector.write import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return the writer of `DataFrame.writeStream`."""
        from penstock.pipeline.connector.write import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _tell_ignored(self) -> None:
        for name in ignored(self.options):
            logger.warning("option %s is of Kafka's client; it says nothing here", name)


def register(spark: "SparkSession") -> None:
    """Make the format known to a session, and let it hand filters to reads that ask for them.

    Spark refuses such a read while this setting, which is off by default, is off.
    """
    spark.dataSource.register(PenstockDataSource)
    spark.conf.set(PUSHDOWN, "true")


def _columns(schema: "StructType") -> tuple[str, ...]:
    return checked_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
