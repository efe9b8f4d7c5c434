"""These calls of the pipeline API change something: jobs, commits of objects, writers, tables."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.app.api.calls import Call, message, nothing, read_message
from penstock.app.api.checks import Claim, check_objects
from penstock.app.api.grants import is_own, need_job, need_own
from penstock.app.api.sources import PipelineSources
from penstock.app.http.agents_api import note_change
from penstock.app.http.callers import Caller
from penstock.app.http.guard import caller_of
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.model.ids import PartitionKey, TopicKey, partition_key, partition_of, topic_key_of
from penstock.model.table_names import PIN_JOB
from penstock.pipeline import api_messages as api
from penstock.pipeline.api_messages import (
    LEASE_MS_MAX,
    JobOpen,
    JobRequest,
    Jobs,
    JobState,
    OpenPipelineJob,
    Range,
    Replaced,
    ReplaceRequest,
    TableProgress,
    Tables,
    Writer,
    WriteRequest,
    Written,
)
from penstock.security.acl import CLUSTER_NAME, Operation, ResourceType
from penstock.state.answers import JobOpened, Refusal, RunsReplaced, WriteCommitted
from penstock.state.commands import BATCH_FIELDS
from penstock.state.pipeline_commands import (
    OUTPUT_FIELDS,
    CloseJob,
    CommitWrite,
    DropTable,
    OpenJob,
    OutputObject,
    RenewJob,
    ReplacedPartition,
    ReplaceRuns,
    SaveTable,
    WriteRun,
)
from penstock.state.rows import TableRow

LEASE_MS_MIN: Final = 1000
AGE_MS_MAX: Final = 7 * 86_400_000
NAME_LENGTH_MAX: Final = 200
NO_SNAPSHOT: Final = -1
SHOWN_MAX: Final = 10
"""A log line names at most this many partitions."""
_NO_TOPIC: Final = TopicKey(0)
"""No topic has this key, since keys begin with 1: apply knows no partition of it."""


def calls(sources: PipelineSources) -> Sequence[Call]:
    """See `pipeline_routes`."""
    commits = _Commits(sources)
    job = api.JOBS_PATH + "/{job:int}"
    return [
        (api.JOBS_PATH, "POST", "open_job", commits.open_job),
        (api.JOBS_PATH, "GET", "jobs", commits.jobs),
        (job, "GET", "job", commits.job),
        (job + "/renew", "POST", "renew_job", commits.renew_job),
        (job, "DELETE", "close_job", commits.close_job),
        (api.REPLACE_PATH, "POST", "replace", commits.replace),
        (api.WRITE_PATH, "POST", "write", commits.write),
        (api.WRITERS_PATH + "/{writer:path}", "GET", "writer", commits.writer),
        (api.TABLES_PATH, "GET", "tables", commits.tables),
        (api.TABLES_PATH, "PUT", "save_table", commits.save_table),
        (api.TABLES_PATH, "DELETE", "drop_table", commits.drop_table),
    ]


class _Commits:
    def __init__(self, sources: PipelineSources) -> None:
        self._sources = sources

    # -- jobs ------------------------------------------------------------------------------------

    async def open_job(self, request: Request) -> Response:
        wanted = await read_message(request, JobRequest)
        if not 0 < len(wanted.kind) <= NAME_LENGTH_MAX or len(wanted.name) > NAME_LENGTH_MAX:
            raise InvalidRequestError("open job", repr(wanted.kind), "its kind or name is too long")
        caller = caller_of(request)
        self._need_to_open(caller, wanted)
        lease_ms = min(max(wanted.lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
        answer = await self._sources.commit(
            OpenJob(
                kind=wanted.kind,
                name=wanted.name,
                lease_ms=lease_ms,
                age_max_ms=min(max(wanted.age_max_ms, LEASE_MS_MIN), AGE_MS_MAX),
                principal="" if caller.is_unbounded else caller.principal,
            )
        )
        assert isinstance(answer, JobOpened), answer
        note_change(request, f"job {answer.job} opened: {wanted.kind} {wanted.name!r}")
        return message(
            JobOpen(
                job=answer.job, position=answer.position, time_ms=answer.time_ms, lease_ms=lease_ms
            )
        )

    async def jobs(self, request: Request) -> Response:
        caller = caller_of(request)
        sees_all = caller.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        await self._sources.confirm()
        every = await self._sources.ask(lambda queries: queries.pipeline_jobs())
        found = [job for job in every if sees_all or is_own(caller, job)]
        return message(
            Jobs(
                jobs=[
                    OpenPipelineJob(
                        job=job.job, kind=job.kind, name=job.name, opened_ms=job.opened_ms
                    )
                    for job in found
                ]
            )
        )

    async def job(self, request: Request) -> Response:
        job = request.path_params["job"]
        await self._sources.confirm()
        found = await self._sources.ask(lambda queries: queries.pipeline_job(job))
        caller = caller_of(request)
        caller.ask_nothing()
        if found is not None:
            need_own(caller, found, Operation.DESCRIBE)
        return message(JobState(is_open=found is not None))

    async def renew_job(self, request: Request) -> Response:
        caller = caller_of(request)
        if not caller.is_unbounded:
            job: int = request.path_params["job"]
            await need_job(self._sources, caller, job, Operation.ALTER)
        await self._sources.commit(RenewJob(job=request.path_params["job"]))
        return nothing()

    async def close_job(self, request: Request) -> Response:
        caller = caller_of(request)
        caller.ask_nothing()
        if not caller.is_unbounded:
            job: int = request.path_params["job"]
            await self._sources.confirm()
            found = await self._sources.ask(lambda queries: queries.pipeline_job(job))
            if found is not None:
                need_own(caller, found, Operation.ALTER)
        await self._sources.commit(CloseJob(job=request.path_params["job"]))
        note_change(request, f"job {request.path_params['job']} closed")
        return nothing()

    # -- commits ---------------------------------------------------------------------------------

    async def replace(self, request: Request) -> Response:
        wanted = await read_message(request, ReplaceRequest)
        sources = self._sources
        caller = caller_of(request)
        await sources.confirm()
        topics = {each.topic_id for each in wanted.partitions}
        self._need_topics(caller, topics, Operation.READ, Operation.WRITE, Operation.DELETE)
        has_committed = await self._has_committed(wanted.job, wanted.n)
        if not (has_committed and caller.is_unbounded):
            await need_job(sources, caller, wanted.job)
        if not has_committed:
            await check_objects(
                sources, wanted.objects, _replacement_claims(wanted), offsets_final=True
            )
        answer = await sources.commit(
            ReplaceRuns(
                job=wanted.job,
                n=wanted.n,
                input_keys=wanted.input_keys,
                objects=_objects(wanted.objects),
                partitions=[
                    ReplacedPartition(
                        partition_key=self._key(each.topic_id, each.partition, index),
                        inputs=each.inputs,
                        outputs=each.outputs,
                        clean_end=each.clean_end,
                        sums=each.sums,
                        merged=each.merged,
                        markers=each.markers,
                    )
                    for index, each in enumerate(wanted.partitions)
                ],
            )
        )
        assert isinstance(answer, RunsReplaced), answer
        return message(
            Replaced(codes=[Refusal(code).name.lower() if code else "" for code in answer.codes])
        )

    async def write(self, request: Request) -> Response:
        wanted = await read_message(request, WriteRequest)
        sources = self._sources
        caller = caller_of(request)
        await sources.confirm()
        self._need_topics(caller, {run.topic_id for run in wanted.runs}, Operation.WRITE)
        # Who writes under a writer's id could have later batches of that writer taken for repeated.
        caller.need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, wanted.writer_id)
        known = await sources.ask(lambda queries: queries.writer(wanted.writer_id))
        repeated = known is not None and (known.incarnation, known.batch_id) == (
            wanted.incarnation,
            wanted.batch_id,
        )
        if not repeated:
            # A commit that is sent again gets its first answer, even if its objects are gone by
            # now.
            await need_job(sources, caller, wanted.job)
            await check_objects(sources, wanted.objects, _write_claims(wanted), offsets_final=False)
        answer = await sources.commit(
            CommitWrite(
                job=wanted.job,
                writer_id=wanted.writer_id,
                batch_id=wanted.batch_id,
                incarnation=wanted.incarnation,
                objects=_objects(wanted.objects),
                runs=[
                    WriteRun(
                        partition_key=self._key(run.topic_id, run.partition, index),
                        object=run.object,
                        position=run.position,
                        batches=run.batches,
                        crcs=run.crcs,
                    )
                    for index, run in enumerate(wanted.runs)
                ],
            )
        )
        assert isinstance(answer, WriteCommitted), answer
        return message(Written(ranges=await self._ranges(answer), repeated=answer.repeated))

    async def writer(self, request: Request) -> Response:
        writer_id: str = request.path_params["writer"]
        caller_of(request).need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, writer_id)
        await self._sources.confirm()
        found = await self._sources.ask(lambda queries: queries.writer(writer_id))
        if found is None:
            raise NotFoundError(
                "look up writer", writer_id, "no batch of this writer was committed"
            )
        return message(
            Writer(
                writer_id=writer_id,
                incarnation=found.incarnation,
                batch_id=found.batch_id,
                time_ms=found.time_ms,
            )
        )

    # -- tables ----------------------------------------------------------------------------------

    async def tables(self, request: Request) -> Response:
        topic_id = request.query_params.get("topic_id")
        wanted = None if topic_id is None else _topic_id(topic_id)
        await self._sources.confirm()
        every = await self._sources.ask(lambda queries: queries.table_rows(wanted))
        caller = caller_of(request)
        caller.ask_nothing()
        rows = [row for row in every if self._may_see(caller, row.topic_id)]
        return message(
            Tables(
                tables=[
                    TableProgress(
                        topic_id=row.topic_id.hex(),
                        table=row.table,
                        offsets=sorted(row.offsets.items()),
                        snapshot_id=row.snapshot_id,
                        state=row.state,
                        time_ms=row.time_ms,
                    )
                    for row in rows
                ]
            )
        )

    async def save_table(self, request: Request) -> Response:
        wanted = await read_message(request, TableProgress)
        topic_id = _topic_id(wanted.topic_id)
        caller = caller_of(request)
        caller.need_topic(self._name(topic_id), Operation.READ)
        caller.need(Operation.READ, ResourceType.GROUP, wanted.table)
        rows = await self._sources.ask(lambda queries: queries.table_rows(topic_id))
        before = next((row for row in rows if row.table == wanted.table), None)
        await self._sources.commit(
            SaveTable(
                topic_id=topic_id,
                table=wanted.table,
                offsets=[number for pair in wanted.offsets for number in pair],
                snapshot_id=wanted.snapshot_id,
                state=wanted.state,
            )
        )
        note_change(request, saved_line(before, wanted))
        return nothing()

    async def drop_table(self, request: Request) -> Response:
        topic_id = _topic_id(request.query_params.get("topic_id", ""))
        table = request.query_params.get("table", "")
        caller = caller_of(request)
        caller.need_topic(self._name(topic_id), Operation.READ)
        caller.need(Operation.DELETE, ResourceType.GROUP, table)
        await self._sources.commit(DropTable(topic_id=topic_id, table=table))
        note_change(request, f"table {table!r} of topic {topic_id.hex()} dropped")
        return nothing()

    # -- inside ----------------------------------------------------------------------------------

    def _need_to_open(self, caller: Caller, wanted: JobRequest) -> None:
        if wanted.kind == PIN_JOB:
            # It ends the retention of that topic while it is open.
            topic = self._sources.view.topic_by_id(_topic_id(wanted.name))
            caller.need_topic(None if topic is None else topic.name, Operation.READ)
        else:
            caller.need_some_topic(Operation.READ, Operation.WRITE)

    def _need_topics(
        self, caller: Caller, topic_ids: Collection[str], *operations: Operation
    ) -> None:
        """Raises: DeniedError: an operation is not allowed. Topics that are gone are passed over,
        since apply changes nothing of them."""
        caller.ask_nothing()
        for topic_id in topic_ids:
            topic = self._sources.topic(topic_id)
            if topic is not None:
                caller.need_topic(topic.name, *operations)

    def _may_see(self, caller: Caller, topic_id: bytes) -> bool:
        name = self._name(topic_id)
        if name is None:
            return caller.is_unbounded
        return caller.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def _name(self, topic_id: bytes) -> str | None:
        topic = self._sources.view.topic_by_id(topic_id)
        return None if topic is None else topic.name

    async def _has_committed(self, job: int, n: int) -> bool:
        """Whether commit `n` is the job's last commit, sent again, which gets its first answer."""
        found = await self._sources.ask(lambda queries: queries.pipeline_job(job))
        return found is not None and found.last_n == n

    def _key(self, topic_id: str, partition: int, index: int) -> PartitionKey:
        """Return a partition's key; for a topic that is gone, a key that no partition has. So a
        command that is sent again is the same for apply."""
        topic = self._sources.topic(topic_id)
        if topic is None or not 0 <= partition < topic.partitions:
            return partition_key(_NO_TOPIC, index)
        return partition_key(topic.topic_key, partition)

    async def _ranges(self, answer: WriteCommitted) -> list[Range]:
        view = self._sources.view
        ranges: list[Range] = []
        at = iter(answer.ranges)
        for number, base, end in zip(at, at, at, strict=True):
            key = PartitionKey(number)
            topic = view.topic_by_key(topic_key_of(key))
            # "": the topic was deleted since the table was saved.
            topic_id = "" if topic is None else topic.topic_id.hex()
            ranges.append(Range(topic_id, partition_of(key), base, end))
        return ranges


def saved_line(before: TableRow | None, now: TableProgress) -> str:
    """Say in a sentence what a job's note of its table changed; partitions whose offsets stayed are
    left out."""
    known = {} if before is None else before.offsets
    snapshot_id = NO_SNAPSHOT if before is None else before.snapshot_id
    changes = []
    if snapshot_id != now.snapshot_id:
        changes.append(f"snapshot {_shown(snapshot_id)} -> {_shown(now.snapshot_id)}")
    moved = [pair for pair in now.offsets if known.get(pair[0]) != pair[1]]
    changes += [
        f"partition {partition} up to {_shown(known.get(partition))} -> {end}"
        for partition, end in moved[:SHOWN_MAX]
    ]
    if len(moved) > SHOWN_MAX:
        changes.append(f"{len(moved) - SHOWN_MAX} more partitions")
    if before is not None and before.state != now.state:
        changes.append("another state")
    text = ", ".join(changes) or "nothing new"
    return f"table {now.table!r} of topic {now.topic_id} saved: {text}"


def _shown(number: int | None) -> str:
    return "none" if number in (None, NO_SNAPSHOT) else str(number)


def _objects(objects: Sequence[api.OutputObject]) -> list[OutputObject]:
    return [OutputObject(key=each.key, size_bytes=each.size_bytes) for each in objects]


def _replacement_claims(wanted: ReplaceRequest) -> Iterator[Claim]:
    for each in wanted.partitions:
        topic_id = _topic_id(each.topic_id)
        if len(each.outputs) % OUTPUT_FIELDS:
            raise InvalidRequestError(
                "commit", f"job {wanted.job}", "its lists of outputs differ in length"
            )
        for at in range(0, len(each.outputs), OUTPUT_FIELDS):
            base, end, index, position, length, newest, batches = each.outputs[
                at : at + OUTPUT_FIELDS
            ]
            yield Claim(
                index, topic_id, each.partition, position, length, batches, newest, base, end
            )


def _write_claims(wanted: WriteRequest) -> Iterator[Claim]:
    for run in wanted.runs:
        if not run.batches or len(run.batches) % BATCH_FIELDS:
            raise InvalidRequestError(
                "commit", f"job {wanted.job}", "its lists of batches differ in length"
            )
        newest = timestamp = -(1 << 63)
        for index, difference in enumerate(run.batches[2::BATCH_FIELDS]):
            timestamp = difference if not index else timestamp + difference
            newest = max(newest, timestamp)
        yield Claim(
            run.object,
            _topic_id(run.topic_id),
            run.partition,
            run.position,
            sum(run.batches[0::BATCH_FIELDS]),
            len(run.batches) // BATCH_FIELDS,
            newest,
            record_count=sum(run.batches[1::BATCH_FIELDS]),
        )


def _topic_id(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise InvalidRequestError("look up topic", repr(text), "an id has 32 hex digits")
    return found
