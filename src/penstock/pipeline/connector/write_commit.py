"""The driver's side of a write: who writes, its job, and the one commit that makes it real.

| write | writer id | batch id | incarnation |
| --- | --- | --- | --- |
| a stream | option `writerId` | Spark's | of the checkpoint |
| a batch, once | option `writerId` | option `batchId` | the same for all |
| a batch | `once-` and 32 random digits | 0 | the same for all |
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.model.errors import ConflictError, InvalidRequestError, PenstockError
from penstock.pipeline.api_messages import JobRequest, OutputObject, WriteRequest, WriteRun, Written
from penstock.pipeline.client import PipelineClient, RefusedError
from penstock.pipeline.connector.write_columns import WriteColumns
from penstock.pipeline.connector.write_options import ONE_OFF_PREFIX, WriteOptions
from penstock.pipeline.connector.write_plan import TaskOutput, WritePlan, find_topic
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

BATCH_INCARNATION: Final = "batch"
_IN_USE: Final = "writer_in_use"
_HINT_IN_USE: Final = (
    "go on from the checkpoint that it belongs to, or choose another writerId: with a new "
    "checkpoint Spark counts its batches again, and they would be taken for those of before"
)
_METADATA_BYTES_MAX: Final = 1 << 16


def open_write(
    client: PipelineClient, options: WriteOptions, columns: WriteColumns, *, incarnation: str
) -> WritePlan:
    """Look at what is written to, and open the write's job.

    Args:
        incarnation: of a stream; "" of a batch.

    Raises:
        NotFoundError: there is no such topic.
        ConflictError: the writer id is another checkpoint's.
    """
    if options.writer_id:
        known = client.writer(options.writer_id)
        if known is not None and known.incarnation != (incarnation or BATCH_INCARNATION):
            raise ConflictError(
                "write",
                f"writer {options.writer_id}",
                f"another checkpoint has written up to batch {known.batch_id} with it",
                _HINT_IN_USE,
            )
    topics = (find_topic(client, options.topic),) if options.topic else ()
    name = options.writer_id or options.topic or "dataframe"
    before_ms = client.clock.now_ms()
    opened = client.open_job(JobRequest(kind="write", name=name, lease_ms=options.lease_ms))
    return WritePlan(
        options=options,
        columns=columns,
        job=opened.job,
        lease_ms=opened.lease_ms,
        opened_ms=before_ms,
        topics=topics,
    )


def commit_write(
    client: PipelineClient,
    outputs: Sequence[TaskOutput],
    *,
    writer_id: str,
    batch_id: int,
    incarnation: str,
) -> Written | None:
    """Commit what the tasks have put, in the order of the tasks, and close their job.

    Returns:
        Offsets; None: there was nothing to write.

    Raises:
        ConflictError: the writer is another checkpoint's, is further already, or the job is over.
    """
    jobs = {output.job for output in outputs}
    if not jobs:
        return None
    assert len(jobs) == 1, jobs
    (job,) = jobs
    objects: list[OutputObject] = []
    runs: list[WriteRun] = []
    for output in outputs:
        runs += [
            WriteRun(
                topic_id=run.topic_id,
                partition=run.partition,
                object=run.object + len(objects),
                position=run.position,
                batches=run.batches,
                crcs=run.crcs,
            )
            for run in output.runs
        ]
        objects += output.objects
    try:
        if not runs:
            return None
        request = WriteRequest(
            job=job,
            writer_id=writer_id,
            batch_id=batch_id,
            incarnation=incarnation,
            objects=objects,
            runs=runs,
        )
        written = _write(client, request)
    finally:
        close_write(client, job)
    if written.repeated:
        logger.info("batch %d of writer %s had been written before", batch_id, writer_id)
    return written


def close_write(client: PipelineClient, job: int) -> None:
    """End the job; what it put and did not commit is deleted by the agents."""
    try:
        client.close_job(job)
    except PenstockError as error:
        heard(Cause.JOB_LEASE, error, logger, f"job {job} ends with its lease")


def one_off_writer(token: bytes) -> str:
    """The id of a writer that writes once."""
    return ONE_OFF_PREFIX + token.hex()


def checkpoint_incarnation(location: str) -> str:
    """Return the id that Spark has given the query, which distinguishes checkpoints.

    Args:
        location: the checkpoint's location, a path or URI.

    Raises:
        InvalidRequestError: the id can't be read. The location can't replace it: if a checkpoint
            was begun again at the same place, its first batches would be taken for repeats.
    """
    try:
        found = json.loads(_read(f"{location.rstrip('/')}/metadata"))["id"]
        if isinstance(found, str) and found:
            return found
        fault = "its file metadata holds no id"
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        fault = f"its file metadata can't be read: {error}"
    raise InvalidRequestError(
        "write",
        f"checkpoint {location}",
        fault,
        "give the option checkpointId, and another one whenever the checkpoint is begun again",
    )


def _read(place: str) -> bytes:
    parts = urlsplit(place)
    if parts.scheme in {"", "file"}:
        path = unquote(parts.path) if parts.scheme else place
        with Path(path).open("rb") as file:
            return file.read(_METADATA_BYTES_MAX)
    from pyarrow import fs

    # Hadoop's names of S3 are unknown to Arrow.
    scheme = "s3" if parts.scheme in {"s3a", "s3n"} else parts.scheme
    filesystem, path = fs.FileSystem.from_uri(place.replace(parts.scheme, scheme, 1))
    with filesystem.open_input_stream(path) as stream:
        found: bytes = stream.read(_METADATA_BYTES_MAX)
        return found


def _write(client: PipelineClient, request: WriteRequest) -> Written:
    try:
        return client.write(request)
    except RefusedError as error:
        if error.reason.lower() == _IN_USE:
            raise ConflictError(
                error.operation, error.subject, error.detail, _HINT_IN_USE
            ) from error
        raise


def check_batch_mode(*, overwrite: bool) -> None:
    """
    Raises:
        InvalidRequestError: a batch write that is to overwrite.
    """
    if overwrite:
        raise InvalidRequestError(
            "write", "mode", "a log is appended to, never overwritten", 'use .mode("append")'
        )
