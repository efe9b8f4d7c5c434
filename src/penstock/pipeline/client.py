"""The client of the pipeline API: docs/formats/pipeline-api.md."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import msgspec
from typing_extensions import Buffer

from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError
from penstock.model.malformed import MALFORMED
from penstock.peers.secret import ClusterSecret
from penstock.pipeline import api_messages as api
from penstock.pipeline.api_messages import (
    API_VERSION,
    Accesses,
    AccessRequest,
    Info,
    JobOpen,
    JobRequest,
    Jobs,
    JobState,
    Offsets,
    OffsetsRequest,
    OpenPipelineJob,
    Producers,
    ProducersRequest,
    Range,
    Replaced,
    ReplaceRequest,
    RunPage,
    RunsRequest,
    Stored,
    TableProgress,
    Tables,
    Topics,
    TopicsRequest,
    Writer,
    WriteRequest,
    Written,
)
from penstock.pipeline.secret import find_secret
from penstock.pipeline.transport import HttpAnswer, RefusedError, Transport
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.backoff import Backoff
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from penstock.system.waiting import pause

__all__ = ["ClientOptions", "PipelineClient", "RefusedError"]

T = TypeVar("T")

ACCESSES_PER_CALL: Final = 1000
TIMES_PER_CALL: Final = 1000
"""Each may take the agent a read of the store, one after the other."""
ACCESS_SECONDS: Final = 900
RECORDS_BYTES: Final = 8 << 20
RUNS_PER_PAGE: Final = 50_000
"""About 3 MB of JSON."""
REST: Final = Backoff(first_s=0.05, most_s=2.0)
_ENCODE: Final = msgspec.json.Encoder().encode
_JSON: Final = {"content-type": "application/json"}


class ClientOptions(msgspec.Struct, frozen=True):
    """Says how a job reaches a cluster. It goes to executors as it is, so it never holds a secret.

    Args:
        urls: the agents' HTTP ports, tried in turn.
        secret_file: the path of a file that is read where the client runs; else the environment's
            `PENSTOCK_CLUSTER_SECRET_FILE` or `PENSTOCK_CLUSTER_SECRET`.
        objects: how objects are reached: `auto` (presigned URLs, else through the agent), `agent`,
            or `ambient` (the executor's own credentials).
        timeout_s: the deadline of one call.
        deadline_s: the deadline of all tries of a call.
        reads_committed: whether records of open and of aborted transactions are left out.
    """

    urls: tuple[str, ...]
    secret_file: str = ""
    objects: str = "auto"
    timeout_s: float = 30.0
    deadline_s: float = 120.0
    reads_committed: bool = True


class PipelineClient:
    """Calls the pipeline API; on any thread; a context manager. Pickles as its options.

    Raises (all methods):
        RetryableError: no agent answered within the deadline.
        InvalidRequestError: the call can never succeed, or the secret isn't right.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        tell: Callable[[str], None] = lambda _: None,
        secret: ClusterSecret | None = None,
    ) -> None:
        """
        Args:
            tell: called with a line for people when a call goes on failing. A pickle has none.
            secret: the cluster's; None: found as the options say. A pickle has none.

        Raises:
            InvalidRequestError: an option that can't be.
        """
        if options.objects not in {"auto", "agent", "ambient"}:
            raise InvalidRequestError(
                "reach cluster", f"objects = {options.objects!r}", "it is auto, agent or ambient"
            )
        self.options = options
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self._transport = Transport(
            options.urls,
            timeout_s=options.timeout_s,
            deadline_s=options.deadline_s,
            secret=lambda: secret or find_secret(options.secret_file),
            clock=self.clock,
            random=self.random,
            pause=pause,
            tell=tell,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineClient, (self.options,)

    def __repr__(self) -> str:
        return f"PipelineClient({', '.join(self.options.urls)})"

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        self._transport.close()

    def rest(self, count: int) -> None:
        """Wait before something is tried for the `count`-th time in vain; 0: not at all."""
        if count:
            pause(REST.jittered(count, self.random))

    def info(self) -> Info:
        """Whom one talks to.

        Raises:
            InvalidRequestError: the agent speaks another version of this protocol.
        """
        info = self._get(api.INFO_PATH, Info, "ask", "agent")
        if info.api_version != API_VERSION:
            raise InvalidRequestError(
                "ask",
                "agent",
                f"it speaks version {info.api_version} of the API, this is {API_VERSION}",
                f"install Penstock {info.version} here",
            )
        return info

    # -- jobs ------------------------------------------------------------------------------------

    def open_job(self, request: JobRequest) -> JobOpen:
        """Register a job; `penstock.pipeline.lease.JobLease` also renews and closes it."""
        return self._post(api.JOBS_PATH, request, JobOpen, "open job", request.name)

    def renew_job(self, job: int) -> None:
        """It goes on. Raises: FencedError: it was closed, or is too old."""
        self._call("POST", f"{api.JOBS_PATH}/{job}/renew", "renew job", str(job))

    def is_job_open(self, job: int) -> bool:
        """Whether a job goes on: by a head of the journal that is read after the call."""
        path = f"{api.JOBS_PATH}/{job}"
        return self._get(path, JobState, "look up job", str(job)).is_open

    def jobs(self) -> list[OpenPipelineJob]:
        """All open jobs, the oldest first: at a head of the journal that is read after the call.

        Raises:
            InvalidRequestError: an agent of an older release, which lists none.
        """
        return self._get(api.JOBS_PATH, Jobs, "list", "jobs").jobs

    def close_job(self, job: int, *, deadline_s: float | None = None) -> None:
        """End a job; also one that is over."""
        self._transport.call(
            "DELETE",
            f"{api.JOBS_PATH}/{job}",
            operation="close job",
            subject=str(job),
            deadline_s=deadline_s,
        )

    # -- what there is ---------------------------------------------------------------------------

    def topics(
        self,
        names: Sequence[str] | None = None,
        topic_ids: Sequence[str] | None = None,
        pattern: str | None = None,
        *,
        uncommitted: bool = False,
    ) -> Topics:
        """Topics by name, by id (32 hexadecimal digits) or whose whole name matches; or all.
        Those that aren't there are left out.

        Args:
            uncommitted: give the true high watermarks also where this client reads committed
                records: then they are the last stable offsets.
        """
        request = TopicsRequest(
            names=None if names is None else list(names),
            topic_ids=None if topic_ids is None else list(topic_ids),
            pattern=pattern,
        )
        found = self._post(api.TOPICS_PATH, request, Topics, "list topics", pattern or "topics")
        if self.options.reads_committed and not uncommitted:
            return _committed(found)
        return found

    def offsets(self, items: Sequence[tuple[str, int, int]]) -> list[int]:
        """Return per (topic id, partition, time in ms) the first offset from then on; -1: none.

        Raises:
            NotFoundError: no such topic or partition.
        """
        found: list[int] = []
        for start in range(0, len(items), TIMES_PER_CALL):
            request = OffsetsRequest(items=list(items[start : start + TIMES_PER_CALL]))
            found += self._post(api.OFFSETS_PATH, request, Offsets, "look up", "offsets").offsets
        return found

    def runs(
        self, ranges: Sequence[Range] | None = None, *, with_wal: bool = True
    ) -> Iterator[RunPage]:
        """Yield all pages of the places of records, of ranges or of everything.

        Raises:
            NotFoundError: a range's topic or partition isn't there.
        """
        after = ""
        while True:
            request = RunsRequest(
                ranges=None if ranges is None else list(ranges),
                after=after,
                limit=RUNS_PER_PAGE,
                with_wal=with_wal,
                aborted=self.options.reads_committed and ranges is not None,
            )
            page = self._post(api.RUNS_PATH, request, RunPage, "list", "runs")
            yield page
            after = page.after
            if not after:
                return

    def producers(self, partitions: Sequence[tuple[str, int]]) -> Producers:
        """The active producers of partitions."""
        request = ProducersRequest(partitions=list(partitions))
        return self._post(api.PRODUCERS_PATH, request, Producers, "list", "producers")

    def records(
        self, topic_id: str, partition: int, start: int, end: int, *, bytes_max: int = RECORDS_BYTES
    ) -> tuple[bytes, int]:
        """Whole batches with final offsets from the one that holds `start` on, and the offset to
        go on at; wherever they lie, also in a WAL. There is more than nothing unless compaction
        left nothing before `end`.

        Raises:
            NotFoundError: no such partition, or its log starts later.
            RetryableError: they lie in the WAL of an agent that is away.
        """
        answer = self._call(
            "GET",
            api.RECORDS_PATH,
            "read",
            f"{topic_id}-{partition} from offset {start}",
            query={
                "topic_id": topic_id,
                "partition": partition,
                "start": start,
                "end": end,
                "bytes_max": bytes_max,
            },
        )
        try:
            return answer.body, int(answer.headers[api.NEXT_OFFSET_HEADER])
        except (KeyError, ValueError) as error:
            raise RetryableError(
                "read", f"{topic_id}-{partition}", "an answer without its next offset"
            ) from error

    # -- objects ---------------------------------------------------------------------------------

    def accesses(
        self, method: str, keys: Sequence[str], *, seconds: int = ACCESS_SECONDS
    ) -> list[str]:
        """Return per key a presigned URL for `GET` or `PUT`, good for `seconds`; "": by the agent.
        To be kept in memory alone."""
        urls: list[str] = []
        for start in range(0, len(keys), ACCESSES_PER_CALL):
            page = list(keys[start : start + ACCESSES_PER_CALL])
            request = AccessRequest(method=method, keys=page, seconds=seconds)
            found = self._post(api.ACCESSES_PATH, request, Accesses, "ask for access to", page[0])
            urls += found.urls
        return urls

    def get_object(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, through the agent; not empty.

        Raises:
            NotFoundError: there is no such object.
        """
        answer = self._call(
            "GET",
            _object_path(key),
            "read",
            f"{key} from byte {start}",
            headers={"range": f"bytes={start}-{end - 1}"},
        )
        if len(answer.body) != end - start:
            raise RetryableError("read", key, f"{len(answer.body)} of {end - start} bytes came")
        return answer.body

    def put_object(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store an object of an open job, through the agent.

        Raises:
            RefusedError: the key exists, or the job is over.
        """
        headers = {"content-type": "application/octet-stream"}
        self._transport.call(
            "PUT", _object_path(key), operation="put", subject=key, headers=headers, body=parts
        )

    def stored(self, prefix: str) -> Stored:
        """List what the store and the journal have below `segments/PREFIX/`: two hexadecimal
        digits."""
        path = f"{api.STORED_PATH}/{prefix}"
        return self._get(path, Stored, "list", f"segments/{prefix}")

    # -- commits ---------------------------------------------------------------------------------

    def replace(self, request: ReplaceRequest) -> Replaced:
        """Name a job's objects instead of the runs that they were made of.

        Raises:
            FencedError: the job is over.
            RefusedError: the objects aren't what the request says, or the commit is out of order.
        """
        return self._post(api.REPLACE_PATH, request, Replaced, "commit", f"job {request.job}")

    def write(self, request: WriteRequest) -> Written:
        """Give offsets to all batches of a write.

        Raises:
            FencedError: the job is over.
            RefusedError: the writer is in use by another checkpoint or is further already, a
                topic is gone, or the objects aren't what the request says.
        """
        subject = f"batch {request.batch_id} of writer {request.writer_id}"
        return self._post(api.WRITE_PATH, request, Written, "commit", subject)

    def writer(self, writer_id: str) -> Writer | None:
        """Return the state's entry for a writer; None: it never wrote."""
        path = f"{api.WRITERS_PATH}/{quote(writer_id, safe='')}"
        try:
            return self._get(path, Writer, "look up writer", writer_id)
        except NotFoundError:
            return None

    # -- tables ----------------------------------------------------------------------------------

    def tables(self, topic_id: str | None = None) -> list[TableProgress]:
        """List the progress of tables."""
        query = {} if topic_id is None else {"topic_id": topic_id}
        answer = self._call("GET", api.TABLES_PATH, "list", "tables", query=query)
        return _decode(answer, Tables, "list", "tables").tables

    def save_table(self, progress: TableProgress) -> None:
        """Note how far a table is. Raises: RefusedError: the topic is gone."""
        self._call(
            "PUT",
            api.TABLES_PATH,
            "save progress of table",
            progress.table,
            headers=_JSON,
            body=_ENCODE(progress),
        )

    def drop_table(self, topic_id: str, table: str) -> None:
        """Forget how far a table is."""
        query = {"topic_id": topic_id, "table": table}
        self._call("DELETE", api.TABLES_PATH, "forget table", table, query=query)

    # -- inside ----------------------------------------------------------------------------------

    def _get(self, path: str, kind: type[T], operation: str, subject: str) -> T:
        return _decode(self._call("GET", path, operation, subject), kind, operation, subject)

    def _post(
        self, path: str, request: msgspec.Struct, kind: type[T], operation: str, subject: str
    ) -> T:
        answer = self._call("POST", path, operation, subject, headers=_JSON, body=_ENCODE(request))
        return _decode(answer, kind, operation, subject)

    def _call(
        self,
        method: str,
        path: str,
        operation: str,
        subject: str,
        *,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> HttpAnswer:
        return self._transport.call(
            method,
            path,
            operation=operation,
            subject=subject,
            query=query,
            headers=headers,
            body=(body,) if body else (),
        )


def _committed(found: Topics) -> Topics:
    """Topics as a reader of committed records sees them. Most have nothing open."""
    if not any(
        0 <= state.last_stable < state.high_watermark
        for topic in found.topics
        for state in topic.partitions
    ):
        return found
    replace = msgspec.structs.replace
    return replace(
        found,
        topics=[
            replace(
                topic,
                partitions=[
                    replace(state, high_watermark=state.last_stable)
                    if state.last_stable >= 0
                    else state
                    for state in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )


def _object_path(key: str) -> str:
    return f"{api.OBJECTS_PATH}/{quote(key)}"


def _decode(answer: HttpAnswer, kind: type[T], operation: str, subject: str) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except MALFORMED as error:
        raise RetryableError(operation, subject, f"no answer of this protocol: {error}") from error
