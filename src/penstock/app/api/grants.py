"""A caller gets of objects what its topics and its own jobs have, and no more.

A segment holds runs of many topics, and a presigned URL opens all of it. So a URL is given only
where the caller may read every topic of the object, as the object's own index names them: also
topics that are deleted, which a super user alone may read. Else the bytes come through this
agent, which looks up whose each byte of the range is.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.app.api.checks import index_of
from penstock.app.api.sources import ApiRefusedError, PipelineSources
from penstock.app.http.callers import Caller, DeniedError
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.security.acl import Operation, ResourceType
from penstock.segment import IndexedRun, parse_job_key
from penstock.state.answers import Refusal
from penstock.state.rows import PipelineJob

KEPT_MAX: Final = 2_000
"""Objects whose runs are kept: an object never changes under its key."""
RUNS_MAX: Final = 50_000
"""Runs that are kept of all objects together."""


class Grants:
    """Looks at objects' indexes, and keeps what they say. Event loop only."""

    def __init__(self, sources: PipelineSources) -> None:
        self._sources = sources
        self._kept: OrderedDict[str, Sequence[IndexedRun]] = OrderedDict()
        self._kept_runs = 0

    async def may_read_whole(self, caller: Caller, key: str) -> bool:
        """Whether a caller may read every byte of an object.

        Raises:
            RetryableError: the store doesn't answer, or this agent can't know what is allowed.
        """
        if caller.is_unbounded:
            return True
        if await self._is_own(caller, key):
            return True
        runs = await self._runs(key)
        if not runs:
            return False
        return all(self._may_read(caller, topic) for topic in {run.topic_id for run in runs})

    async def need_range(self, caller: Caller, key: str, start: int, end: int) -> None:
        """
        Raises:
            DeniedError: a byte of [start, end) is not of a topic that the caller may read.
            RetryableError: see `may_read_whole`.
        """
        if await self.may_read_whole(caller, key):
            return
        at = start
        for run in sorted(await self._runs(key) or (), key=lambda run: run.position):
            if run.position > at or at >= end:
                break
            if at < run.position + run.length and self._may_read(caller, run.topic_id):
                at = run.position + run.length
        if at < end:
            # The text is the same whether the object is there.
            raise DeniedError(
                "read",
                key,
                f"{caller.principal} may not read all of bytes {start} to {end - 1}",
                "an access rule must allow READ on the topics of the range",
            )

    def _may_read(self, caller: Caller, topic_id: bytes) -> bool:
        caller.ask_nothing()
        topic = self._sources.view.topic_by_id(topic_id)
        return topic is not None and caller.may(Operation.READ, ResourceType.TOPIC, topic.name)

    async def _is_own(self, caller: Caller, key: str) -> bool:
        caller.ask_nothing()
        parsed = parse_job_key(key)
        if parsed is None:
            return False
        job = await self._sources.ask(lambda queries: queries.pipeline_job(parsed.job))
        return is_own(caller, job)

    async def _runs(self, key: str) -> Sequence[IndexedRun] | None:
        """The runs that an object has, each with its topic; None: it can't be known."""
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return known
        try:
            size_bytes = await self._sources.store.size(key)
            _, runs = await index_of(self._sources, key, size_bytes)
        except (NotFoundError, CorruptDataError):
            return None
        self._kept[key] = runs
        self._kept_runs += len(runs)
        while len(self._kept) > KEPT_MAX or self._kept_runs > RUNS_MAX:
            _, dropped = self._kept.popitem(last=False)
            self._kept_runs -= len(dropped)
        return runs


def is_own(caller: Caller, job: PipelineJob | None) -> bool:
    """Whether a job is open and the caller's own."""
    return job is not None and bool(caller.principal) and job.principal == caller.principal


async def need_job(
    sources: PipelineSources, caller: Caller, job: int, instead: Operation | None = None
) -> None:
    """Check that a job is open, and the caller's.

    Args:
        instead: an operation on the cluster that lets others act for its owner.

    Raises:
        ApiRefusedError: it was closed, or never opened.
        DeniedError: it is another principal's.
    """
    found = await sources.ask(lambda queries: queries.pipeline_job(job))
    if found is None:
        # Another agent may have opened the job a moment ago.
        await sources.confirm()
        found = await sources.ask(lambda queries: queries.pipeline_job(job))
    if found is None:
        caller.ask_nothing()
        raise ApiRefusedError(
            "commit",
            f"job {job}",
            f"job {job} was closed, or never opened",
            reason=Refusal.UNKNOWN_JOB.name.lower(),
        )
    need_own(caller, found, instead)


def need_own(caller: Caller, job: PipelineJob, instead: Operation | None = None) -> None:
    """Raises: DeniedError: see `need_job`."""
    if is_own(caller, job):
        caller.ask_nothing()
    elif instead is not None:
        caller.need_cluster(instead)
    elif not caller.is_unbounded:
        raise DeniedError("use job", str(job.job), f"it is not a job of {caller.principal}")
