"""`df.write.format("penstock")` and `df.writeStream.format("penstock")`.

Tasks put the rows of a job into objects; what they say of them comes back in commit messages, and
the driver commits all of them at once. Spark makes the writer of each of a stream's batches in a
process of its own, hands it to executors pickled, and makes another one, in yet another process,
which commits. So what a batch needs is found out when its writer is pickled: the one that commits
never is, and knows the job from the messages.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector.write_columns import WriteColumns, find_columns
from penstock.pipeline.connector.write_commit import (
    BATCH_INCARNATION,
    check_batch_mode,
    checkpoint_incarnation,
    close_write,
    commit_write,
    one_off_writer,
    open_write,
)
from penstock.pipeline.connector.write_options import WriteOptions, parse_write_options
from penstock.pipeline.connector.write_plan import TaskOutput, WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


def batch_writer(
    options: Mapping[str, str], schema: "StructType", *, overwrite: bool
) -> "BatchWriter":
    """The writer of one DataFrame; its job is open.

    Raises:
        InvalidRequestError: options or columns that can't be.
        NotFoundError: there is no such topic.
    """
    check_batch_mode(overwrite=overwrite)
    parsed = parse_write_options(options, streaming=False)
    columns = _columns(schema, parsed)
    with PipelineClient(parsed.api) as client:
        return BatchWriter(open_write(client, parsed, columns, incarnation=""))


def stream_writer(
    options: Mapping[str, str], schema: "StructType", *, overwrite: bool
) -> "StreamWriter":
    """The writer of a stream's batches. In complete mode each result is appended as a whole, as
    Kafka's sink does it.

    Raises:
        InvalidRequestError: options or columns that can't be.
    """
    del overwrite
    parsed = parse_write_options(options, streaming=True)
    return StreamWriter(parsed, _columns(schema, parsed))


class CommitMessage(WriterCommitMessage):
    """A task's message to the driver."""

    def __init__(self, output: TaskOutput) -> None:
        self.output = output


class BatchWriter(DataSourceArrowWriter):
    """Pickled with its plan: the same goes to executors and commits."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """On an executor: put all rows of a task."""
        return CommitMessage(_write(self._plan, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: make it real."""
        options = self._plan.options
        with PipelineClient(options.api) as client:
            commit_write(
                client,
                _outputs(messages),
                writer_id=options.writer_id or one_off_writer(client.random.token_bytes(16)),
                batch_id=max(0, options.batch_id),
                incarnation=BATCH_INCARNATION,
            )
            close_write(client, self._plan.job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: let go of it."""
        del messages
        with PipelineClient(self._plan.options.api) as client:
            close_write(client, self._plan.job)


class StreamWriter(DataSourceStreamArrowWriter):
    """On the driver; what executors get in its place is a `StreamTasks`."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns
        self._plan: WritePlan | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles it twice, once with the function that runs on executors.
        if self._plan is None:
            with PipelineClient(self._options.api) as client:
                self._plan = open_write(
                    client, self._options, self._columns, incarnation=self._incarnation()
                )
        return StreamTasks, (self._plan,)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Never called here: tasks have a `StreamTasks`."""
        raise NotImplementedError

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch of the stream; one that was committed before gets the first answer."""
        with PipelineClient(self._options.api) as client:
            commit_write(
                client,
                _outputs(messages),
                writer_id=self._options.writer_id,
                batch_id=batchId,
                incarnation=self._incarnation(),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what tasks have put. If no task has reported its job, the lease ends the job."""
        logger.warning("batch %d of writer %s failed", batchId, self._options.writer_id)
        with PipelineClient(self._options.api) as client:
            for job in {output.job for output in _outputs(messages)}:
                close_write(client, job)

    def _incarnation(self) -> str:
        return self._options.checkpoint_id or checkpoint_incarnation(self._options.checkpoint)


class StreamTasks(DataSourceStreamArrowWriter):
    """The part of a `StreamWriter` that goes to executors."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Put all rows of a task."""
        return CommitMessage(_write(self._plan, iterator))


def _write(plan: WritePlan, iterator: "Iterator[pa.RecordBatch]") -> TaskOutput:
    # What encodes is loaded where it is used, and not by the driver.
    from penstock.pipeline.connector.write_task import write_rows

    return write_rows(plan, iterator)


def _outputs(messages: list[WriterCommitMessage | None]) -> list[TaskOutput]:
    return [message.output for message in messages if isinstance(message, CommitMessage)]


def _columns(schema: "StructType", options: WriteOptions) -> WriteColumns:
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return find_columns(fields, topic=options.topic)
